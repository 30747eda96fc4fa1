"""Shards of a job in worker processes of one machine, and their worker: `python -m stamm.runs.worker JOB_SPEC PARENT_PID`."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stamm.base.errors import StammError, visible
from stamm.base.files import is_full
from stamm.runs.local_pool import WorkerPool, serve
from stamm.runs.sharded_job import ShardedJob, ShardTask, load_job_spec, run_shard

_LONGEST_TRACE = 4000
_FIX = (
    "Provide more memory for such a shard, split its input into smaller files, or remove it, and run "
    "the same command: the other shards are complete"
)
Result = tuple[str, dict[str, Any]]


def run_rank(spec: str, shards: Sequence[ShardTask], workers: int, attempts: int) -> list[Result]:
    """Process the shards of one rank of a cluster with its worker processes; returns their results.

    A rank may be restarted, with shards distributed differently: complete shards are not repeated.
    A shard that kills its process does not affect the others; a full disk ends the rank.
    """
    results = []
    with contextlib.closing(run_on_workers(Path(spec), shards, workers, attempts)) as ended:
        for name, result in ended:
            results.append((name, result))
            if result.get("full"):
                break
    return results


def run_on_workers(
    spec: Path, shards: Sequence[ShardTask], count: int, attempts: int
) -> Generator[Result]:
    """Results in the order in which shards end.

    A shard whose worker died is retried after all others have ended, one at a time: it may have
    run out of memory beside others. Each worker computes with one thread: there is one for each core.

    spec       what all shards share, from `write_job_spec`
    count      number of processes
    attempts   how often a shard is tried whose worker died
    """
    remaining, tried = {shard.name: asdict(shard) for shard in shards}, 0
    module, threads = (
        "stamm.runs.worker",
        {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    while remaining:
        tried += 1
        died = {}
        at_once = count if tried == 1 else 1
        with WorkerPool(at_once, module, str(spec), **threads) as pool:
            for ended in pool.run(remaining.items()):
                if ended.answer is not None:
                    yield ended.name, ended.answer
                elif tried < attempts:
                    died[ended.name] = remaining[ended.name]
                else:
                    times = "once" if attempts == 1 else f"{attempts} times"
                    why = f"its worker died {times}, last {ended.death()}"
                    yield ended.name, {"error": why, "fix": _FIX}
        remaining = {name: remaining[name] for name in remaining if name in died}


def try_shard(job: ShardedJob, shard: ShardTask) -> dict[str, Any]:
    """Run a shard: {"manifest": …, "seconds": …}, or {"error": one line, "trace": traceback}.

    Edge   MemoryError is an error of the shard; interrupts are raised. On a full disk the result
           has "full": true, since no other shard could be written either.
    """
    try:
        manifest, seconds = run_shard(job, shard)
    except StammError as error:
        if error.__cause__ is not None and is_full(error.__cause__):
            return {"error": visible(error.what), "trace": "", "full": True}
        return {"error": error.line(), "trace": ""}
    except Exception as error:
        trace = traceback.format_exc()[-_LONGEST_TRACE:]
        return {"error": visible(f"{type(error).__name__}: {error}", 500), "trace": trace}
    return {"manifest": manifest, "seconds": seconds}


def main(spec: str, parent: str) -> int:
    """Run shards until the parent closes the pipe."""
    job = None

    def answer(task: dict[str, Any]) -> dict[str, Any]:
        nonlocal job
        try:
            job = job if job is not None and Path(spec).is_file() else load_job_spec(Path(spec))
        except StammError as error:
            return {"error": visible(error.what), "fix": error.fix}
        return try_shard(job, ShardTask(**task))

    return serve(parent, answer)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
