"""Run folder: execute the steps of a run, each once, and resume after an interruption.

A step writes a receipt with the hashes of its inputs and outputs. It is skipped when its receipt has
the same job, configuration and inputs, and every output still has the recorded hash. So the same
command resumes a killed run, and a changed input repeats the steps that depend on it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from stamm.base.cache_folder import lock_holders
from stamm.base.config import differences, to_plain
from stamm.base.console import Progress
from stamm.base.errors import ConfigError, DataError, RunError
from stamm.base.files import (
    read_json,
    remove,
    remove_leftovers,
    sha256_file,
    sha256_value,
    write_json,
    write_text,
)
from stamm.base.receipts import (
    CONFIG,
    FILES,
    STEPS,
    check_file,
    file_sha256,
    forget,
    may_be_deleted,
    receipt_of,
    receipts_below,
    resumed,
)
from stamm.base.schema import record, write_record
from stamm.runs.executors import Execution, LocalExecutor
from stamm.runs.job import Step, Workspace, after_producers
from stamm.runs.manifest import MANIFEST_FIX, RATES, new_manifest
from stamm.runs.records import ConfigFile, ManifestFile, ReceiptFile
from stamm.runs.step_pool import StepPool
from stamm.version import VERSION

SCHEMA = 1
LOCK = ".lock"
_CONFIG_FIX = "Restore it from a copy, or choose another folder with --out"
_SESSION = ("command", "started", "version", "commit", "dirty", "python", "lock_hash")
_MANIFEST = {"state", "sessions", "libraries"}
# Keys that may change when a run is resumed. Executor and trackers do not change the outputs; the
# process mesh changes roundings only, a connection only where a judge is asked.
_FREE = ("execution", "trackers", "parallel", "connection")
_RECEIPT = {"step", "key", "digest", "seconds", "ended", "outputs"}
Job = Callable[[Any, Workspace], None]


class Run:
    """A run folder.

    root      the folder
    recipe    the name of the recipe, with `overrides` as given on the command line
    config    the resolved configuration, in plain form
    """

    def __init__(self, root: Path, recipe: str, overrides: Sequence[str], config: Any) -> None:
        self.root = root
        self.request = {
            "schema": SCHEMA,
            "version": VERSION,
            "recipe": recipe,
            "overrides": list(overrides),
            "config": config,
        }

    def check(self) -> None:
        """Check whether this run can use its folder, without writing anything.

        Raises   ConfigError naming the differing keys when the folder has another run; RunError
                 when it is a file, has other contents, or was made by another version of stamm.
        """
        if self.root.exists() and not self.root.is_dir():
            raise RunError(f"{self.root} is a file", fix="Choose another folder with --out")
        path = self.root / "config.json"
        if path.exists():
            self._check_same(read_json(path, _CONFIG_FIX))
        elif self.root.is_dir() and any(not _is_ours(p) for p in self.root.iterdir()):
            raise RunError(
                f"{self.root} is not empty and is not a run folder",
                fix="Choose another folder with --out",
            )

    def set_aside(self) -> Path | None:
        """Rename the folder to NAME.before-1, or the next free number; None where there is no run.

        Raises   RunError when it is not a run folder, or another process uses it.
        """
        if not self.root.exists():
            return None
        path = self.root / "config.json"
        if not path.is_file() or not _is_config(read_json(path, _CONFIG_FIX)):
            raise RunError(f"{self.root} is not a run folder", fix="Move it away yourself")
        with self.locked():
            name = self.root.resolve().name
            numbered = (self.root.with_name(f"{name}.before-{n}") for n in itertools.count(1))
            free = next(path for path in numbered if not path.exists())
            return self.root.rename(free)

    def open(self) -> None:
        """Create the run folder, or resume the existing one. The lock must be held."""
        self.check()
        for leftover in self.root.glob(".*.part"):
            remove(leftover)
        if not (self.root / "config.json").exists():
            write_json(self.root / "config.json", record(ConfigFile, self.request))

    def _check_same(self, stored: Any) -> None:
        if not _is_config(stored):
            raise RunError(
                f"{self.root / 'config.json'} is not the configuration of a run",
                fix="Choose another folder with --out",
            )
        for name, value in (("schema", SCHEMA), ("version", VERSION)):
            if stored.get(name) != value:
                raise RunError(
                    f"{self.root} was made with {name} {stored.get(name)!r}, this is {value!r}",
                    fix="Use the version of stamm that made it, or another folder with --out",
                )
        keys = [
            change
            for change in differences(stored["config"], self.request["config"])
            if not set(change[0].split(".")) & set(_FREE)
        ]
        if stored["recipe"] != self.request["recipe"]:
            keys = [("recipe", stored["recipe"], self.request["recipe"]), *keys]
        if keys:
            shown = "; ".join(
                f"{key}: {old!r} there, {new!r} requested" for key, old, new in keys[:8]
            )
            more = f"; and {len(keys) - 8} more" if len(keys) > 8 else ""
            raise ConfigError(
                f"{self.root} has a run of another configuration: {shown}{more}",
                fix="Choose another folder with --out, request the same configuration, or set that"
                " run aside with --restart",
            )

    @contextlib.contextmanager
    def locked(self, *, shared: bool = False) -> Iterator[None]:
        """Lock the folder for this process; the lock ends with the process.

        shared   the lock is shared: for a command that reads the run and writes to a folder of its
                 own

        Edge     nothing is locked on a read-only file system
        Raises   RunError when another process uses it.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            opened = (self.root / LOCK).open("a")
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            yield
            return
        with opened as held:
            try:
                kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
                fcntl.flock(held, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                who = lock_holders(self.root / LOCK)
                raise RunError(
                    f"another process uses {self.root}{who}", fix="Wait for it, or stop it"
                ) from None
            except OSError as error:
                raise RunError(
                    f"the file system of {self.root} cannot lock files: {error.strerror}",
                    fix="Choose a folder elsewhere with --out, or mount it with locks (Lustre: "
                    "flock), without which two runs could work in one folder",
                ) from None
            yield

    def pending(self, steps: Sequence[Step]) -> list[Step]:
        """The steps that are not complete, in order."""
        done: dict[str, Any] = {}
        waiting: list[Step] = []
        with resumed(self.root):
            for step in self._wanted(after_producers(steps), done):
                receipt = self._valid_receipt(step, done)
                if receipt is None:
                    waiting.append(step)
                else:
                    done[step.name] = receipt
        return waiting

    def execute(
        self,
        steps: Sequence[Step],
        jobs: Callable[[str], Job],
        progress: Progress,
        announce: Callable[[int, int, Step], str],
        execution: Execution | None = None,
        pool: StepPool | None = None,
    ) -> None:
        """Execute the pending steps.

        jobs       returns the function of a kind of job; called only when a step needs it
        announce   called with the number of the step, the number of steps, and the step; returns the
                   prefix of its progress lines
        execution  executor of the shards of a step; None: this machine
        pool       executes steps of its kinds side by side; None: one step after another
        """
        self._note_session(progress)
        self._remove_damaged_receipts()
        steps = after_producers(steps)
        done: dict[str, Any] = {}
        begun: dict[str, tuple[str, float]] = {}
        numbers = {step.name: number for number, step in enumerate(steps, start=1)}
        todo = self._wanted(steps, done) if pool is None else self._ready(steps, done, pool, begun)
        for step in todo:
            receipt = self._valid_receipt(step, done)
            if receipt is None:
                prefix = announce(numbers[step.name], len(steps), step)
                step_workspace = workspace(self.root, step, progress, execution)
                key = self._begin(step, done, step_workspace)
                began = time.monotonic()
                if pool is not None and step.job in pool.kinds:
                    begun[step.name] = key, began
                    pool.start(step, step_workspace, prefix)
                    continue
                jobs(step.job)(step.config, step_workspace)
                receipt = self._write_receipt(step, key, began)
            done[step.name] = receipt
        self._note_state("complete")

    def _ready(
        self,
        steps: Sequence[Step],
        done: dict[str, Any],
        pool: StepPool,
        begun: Mapping[str, tuple[str, float]],
    ) -> Iterator[Step]:
        """The steps, each when those that it reads are finished and the pool has room for it.

        Edge     steps that finish in the pool get their receipt here and in `done`
        """
        remaining, ended = list(steps), set[str]()

        def can_start(step: Step) -> bool:
            if step.unless and step.unless not in done.keys() | ended:
                return False
            if self._is_left_out(step, steps, done, ended):
                return True
            return set(step.after) <= done.keys() | ended and (
                pool.free or step.job not in pool.kinds
            )

        while remaining or pool.running:
            startable = next(filter(can_start, remaining), None)
            if startable is not None:
                pool.check()
                remaining.remove(startable)
                if self._is_left_out(startable, steps, done, ended):
                    ended.add(startable.name)
                else:
                    yield startable
            elif pool.running:
                finished = pool.wait()
                done[finished.name] = self._write_receipt(finished, *begun[finished.name])
            else:
                names = ", ".join(step.name for step in remaining)
                raise RunError(f"steps wait for steps that do not exist: {names}")
        pool.check()

    def _wanted(self, steps: Sequence[Step], done: Mapping[str, Any]) -> Iterator[Step]:
        """The steps that no finished step stops; the caller adds to `done` while it iterates."""
        ended: set[str] = set()
        for step in steps:
            if self._is_left_out(step, steps, done, ended):
                ended.add(step.name)
            else:
                yield step

    def _is_left_out(
        self, step: Step, steps: Sequence[Step], done: Mapping[str, Any], ended: Set[str]
    ) -> bool:
        """Whether the step that `step.unless` names was left out itself, or contains "stop": true."""
        gate = step.unless
        if gate in ended or gate not in done:
            return gate in ended
        gate_step = next(candidate for candidate in steps if candidate.name == gate)
        return read_json(self.root / gate_step.folder / gate_step.outputs[0]).get("stop") is True

    def unfinished(self) -> str:
        """Why the run is not complete; "" when it is."""
        if is_locked(self.root):
            return "another process uses it"
        state = self.state()
        if state == "new":
            return f"{self._manifest_path.name} is missing"
        return "" if state == "complete" else "its run is not complete"

    def state(self) -> str:
        """ "new", "running" (started, not complete) or "complete"."""
        return str(self._manifest()["state"]) if self._manifest_path.exists() else "new"

    @property
    def _manifest_path(self) -> Path:
        return self.root / "manifest.json"

    def _manifest(self) -> dict[str, Any]:
        manifest = read_json(self._manifest_path, MANIFEST_FIX)
        if isinstance(manifest, dict) and manifest.keys() >= _MANIFEST:
            return manifest
        raise DataError(
            f"{self._manifest_path} is not the manifest of a run",
            fix=MANIFEST_FIX,
        )

    def receipts(self) -> list[dict[str, Any]]:
        """Receipts of the complete steps, in the order in which they ended."""
        return _receipts(self.root)

    def _begin(self, step: Step, done: Mapping[str, Any], step_workspace: Workspace) -> str:
        """Prepare the folder of a step, and return its key."""
        key = self._key(step, done)
        self._clear_other_attempt(step, key, step_workspace.progress)
        self._receipt_path(step).unlink(missing_ok=True)
        forget(self.root)
        step_workspace.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(step_workspace.folder)
        return key

    def _write_receipt(self, step: Step, key: str, began: float) -> Any:
        outputs = self._outputs(step)
        receipt = {
            "step": step.name,
            "key": key,
            "digest": sha256_value(outputs),
            "seconds": round(time.monotonic() - began, 3),
            "ended": time.time(),
            "folder": step.folder,
            "outputs": outputs,
            "records": self._records(step, outputs.keys()),
        }
        write_record(self._receipt_path(step), ReceiptFile, receipt)
        forget(self.root)
        return receipt

    def _clear_other_attempt(self, step: Step, key: str, progress: Progress) -> None:
        """Remove the outputs of a step that was started with another key.

        A job resumes from what is in its folder (a checkpoint), which is valid only for the same
        configuration and inputs. The key is recorded before the step starts.
        """
        note = self.root / STEPS / f"{step.name}.begun"
        if note.exists() and note.read_text() == key:
            return
        folder = self.root / step.folder
        if Path(step.folder) != Path() and folder.exists():
            if note.exists():
                again = "checking its shards" if step.sharded else "repeating it"
                progress.log(f"The inputs of step {step.name} have changed: {again}.")
            if step.costly:
                aside = _aside(self.root / "set-aside", folder)
                progress.log(f"Its previous outputs, with checkpoints, were moved to {aside}.")
            elif not note.exists() and any(folder.iterdir()):
                # Not written by this step: a model that was exported by hand, for example.
                aside = _aside(self.root / "set-aside", folder)
                progress.log(
                    f"What was in {step.folder} before step {step.name} was moved to {aside}."
                )
            elif not step.sharded:
                shutil.rmtree(folder)
        write_text(note, key)

    def _key(self, step: Step, done: Mapping[str, Any]) -> str:
        """Hash of job, configuration and the content of what the step reads; no path is part of it."""
        after = {name: done[name] for name in step.after if name in done}
        inputs = {name: self._input(path, after) for name, path in step.inputs.items()}
        read = {sha256 for files in inputs.values() for sha256 in files.values()}
        return sha256_value(
            {
                "job": step.job,
                "config": without_free_keys(to_plain(step.config)),
                "folder": step.folder,
                "inputs": inputs,
                "after": {
                    name: receipt["digest"]
                    for name, receipt in after.items()
                    if not read & {facts["sha256"] for facts in receipt["outputs"].values()}
                },
                "external": sorted(
                    [path.name, _external_hash(path)] for path in step.external.values()
                ),
            }
        )

    def _input(self, path: str, after: Mapping[str, Any]) -> Mapping[str, str]:
        """SHA-256 of each file of an input, from the receipts of the steps before or of another run."""
        inside = os.path.normpath(path)
        if Path(inside).is_absolute() or inside.startswith(".."):
            return receipts_below(self.root / path)
        files = {}
        for receipt in after.values():
            folder = os.path.normpath(receipt["folder"])
            for output, facts in receipt["outputs"].items():
                name = output if folder == "." else f"{folder}/{output}"
                if inside == "." or name == inside or name.startswith(f"{inside}/"):
                    files[os.path.relpath(name, inside)] = facts["sha256"]
        return files

    def _valid_receipt(self, step: Step, done: Mapping[str, Any]) -> Any | None:
        receipt = _read_receipt(self._receipt_path(step))
        if receipt is None or receipt.get("key") != self._key(step, done):
            return None
        needed = {n: f for n, f in receipt.get("records", {}).items() if not may_be_deleted(n)}
        for name, facts in (receipt["outputs"] | needed).items():
            file = self.root / step.folder / name
            if not file.is_file() or file.stat().st_size != facts["bytes"]:
                return None
            if file_sha256(file) != facts["sha256"]:
                return None
        return receipt

    def _remove_damaged_receipts(self) -> None:
        """Remove damaged receipts, with which readers refuse a run; their steps are executed again."""
        for path in (self.root / STEPS).glob("*.json"):
            if _read_receipt(path) is None:
                path.unlink()
        forget(self.root)

    def _outputs(self, step: Step) -> dict[str, dict[str, Any]]:
        folder = self.root / step.folder
        facts: dict[str, dict[str, Any]] = {}
        for name in step.outputs:
            path = folder / name
            if not path.exists():
                raise RunError(f"step {step.name} ended without its output {path}")
            files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
            for file in files:
                facts[str(file.relative_to(folder))] = _facts(file)
        return facts

    def _records(self, step: Step, outputs: Set[str]) -> dict[str, dict[str, Any]]:
        """Size and SHA-256 of the files that a step wrote beside its outputs.

        They are those of its patterns, and in a folder of its own all others that no other step wrote.
        """
        folder = self.root / step.folder
        patterns = step.records if folder == self.root else (*step.records, "*")
        files = {
            path.relative_to(folder).as_posix(): path
            for pattern in patterns
            for path in sorted(folder.glob(pattern))
            if path.is_file() and not path.name.startswith(".")
        }
        own = {name: path for name, path in files.items() if name not in outputs}
        others = {name for name, path in own.items() if _is_of_another(path, step)}
        return {name: _facts(path) for name, path in own.items() if name not in others}

    def _receipt_path(self, step: Step) -> Path:
        return self.root / STEPS / f"{step.name}.json"

    def _note_session(self, progress: Progress) -> None:
        """Add this start to the manifest, with a warning when library versions have changed."""
        now = new_manifest(recipe=self.request["recipe"], state="running")
        begun = self._manifest_path.exists()
        manifest = self._manifest() if begun else {**now, "sessions": []}
        manifest["state"] = "running"
        manifest[FILES] = self._files(complete=False)
        manifest["sessions"].append({key: now[key] for key in _SESSION})
        write_record(self._manifest_path, ManifestFile, manifest)
        changed = differences(manifest["libraries"], now["libraries"])
        if changed:
            said = ", ".join(f"{name} {old} -> {new}" for name, old, new in changed)
            progress.log(
                f"Library versions have changed since the run started ({said}): bits may differ."
            )

    def _files(self, *, complete: bool) -> dict[str, str]:
        """SHA-256 of config.json and, of a complete run, of its rates and every receipt of a step."""
        paths = [self.root / CONFIG]
        if complete:
            paths += [self.root / "log" / RATES, *sorted((self.root / STEPS).glob("*.json"))]
        return {
            path.relative_to(self.root).as_posix(): sha256_file(path)
            for path in paths
            if path.is_file()
        }

    def _note_state(self, state: str) -> None:
        manifest = self._manifest()
        manifest["state"] = state
        manifest["steps"] = finished_steps(self.root, {})
        manifest[FILES] = self._files(complete=state == "complete")
        write_record(self._manifest_path, ManifestFile, manifest)


def workspace(
    root: Path, step: Step, progress: Progress, execution: Execution | None = None
) -> Workspace:
    """The workspace of `step` in the run at `root`."""
    return Workspace(
        folder=root / step.folder,
        inputs={name: root / path for name, path in step.inputs.items()},
        progress=progress,
        execution=execution or LocalExecutor(),
        log=root / "log",
    )


def without_free_keys(plain: Any) -> Any:
    """A configuration in plain form without the keys that may change when a run is resumed."""
    if isinstance(plain, dict):
        return {key: without_free_keys(value) for key, value in plain.items() if key not in _FREE}
    return [without_free_keys(value) for value in plain] if isinstance(plain, list) else plain


def finished_steps(root: Path, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Name and seconds of each finished step: those of the manifest of a complete run, or of receipts."""
    recorded: list[dict[str, Any]] = manifest.get("steps", [])
    if manifest.get("state") == "complete" and recorded:
        return recorded
    return [{"name": receipt["step"], "seconds": receipt["seconds"]} for receipt in _receipts(root)]


def _receipts(root: Path) -> list[dict[str, Any]]:
    receipts = (_read_receipt(path) for path in (root / STEPS).glob("*.json"))
    return sorted((r for r in receipts if r is not None), key=lambda receipt: receipt["ended"])


def _read_receipt(path: Path) -> dict[str, Any] | None:
    """A receipt, or None when it cannot be read: the step is then repeated."""
    try:
        receipt: dict[str, Any] = read_json(path)
    except DataError:
        return None
    complete = isinstance(receipt, dict) and receipt.keys() >= _RECEIPT
    return receipt if complete and isinstance(receipt["outputs"], dict) else None


def _facts(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": file_sha256(file)}


def _aside(parent: Path, folder: Path) -> Path:
    """Move `folder` into `parent` under a new name; returns its path."""
    parent.mkdir(exist_ok=True)
    number = next(n for n in itertools.count(1) if not (parent / f"{folder.name}-{n}").exists())
    return folder.rename(parent / f"{folder.name}-{number}")


def _external_hash(path: Path) -> str:
    if not path.is_file():
        raise DataError(
            f"{path} does not exist", fix="Put it back, or correct its name in the configuration"
        )
    check_file(path)
    return file_sha256(path)


def is_locked(root: Path) -> bool:
    """Whether a process holds the lock of the run folder `root`; False where it cannot be read."""
    with contextlib.suppress(FileNotFoundError, PermissionError), (root / LOCK).open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def shown_state(root: Path, recorded: str) -> str:
    """The state of a run for people: what its manifest records, or "interrupted".

    A run that is killed leaves "running" behind; its lock goes with the process.
    """
    return "interrupted" if recorded == "running" and not is_locked(root) else recorded


def _is_of_another(path: Path, step: Step) -> bool:
    """Whether another step or a command wrote a file in the folder of a step."""
    try:
        receipt = receipt_of(path)
    except DataError:  # of receipts that this run will write again
        return False
    return receipt is not None and receipt.writer != f"step {step.name}"


def _is_config(stored: Any) -> bool:
    """Whether this is the config.json of a run, and not that of a Hugging Face model."""
    return isinstance(stored, dict) and stored.keys() >= {"schema", "recipe", "config"}


def _is_ours(path: Path) -> bool:
    """Whether `path` is the lock file or a temporary file of a killed process."""
    return path.name == LOCK or (path.name.startswith(".") and path.name.endswith(".part"))
