"""Run a sharded job: in this process, by worker processes, or by the ranks of a cluster.

A shard that fails does not stop the others. When all have been tried, the job ends with one error
that names the failed shards; complete shards are kept.
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
from stamm.runs.cluster_executors import RANKS, run_on_ray, run_on_slurm
from stamm.runs.executors import LocalExecutor, RayExecutor
from stamm.runs.job import Workspace
from stamm.runs.manifest import RATES
from stamm.runs.sharded_job import (
    MANIFESTS,
    ShardedJob,
    ShardTask,
    missing_shards,
    remove_job_specs,
    remove_stale_shards,
    write_job_spec,
)
from stamm.runs.worker import Result, run_on_workers, try_shard

_SHOWN, _NAMED = 3, 20
_SEEN_WITHIN_S = 120.0  # network file systems cache the listing of a folder for a minute
_FIX = "Correct or remove these inputs and run the same command: the other shards are complete"
_FREE_SPACE = "Free disk space and run the same command: complete shards are kept"


def run_shards(job: ShardedJob, workspace: Workspace, title: str) -> list[dict[str, Any]]:
    """Process all shards; returns their manifests in order. Timings go to the log of the run.

    Raises   RunError that names the failed shards after all have been tried; on a full disk,
             immediately.
    """
    progress = workspace.progress
    (job.folder / MANIFESTS).mkdir(parents=True, exist_ok=True)
    remove_stale_shards(job)
    shards = {shard.name: shard for shard in job.shards}
    done: dict[str, dict[str, Any]] = {}
    failed: dict[str, dict[str, Any]] = {}
    rates, began, num_read = _Rates(), time.perf_counter(), 0
    progress.begin(title, len(shards), "shards")
    try:
        with contextlib.closing(_results(job, workspace)) as results:
            for name, result in results:
                if "manifest" in result:
                    done[name] = result["manifest"]
                    num_read += result["manifest"]["in"]
                    rates.add(shards[name], result)
                else:
                    failed[name] = result
                    progress.log(f"Shard {name} failed: {result['error']}")
                    if len(failed) <= _NAMED:  # a defect is the same for all
                        for line in str(result.get("trace", "")).splitlines():
                            progress.log(f"  {line}")
                    if result.get("full"):
                        break
                progress.advance(len(done), f"{num_read} read")
        if not isinstance(workspace.execution, LocalExecutor):
            _wait_until_visible(job.folder, done)
    finally:
        remove_job_specs(job.folder)  # not an output
        remove_leftovers(job.folder)  # of workers that died
    if workspace.log is not None and rates.num_shards:
        rates.write(workspace.log / RATES, title, time.perf_counter() - began)
    if failed:
        raise _failure(title, job, done, failed)
    shutil.rmtree(job.folder / RANKS, ignore_errors=True)
    progress.end(f"{sum(m['kept'] for m in done.values())} of {num_read} kept")
    return [done[name] for name in shards]


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _results(job: ShardedJob, workspace: Workspace) -> Generator[Result]:
    execution = workspace.execution
    if isinstance(execution, LocalExecutor):
        count = min(execution.workers or cores(), len(job.shards))
        if count <= 1:
            return ((shard.name, try_shard(job, shard)) for shard in job.shards)
        return run_on_workers(write_job_spec(job), job.shards, count, execution.attempts)
    if isinstance(execution, RayExecutor):
        return run_on_ray(job, execution)
    return run_on_slurm(job, write_job_spec(job), execution, workspace.progress.log)


def _wait_until_visible(folder: Path, done: dict[str, dict[str, Any]]) -> None:
    """Wait until this machine sees the files that other machines wrote.

    Raises   RunError when it does not within the time limit, or sees other files.
    """
    until = time.monotonic() + _SEEN_WITHIN_S
    while (missing := missing_shards(folder, done)) and time.monotonic() < until:
        time.sleep(1)
    if missing:
        raise RunError(
            f"{folder} does not hold what was reported for {len(missing)} of {len(done)} shards: "
            f"{_names(missing)}",
            fix="Check that no other run uses the folder and that every machine sees the same one, "
            "and run the same command",
        )


class _Rates:
    """Throughput of the shards processed by this start; those complete before are not counted."""

    def __init__(self) -> None:
        self.num_shards = self._records = self._in = self._out = 0
        self._seconds: dict[str, float] = {}

    def add(self, shard: ShardTask, result: dict[str, Any]) -> None:
        if not result["seconds"]:
            return
        self.num_shards += 1
        self._records += result["manifest"]["in"]
        self._in += sum(Path(path).stat().st_size for path in shard.inputs.values())
        self._out += sum(file["bytes"] for file in result["manifest"]["outputs"].values())
        for part, spent in result["seconds"].items():
            self._seconds[part] = self._seconds.get(part, 0.0) + spent

    def write(self, path: Path, title: str, wall_seconds: float) -> None:
        """Add them to `path`, for `stamm plan`."""
        known = read_json(path) if path.exists() else {}
        known[title] = {
            "shards": self.num_shards,
            "records": self._records,
            "input_bytes": self._in,
            "output_bytes": self._out,
            "worker_seconds": {name: round(s, 6) for name, s in sorted(self._seconds.items())},
            "wall_seconds": round(wall_seconds, 6),
        }
        write_json(path, known)


def _failure(
    title: str, job: ShardedJob, done: Mapping[str, Any], failed: Mapping[str, Mapping[str, Any]]
) -> RunError:
    inputs = {shard.name: _names(list(shard.inputs.values())) for shard in job.shards}
    shown = "; ".join(
        f"{name} ({inputs[name]}): {result['error']}"
        for name, result in sorted(failed.items())[:_SHOWN]
    )
    more = f"; and {_names(sorted(failed)[_SHOWN:])}" if len(failed) > _SHOWN else ""
    untried = len(job.shards) - len(done) - len(failed)
    stopped = f", {untried} were not started" if untried else ""
    full = any(result.get("full") for result in failed.values())
    fixes = dict.fromkeys(str(result.get("fix", _FIX)) for result in failed.values())
    return RunError(
        f"{title}: {len(failed)} of {len(job.shards)} shards failed{stopped}: {shown}{more}",
        fix=_FREE_SPACE if full else ". ".join(fixes),
    )


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
