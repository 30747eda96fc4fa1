"""Sharded jobs: each shard is processed once, independently, and has a manifest with hashes.

A shard reads its inputs and writes its outputs to the folder of the job, atomically. Its manifest is
written last and has the hashes of inputs, outputs, code and settings; a shard with a valid manifest
is complete, whichever process made it, and any other is repeated. The number of documents read
equals those kept plus those dropped, by reason, or the shard fails.
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
from stamm.runs.records import ShardManifest
from stamm.version import PACKAGE, VERSION

SCHEMA = 1
MANIFESTS = "manifests"
JOB_SPECS = ".job-*.json"
_NUMBERED = re.compile(r"(.+?)-([0-9]{5,})\.")
_MANIFEST = {"schema", "key", "in", "kept", "dropped", "outputs", "facts"}


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """The inputs of one shard.

    name     such as "00007"; part of the names of outputs and manifest
    inputs   role -> path of each input file
    extra    small values of this shard alone; part of its key
    """

    name: str
    inputs: Mapping[str, str]
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ShardedJob:
    """A job that is split into shards.

    folder     folder of outputs and manifests
    work       "module:function" that processes a shard; called with the job and the shard
    settings   JSON values, the same for every shard; part of its key
    code_packages   folders of the package whose code determines the outputs ("corpus")
    common     role -> path of files that every shard reads
    places     role -> folder that shards read; settings must determine what they read there
    shards     in the order in which they are distributed
    """

    folder: Path
    work: str
    settings: Any
    code_packages: tuple[str, ...]
    shards: tuple[ShardTask, ...]
    common: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def settings_hash(self) -> str:
        """Hash of the settings, computed once: they may name every shard of an earlier step."""
        return sha256_value(self.settings)


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """Outputs and counts of a processed shard.

    outputs   names of the output files in the folder
    num_read  documents (or other items) read; equals kept + sum(dropped)
    facts     small JSON values for readers of the manifest
    seconds   time of each part of the work, for the log; not part of the manifest
    """

    outputs: tuple[str, ...]
    num_read: int
    kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


Work = Callable[[ShardedJob, ShardTask], ShardResult]


def write_job_spec(job: ShardedJob) -> Path:
    """Write what all shards share for workers on this or another machine; returns the file.

    The name is new, so that no file system returns an older content. The job is active while the
    file exists: a worker starts no further shard without it, so that workers left behind by a
    killed run soon stop writing to the folder.
    """
    remove_job_specs(job.folder)
    path = job.folder / JOB_SPECS.replace("*", secrets.token_hex(8))
    write_json(
        path,
        {
            "schema": SCHEMA,
            "version": VERSION,
            "code": code_hash(job.code_packages),
            "work": job.work,
            "settings": job.settings,
            "code_packages": list(job.code_packages),
            "common": dict(job.common),
            "places": dict(job.places),
        },
    )
    return path


def load_job_spec(path: Path) -> ShardedJob:
    """The job that `write_job_spec` wrote, without its shards.

    Raises   RunError when the job has ended, or was started by another version of stamm or with
             other code.
    """
    if not path.is_file():
        raise RunError(
            f"{path} is gone: the job has ended, or another run has taken its folder over",
            fix="Run the same command again",
        )
    spec = read_json(path)
    if spec["version"] != VERSION:
        raise RunError(
            f"{path} was written by stamm {spec['version']}, this worker is {VERSION}",
            fix="Install the same version on every machine",
        )
    code_packages = tuple(spec["code_packages"])
    if spec["code"] != code_hash(code_packages):
        raise RunError(
            f"{path} was written by other code of stamm {spec['version']} than this worker's, "
            f"which is in {PACKAGE}",
            fix="Install the same code on every machine",
        )
    return ShardedJob(
        folder=path.parent,
        work=spec["work"],
        settings=spec["settings"],
        code_packages=code_packages,
        common=spec["common"],
        places=spec["places"],
        shards=(),
    )


def remove_job_specs(folder: Path) -> None:
    """Delete the job specs in a folder, which stops workers that use them."""
    for path in list(folder.glob(JOB_SPECS)):
        path.unlink(missing_ok=True)


def run_shard(job: ShardedJob, shard: ShardTask) -> tuple[dict[str, Any], dict[str, float]]:
    """Process a shard unless its manifest is valid; returns the manifest and the seconds by part.

    Returns  {} seconds for a shard that was complete
    Raises   DataError when an input is missing; RunError when the counts do not add up.
    """
    key = _key(job, shard)
    known = _valid(job.folder, shard.name, key)
    if known is not None:
        return known, {}
    began = time.perf_counter()
    manifest_path(job.folder, shard.name).unlink(missing_ok=True)
    result = _function(job.work)(job, shard)
    lost = result.num_read - result.kept - sum(result.dropped.values())
    if lost:
        raise RunError(
            f"shard {shard.name} of {job.work} does not add up: {result.num_read} read, "
            f"{result.kept} kept, {sum(result.dropped.values())} dropped, {lost} unaccounted for",
            fix="This is a bug in stamm; the shard was discarded",
        )
    manifest = record(
        ShardManifest,
        {
            "key": key,
            "in": result.num_read,
            "kept": result.kept,
            "dropped": dict(sorted(result.dropped.items())),
            "outputs": {name: _facts(job.folder / name) for name in sorted(result.outputs)},
            "facts": dict(result.facts),
        },
    )
    write_json(manifest_path(job.folder, shard.name), manifest)
    return manifest, {**result.seconds, "all": time.perf_counter() - began}


def manifest_path(folder: Path, name: str) -> Path:
    """Path of the manifest of the shard `name`."""
    return folder / MANIFESTS / f"{name}.json"


def missing_shards(folder: Path, done: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Names of the shards in `done` whose manifest or outputs this machine does not see yet.

    A network file system may show files of other machines late. Sizes are compared, not contents.
    """
    listed = {path.stem for path in (folder / MANIFESTS).glob("*.json")}
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    return [
        name
        for name, manifest in done.items()
        if name not in listed
        or any(sizes.get(file) != facts["bytes"] for file, facts in manifest["outputs"].items())
        or _read(manifest_path(folder, name)) != json.loads(canonical_json(manifest))
    ]


