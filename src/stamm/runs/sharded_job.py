"""Shards of a job: each is done once, alone, and proves itself by a manifest.

A task reads some inputs and writes some outputs into the folder of its batch, each under a hidden
name first. Its manifest is written last. It holds the hashes of inputs and outputs, of the code
and of the settings; so a task whose manifest holds is done, whoever did it and when, and any other
is done again. What came in equals what was kept and what was dropped, by reason, or the task fails.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import stamm
from stamm.base.errors import DataError, RunError
from stamm.base.files import (
    canonical_json,
    read_json,
    sha256_bytes,
    sha256_file,
    sha256_value,
    write_json,
)
from stamm.base.schema import record
from stamm.runs.schemas.corpus import ShardManifest

SCHEMA = 1
MANIFESTS = "manifests"
PLANS = ".batch-*.json"
_NUMBERED = re.compile(r"(.+?)-([0-9]{5,})\.")
_MANIFEST = {"schema", "key", "in", "kept", "dropped", "outputs", "facts"}


@dataclass(frozen=True, kw_only=True)
class Task:
    """One shard.

    name     such as "00007"; outputs and manifest carry it
    inputs   role -> path of each file it reads
    extra    small values that belong to this shard alone; they enter its identity
    """

    name: str
    inputs: Mapping[str, str]
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The tasks of one job.

    folder     where outputs and manifests go
    work       what does a task, as "module:function"; called with the batch and the task
    settings   JSON values, the same for every task; they enter the identity
    rooms      folders of the package whose code decides the outputs ("corpus")
    common     role -> path of files that every task reads
    places     role -> folder that tasks look into; what they need of it must be told by settings
    tasks      in the order in which they are handed out
    """

    folder: Path
    work: str
    settings: Any
    rooms: tuple[str, ...]
    tasks: tuple[Task, ...]
    common: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def settings_hash(self) -> str:
        """The hash of the settings, which may be long: they may name every shard of a step before."""
        return sha256_value(self.settings)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a task did.

    outputs   names of the files it left in the folder
    came_in   documents (or what else is counted) that it read; kept + sum(dropped) must equal it
    facts     small JSON values for whoever reads the manifest
    seconds   what each part of the work took; it goes to the log, never into the manifest
    """

    outputs: tuple[str, ...]
    came_in: int
    kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


Work = Callable[[Batch, Task], Outcome]


def save_plan(batch: Batch) -> Path:
    """Write what all tasks share where workers on this or another machine can read it; the file.

    Its name is a new one, so that no file system can take it for an older plan. While it stands
    the batch goes on. A worker whose plan is gone begins no other shard: so whoever is left of a
    run that was killed soon leaves the folder to the next.
    """
    forget_plans(batch.folder)
    path = batch.folder / PLANS.replace("*", secrets.token_hex(8))
    write_json(
        path,
        {
            "schema": SCHEMA,
            "version": stamm.__version__,
            "code": code_hash(batch.rooms),
            "work": batch.work,
            "settings": batch.settings,
            "rooms": list(batch.rooms),
            "common": dict(batch.common),
            "places": dict(batch.places),
        },
    )
    return path


def load_plan(path: Path) -> Batch:
    """The batch that `save_plan` wrote, without its tasks.

    Raises   RunError when the batch has ended, or was begun by another version of stamm or with
             other code: this worker would not do the same.
    """
    if not path.is_file():
        raise RunError(
            f"{path} is gone: the batch has ended, or another run has taken its folder over",
            fix="Run the same command again",
        )
    plan = read_json(path)
    if plan["version"] != stamm.__version__:
        raise RunError(
            f"{path} was written by stamm {plan['version']}, this worker is {stamm.__version__}",
            fix="Install the same version on every machine",
        )
    rooms = tuple(plan["rooms"])
    if plan["code"] != code_hash(rooms):
        raise RunError(
            f"{path} was written by other code of stamm {plan['version']} than this worker's, "
            f"which is in {Path(stamm.__file__).parent}",
            fix="Install the same code on every machine",
        )
    return Batch(
        folder=path.parent,
        work=plan["work"],
        settings=plan["settings"],
        rooms=rooms,
        common=plan["common"],
        places=plan["places"],
        tasks=(),
    )


def forget_plans(folder: Path) -> None:
    """Delete the plans in a folder: workers that still follow one of them stop."""
    for path in list(folder.glob(PLANS)):
        path.unlink(missing_ok=True)


def do_task(batch: Batch, task: Task) -> tuple[dict[str, Any], dict[str, float]]:
    """The manifest of a task, which is done first unless it is done already; what that took.

    Returns  no seconds for a task that was done already
    Raises   DataError when an input is missing; RunError when the counts do not add up.
    """
    key = _key(batch, task)
    known = _valid(batch.folder, task.name, key)
    if known is not None:
        return known, {}
    began = time.perf_counter()
    manifest_path(batch.folder, task.name).unlink(missing_ok=True)
    outcome = _function(batch.work)(batch, task)
    lost = outcome.came_in - outcome.kept - sum(outcome.dropped.values())
    if lost:
        raise RunError(
            f"task {task.name} of {batch.work} does not add up: {outcome.came_in} came in, "
            f"{outcome.kept} kept, {sum(outcome.dropped.values())} dropped, {lost} unaccounted for",
            fix="This is a defect of stamm; nothing of the shard was taken over",
        )
    manifest = record(
        ShardManifest,
        {
            "key": key,
            "in": outcome.came_in,
            "kept": outcome.kept,
            "dropped": dict(sorted(outcome.dropped.items())),
            "outputs": {name: _facts(batch.folder / name) for name in sorted(outcome.outputs)},
            "facts": dict(outcome.facts),
        },
    )
    write_json(manifest_path(batch.folder, task.name), manifest)
    return manifest, {**outcome.seconds, "all": time.perf_counter() - began}


def manifest_path(folder: Path, name: str) -> Path:
    """Where the manifest of the task called `name` stands."""
    return folder / MANIFESTS / f"{name}.json"


def unseen(folder: Path, done: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Of the manifests in `done`, by task name, those that the folder does not show from here.

    For what other machines did: a network file system may show their files late, and a file that
    is not listed would be taken for one that is not there. Sizes are compared, not contents.
    """
    proofs = {path.stem for path in (folder / MANIFESTS).glob("*.json")}
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    return [
        name
        for name, manifest in done.items()
        if name not in proofs
        or any(sizes.get(file) != facts["bytes"] for file, facts in manifest["outputs"].items())
        or _read(manifest_path(folder, name)) != json.loads(canonical_json(manifest))
    ]


