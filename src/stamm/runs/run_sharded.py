"""Doing a batch: by one process, by many of this machine, or by the ranks of a cluster.

A shard that fails does not stop the others. When all have been tried the batch ends with one error
that names the failed ones; everything that was done stays done.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stamm.base.errors import RunError
from stamm.base.files import read_json, remove_leftovers, write_json
from stamm.runs.cluster_executors import RANKS, on_ray, on_slurm
from stamm.runs.executors import LocalWork, RayWork
from stamm.runs.job import Workspace
from stamm.runs.local_pool import Result, pool
from stamm.runs.sharded_job import (
    MANIFESTS,
    Batch,
    Task,
    forget_plans,
    forget_strangers,
    save_plan,
    unseen,
)
from stamm.runs.worker import attempt

_SHOWN, _NAMED = 3, 20
_SEEN_WITHIN_S = 120.0  # network file systems keep what they know of a folder for a minute
_MEND = "Mend or remove these inputs and run the same command: the other shards are done"
_ROOM = "Free some room and run the same command: the shards that are done stay done"
RATES = "rates.json"


def do_batch(batch: Batch, workspace: Workspace, title: str) -> list[dict[str, Any]]:
    """The manifests of all tasks, in their order. What they took goes to the log of the run.

    Raises   RunError naming the shards that failed, after all have been tried; at once where the
             disk is full.
    """
    progress = workspace.progress
    (batch.folder / MANIFESTS).mkdir(parents=True, exist_ok=True)
    forget_strangers(batch)
    tasks = {task.name: task for task in batch.tasks}
    done: dict[str, dict[str, Any]] = {}
    failed: dict[str, dict[str, Any]] = {}
    rates, began, came_in = _Rates(), time.perf_counter(), 0
    progress.begin(title, len(tasks), "shards")
    try:
        with contextlib.closing(_results(batch, workspace)) as results:
            for name, result in results:
                if "manifest" in result:
                    done[name] = result["manifest"]
                    came_in += result["manifest"]["in"]
                    rates.add(tasks[name], result)
                else:
                    failed[name] = result
                    progress.log(f"Shard {name} failed: {result['error']}")
                    if len(failed) <= _NAMED:  # a defect is the same for all
                        for line in str(result.get("trace", "")).splitlines():
                            progress.log(f"  {line}")
                    if result.get("full"):
                        break
                progress.advance(len(done), f"{came_in} in")
        if not isinstance(workspace.execution, LocalWork):
            _wait_to_see(batch.folder, done)
    finally:
        forget_plans(batch.folder)  # what only told workers where to look is no output
        remove_leftovers(batch.folder)  # of workers that died
    if workspace.log is not None and rates.shards:
        rates.note(workspace.log / RATES, title, time.perf_counter() - began)
    if failed:
        raise _failure(title, batch, done, failed)
    shutil.rmtree(batch.folder / RANKS, ignore_errors=True)
    progress.end(f"{sum(m['kept'] for m in done.values())} of {came_in} kept")
    return [done[name] for name in tasks]


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _results(batch: Batch, workspace: Workspace) -> Generator[Result]:
    execution = workspace.execution
    if isinstance(execution, LocalWork):
        count = min(execution.workers or cores(), len(batch.tasks))
        if count <= 1:
            return ((task.name, attempt(batch, task)) for task in batch.tasks)
        return pool(save_plan(batch), batch.tasks, count, execution.attempts)
    if isinstance(execution, RayWork):
        return on_ray(batch, execution)
    return on_slurm(batch, save_plan(batch), execution, workspace.progress.log)


def _wait_to_see(folder: Path, done: dict[str, dict[str, Any]]) -> None:
    """Go on when this machine sees what other machines did.

    Raises   RunError when it does not in time, or sees something else.
    """
    until = time.monotonic() + _SEEN_WITHIN_S
    while (missing := unseen(folder, done)) and time.monotonic() < until:
        time.sleep(1)
    if missing:
        raise RunError(
            f"{folder} does not hold what was reported for {len(missing)} of {len(done)} shards: "
            f"{_names(missing)}",
            fix="See that no other run works there and that every machine sees the same folder, "
            "and run the same command",
        )


class _Rates:
    """What the shards done now took; those done before say nothing about this machine."""

    def __init__(self) -> None:
        self.shards = self._records = self._in = self._out = 0
        self._seconds: dict[str, float] = {}

    def add(self, task: Task, result: dict[str, Any]) -> None:
        if not result["seconds"]:
            return
        self.shards += 1
        self._records += result["manifest"]["in"]
        self._in += sum(Path(path).stat().st_size for path in task.inputs.values())
        self._out += sum(file["bytes"] for file in result["manifest"]["outputs"].values())
        for part, spent in result["seconds"].items():
            self._seconds[part] = self._seconds.get(part, 0.0) + spent

    def note(self, path: Path, title: str, wall_seconds: float) -> None:
        """Keep them for `stamm plan`."""
        known = read_json(path) if path.exists() else {}
        known[title] = {
            "shards": self.shards,
            "records": self._records,
            "input_bytes": self._in,
            "output_bytes": self._out,
            "worker_seconds": {name: round(s, 6) for name, s in sorted(self._seconds.items())},
            "wall_seconds": round(wall_seconds, 6),
        }
        write_json(path, known)


def _failure(
    title: str, batch: Batch, done: Mapping[str, Any], failed: Mapping[str, Mapping[str, Any]]
) -> RunError:
    inputs = {task.name: ", ".join(task.inputs.values()) for task in batch.tasks}
    shown = "; ".join(
        f"{name} ({inputs[name]}): {result['error']}"
        for name, result in sorted(failed.items())[:_SHOWN]
    )
    more = f"; and {_names(sorted(failed)[_SHOWN:])}" if len(failed) > _SHOWN else ""
    untried = len(batch.tasks) - len(done) - len(failed)
    stopped = f", {untried} were not tried" if untried else ""
    full = any(result.get("full") for result in failed.values())
    fixes = dict.fromkeys(str(result.get("fix", _MEND)) for result in failed.values())
    return RunError(
        f"{title}: {len(failed)} of {len(batch.tasks)} shards failed{stopped}: {shown}{more}",
        fix=_ROOM if full else ". ".join(fixes),
    )


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