def read_manifests(folder: Path) -> dict[str, dict[str, Any]]:
    """The manifests of a complete job by shard name, in order.

    Raises   DataError for a file that is not a manifest.
    """
    manifests = {}
    for path in sorted((folder / MANIFESTS).glob("*.json"), key=lambda path: path.name):
        manifest = read_json(path)
        if not isinstance(manifest, dict) or not manifest.keys() >= _MANIFEST:
            raise DataError(f"{path} is not the manifest of a shard", fix="Delete it and run again")
        manifests[path.stem] = manifest
    return manifests


def remove_stale_shards(job: ShardedJob) -> None:
    """Delete outputs and manifests of shards that are not part of the job.

    Edge   a file belongs to a shard when its name contains "-00007."; outputs without a manifest, as
           a killed run leaves them, are deleted, too.
    """
    names = {shard.name for shard in job.shards}
    for path in list((job.folder / MANIFESTS).glob("*.json")):
        if path.stem not in names:
            path.unlink()
    for path in list(job.folder.iterdir()):
        match = _NUMBERED.match(path.name)
        if match and path.is_file() and not {match[2], f"{match[1]}-{match[2]}"} & names:
            path.unlink()


@functools.cache
def code_hash(code_packages: tuple[str, ...]) -> str:
    """SHA-256 over the Python files and data files of some folders of the package, without their pages."""
    root = PACKAGE
    files = sorted(
        path
        for folder in code_packages
        for path in (root / folder).rglob("*")
        if path.is_file() and _is_code(path.relative_to(root))
    )
    return sha256_value(
        {str(path.relative_to(root)): sha256_bytes(path.read_bytes()) for path in files}
    )


def _is_code(path: Path) -> bool:
    """False for pages of a subject, and for caches and hidden files of Python, editors and network file systems.

    path   relative to the package
    """
    of_page = path.parts[1:2] in (("page",), ("templates",), ("section.py",))
    return not of_page and not any(
        part == "__pycache__" or part.startswith(".") for part in path.parts
    )


def common_files(job: ShardedJob) -> tuple[tuple[str, str, str], ...]:
    """Role, path and hash of the files that every shard reads, as a cache key."""
    return tuple(
        (role, path, _common_hash(Path(path))) for role, path in sorted(job.common.items())
    )


def _key(job: ShardedJob, shard: ShardTask) -> str:
    return sha256_value(
        {
            "work": job.work,
            "code": code_hash(job.code_packages),
            "settings": job.settings_hash,
            "extra": dict(shard.extra),
            "inputs": {role: _input_hash(Path(path)) for role, path in shard.inputs.items()},
            "common": {role: _common_hash(Path(path)) for role, path in job.common.items()},
        }
    )


def _input_hash(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"{path} does not exist", fix="Put it back, or name another input")
    return sha256_file(path)


def _common_hash(path: Path) -> str:
    """Hash of a file that every shard reads, computed once per process unless the file changes."""
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
    """The JSON value in `path`, or None when it cannot be read."""
    try:
        return read_json(path)
    except DataError:
        return None


def _facts(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def _function(work: str) -> Work:
    module, _, name = work.partition(":")
    function: Work = getattr(importlib.import_module(module), name)
    return function