def read_manifests(folder: Path) -> dict[str, dict[str, Any]]:
    """The manifests of a finished batch by task name, in order.

    Raises   DataError for one that is none.
    """
    found = {}
    for path in sorted((folder / MANIFESTS).glob("*.json"), key=lambda path: path.name):
        manifest = read_json(path)
        if not isinstance(manifest, dict) or not manifest.keys() >= _MANIFEST:
            raise DataError(f"{path} is no manifest of a shard", fix="Delete it and run again")
        found[path.stem] = manifest
    return found


def forget_strangers(batch: Batch) -> None:
    """Delete what tasks left that do not belong to the batch, so that nobody reads it for a part.

    Edge   a file counts as a task's when its name says "-00007."; so outputs without a manifest,
           which a killed run may leave, are found, too.
    """
    names = {task.name for task in batch.tasks}
    for path in list((batch.folder / MANIFESTS).glob("*.json")):
        if path.stem not in names:
            path.unlink()
    for path in list(batch.folder.iterdir()):
        found = _NUMBERED.match(path.name)
        if found and path.is_file() and not {found[2], f"{found[1]}-{found[2]}"} & names:
            path.unlink()


@functools.cache
def code_hash(rooms: tuple[str, ...]) -> str:
    """A hash over the Python files and data files of some rooms of the package."""
    root = Path(stamm.__file__).parent
    files = sorted(
        path
        for room in rooms
        for path in (root / room).rglob("*")
        if path.is_file() and _is_code(path.relative_to(root))
    )
    return sha256_value(
        {str(path.relative_to(root)): sha256_bytes(path.read_bytes()) for path in files}
    )


def _is_code(path: Path) -> bool:
    """Not what Python, an editor or a network file system leaves beside code."""
    return not any(part == "__pycache__" or part.startswith(".") for part in path.parts)


def common_files(batch: Batch) -> tuple[tuple[str, str, str], ...]:
    """Role, path and hash of the files that every task reads: a key for what is built from them."""
    return tuple(
        (role, path, _common_hash(Path(path))) for role, path in sorted(batch.common.items())
    )


def _key(batch: Batch, task: Task) -> str:
    return sha256_value(
        {
            "work": batch.work,
            "code": code_hash(batch.rooms),
            "settings": batch.settings_hash,
            "extra": dict(task.extra),
            "inputs": {role: _input_hash(Path(path)) for role, path in task.inputs.items()},
            "common": {role: _common_hash(Path(path)) for role, path in batch.common.items()},
        }
    )


def _input_hash(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"{path} does not exist", fix="Put it back, or name another input")
    return sha256_file(path)


def _common_hash(path: Path) -> str:
    """A file that every task reads is hashed once by each process, unless it changes meanwhile."""
    facts = path.stat() if path.is_file() else None
    return _hash_of(path, facts and (facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns))


@functools.lru_cache(maxsize=4096)
def _hash_of(path: Path, _: tuple[int, int, int] | None) -> str:
    return _input_hash(path)


def _valid(folder: Path, name: str, key: str) -> dict[str, Any] | None:
    manifest = _read(manifest_path(folder, name))
    if not isinstance(manifest, dict) or not manifest.keys() >= _MANIFEST:
        return None
    if manifest["key"] != key:
        return None
    for output, facts in manifest["outputs"].items():
        path = folder / output
        if not path.is_file() or _facts(path) != facts:
            return None
    return manifest


def _read(path: Path) -> Any:
    """The JSON value in `path`, or None where there is none."""
    try:
        return read_json(path)
    except DataError:
        return None


def _facts(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def _function(work: str) -> Work:
    module, _, name = work.partition(":")
    found: Work = getattr(importlib.import_module(module), name)
    return found
