"""Executors on clusters: Slurm through submitit, and Ray.

Every machine must see the run folder and the inputs under the same paths.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import secrets
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from stamm.base.errors import DataError, RunError, visible
from stamm.base.files import read_json, write_json
from stamm.runs.executors import RayExecutor, SlurmExecutor
from stamm.runs.sharded_job import ShardedJob, ShardTask, code_hash
from stamm.runs.torchrun_env import outside_slurm_job
from stamm.runs.worker import Result, run_rank, try_shard

RANKS = ".slurm"
_LOOK_EVERY_S = 1.0
_LATE_S = 15.0  # a network file system may show a rank's results this late
_AT_ONCE = 4000  # Ray tasks in flight; ray.wait examines all of them each time one ends
_FIX = (
    "Read the logs, increase execution.hours or execution.memory_gib, and run the same command: the "
    "other shards are complete"
)
_FIX_RAY = (
    "Increase execution.cpus, so that fewer shards share the memory of a machine, or remove these "
    "inputs, and run the same command: the other shards are complete"
)
# Substrings of Slurm's error messages, and the settings that they refer to.
_SETTING_OF = {
    "partition": "partition",
    "account ": "account",
    "qos": "qos",
    "array": "max_array_size",
    "submit limit": "tasks",
    "time limit": "hours",
    "memory": "memory_gib",
    "node configuration": "cpus",
}


@dataclass(frozen=True)
class SubmittedRank:
    """A submitit job, its shards, and the JSON file of its results."""

    job: Any
    shards: Sequence[ShardTask]
    results: Path


def run_on_slurm(
    job: ShardedJob, spec: Path, execution: SlurmExecutor, log: Callable[[str], None]
) -> Generator[Result]:
    """Results of the shards, as ranks end; the shards of lost ranks are submitted again.

    When the caller stops early, for any reason, the ranks are cancelled.

    Edge     the results of ranks are returned as they are: nothing is processed or hashed here
    Raises   RunError when submitit is not installed or Slurm refuses the ranks.
    """
    executor = _executor(job.folder / RANKS, execution)
    _cancel_left_over(executor, log)
    if not execution.simulated:
        _check_accounting(log)
    remaining: Sequence[ShardTask] = job.shards
    why: dict[str, str] = {}
    for number in range(1, execution.attempts + 1):
        if number > 1:
            log(
                f"{len(remaining)} shards of lost ranks remain, the last {why[remaining[-1].name]}"
                f". They are submitted again (attempt {number} of {execution.attempts})."
            )
        why = {}
        with _submitted(executor, spec, remaining, execution, log) as ranks:
            for shards, answer in _answers(ranks):
                if isinstance(answer, str):
                    why |= {shard.name: answer for shard in shards}
                else:
                    yield from answer
        remaining = [shard for shard in remaining if shard.name in why]
        if not remaining:
            return
    for shard in remaining:
        times = "once" if execution.attempts == 1 else f"{execution.attempts} times"
        yield (
            shard.name,
            {"error": f"its rank was lost {times}, last {why[shard.name]}", "fix": _FIX},
        )


def run_on_ray(job: ShardedJob, execution: RayExecutor) -> Generator[Result]:
    """Process every shard as a Ray task; a shard whose worker died is retried.

    Raises   RunError when Ray is not installed or the cluster does not answer.
    """
    ray = _import("ray")
    try:
        ray.init(address=None if execution.address == "local" else execution.address)
    except ConnectionError as error:
        raise RunError(
            f"no Ray cluster answers at {execution.address}: {visible(str(error), 300)}",
            fix="Start one (`ray start --head`), or use execution=LocalExecutor",
        ) from None
    try:
        # Ray retries without limit when memory runs out; these retries are counted.
        remote = ray.remote(num_cpus=execution.cpus, max_retries=0)(_try_on_ray)
        shared = ray.put((code_hash(job.code_packages), str(Path.cwd()), replace(job, shards=())))
        waiting = iter([(shard, 1) for shard in job.shards])
        running: dict[Any, tuple[ShardTask, int]] = {}
        again: list[tuple[ShardTask, int]] = []
        while True:
            while len(running) < _AT_ONCE:
                given = next(waiting, None) or (again.pop() if again else None)
                if given is None:
                    break
                running[remote.remote(shared, given[0])] = given
            if not running:
                return
            (ready,), _ = ray.wait(list(running))
            shard, tried = running.pop(ready)
            try:
                yield shard.name, ray.get(ready)
            except ray.exceptions.RayError as error:
                if tried < execution.attempts:
                    again.append((shard, tried + 1))
                else:
                    said = f"tried {tried} times, last: {visible(str(error), 300)}"
                    yield shard.name, {"error": said, "fix": _FIX_RAY}
    finally:
        ray.shutdown()


def _try_on_ray(shared: tuple[str, str, ShardedJob], shard: ShardTask) -> dict[str, Any]:
    """`try_shard` on another machine, which must have the same code and see the same paths."""
    code, folder, job = shared
    if code != code_hash(job.code_packages):
        return {
            "error": "this worker has other code of stamm: install the same version on every machine"
        }
    with contextlib.chdir(folder):
        return try_shard(job, shard)


def _executor(folder: Path, execution: SlurmExecutor) -> Any:
    submitit = _import("submitit")
    if "%" in str(folder.absolute()):
        raise RunError(
            f"Slurm would expand the % in {folder.absolute()}", fix="Choose another run folder"
        )
    try:
        if execution.simulated:
            executor = submitit.LocalExecutor(folder=str(folder))
            executor.update_parameters(timeout_min=_minutes(execution))
        else:
            executor = submitit.SlurmExecutor(folder=str(folder))
            executor.update_parameters(**_parameters(execution))
    except (RuntimeError, NameError) as error:
        raise RunError(
            f"no job can be submitted: {visible(str(error), 300)}",
            fix="Run on a host with sbatch, or use execution=LocalExecutor",
        ) from None
    return executor


def _parameters(execution: SlurmExecutor) -> dict[str, Any]:
    chosen = {
        "job_name": "stamm",
        "time": _minutes(execution),
        "cpus_per_task": execution.cpus,
        "mem": f"{round(1024 * execution.memory_gib)}M",
        "array_parallelism": execution.tasks,
    }
    named = {name: getattr(execution, name) for name in ("partition", "account", "qos")}
    return chosen | {name: value for name, value in named.items() if value}


def _minutes(execution: SlurmExecutor) -> int:
    return max(1, math.ceil(60 * execution.hours))


def _check_accounting(log: Callable[[str], None]) -> None:
    """Warn when Slurm has no accounting of ended jobs."""
    try:
        done = subprocess.run(
            ["sacct", "--noheader", "-j", "1"], capture_output=True, text=True, check=False
        )
        said = done.stderr if done.returncode else ""
    except OSError as error:
        said = str(error)
    if said:
        log(f"Slurm has no accounting (sacct: {said.strip()}): lost ranks are not detected.")


@contextlib.contextmanager
def _submitted(
    executor: Any,
    spec: Path,
    shards: Sequence[ShardTask],
    execution: SlurmExecutor,
    log: Callable[[str], None],
) -> Iterator[list[SubmittedRank]]:
    """Submit ranks for `shards`, in arrays that the cluster accepts; on an error all are cancelled."""
    world = min(execution.tasks, len(shards))
    groups = [shards[rank::world] for rank in range(world)]
    ranks: list[SubmittedRank] = []
    try:
        for first in range(0, world, execution.max_array_size):
            part = groups[first : first + execution.max_array_size]
            ranks += _submit(executor, spec, part, execution)
        jobs = ", ".join(dict.fromkeys(rank.job.job_id.partition("_")[0] for rank in ranks))
        log(f"{len(ranks)} ranks submitted (job {jobs}); logs: {executor.folder}")
        yield ranks
    except BaseException:
        if ranks:
            _cancel([rank.job for rank in ranks])
            for rank in ranks if execution.simulated else ():
                rank.job.wait()  # immediate; Slurm's ranks stop later by themselves
            log(f"{len(ranks)} ranks were cancelled; complete shards are kept.")
        raise
    for rank in ranks:
        rank.job.paths.submission_file.unlink(missing_ok=True)


def _submit(
    executor: Any, spec: Path, groups: Sequence[Sequence[ShardTask]], execution: SlurmExecutor
) -> list[SubmittedRank]:
    files = [Path(executor.folder) / f"results-{secrets.token_hex(8)}.json" for _ in groups]
    # submitit prints the message of sbatch before it raises it.
    try:
        with contextlib.redirect_stderr(io.StringIO()), outside_slurm_job(), executor.batch():
            jobs = [
                executor.submit(
                    _leave_results,
                    str(file),
                    run_rank,
                    str(spec),
                    part,
                    execution.cpus,
                    execution.attempts,
                )
                for file, part in zip(files, groups, strict=True)
            ]
    except (RuntimeError, FileNotFoundError) as error:
        message = " ".join(str(error).split())
        settings = [
            f"execution.{name} = {getattr(execution, name)!r}"
            for word, name in _SETTING_OF.items()
            if word in message.lower()
        ]
        raise RunError(
            f"Slurm refuses {len(groups)} ranks: {visible(message, 500)}",
            where=", ".join(settings),
            fix="Change these settings (execution.*) and run the same command",
        ) from None
    return [SubmittedRank(*fields) for fields in zip(jobs, groups, files, strict=True)]


def _leave_results(file: str, work: Callable[..., list[Result]], *arguments: Any) -> None:
    """Run `work` in a rank and write its results, or the error that it raised, to `file` as JSON.

    submitit pickles what a rank returns; that file is never read.
    """
    try:
        answer: dict[str, Any] = {"results": work(*arguments)}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        write_json(Path(file), answer)


def _answers(
    ranks: Sequence[SubmittedRank],
) -> Iterator[tuple[Sequence[ShardTask], list[Result] | str]]:
    """Each rank's shards and its results, or why it was lost, in the order in which ranks end."""
    waiting = dict(enumerate(ranks))
    ended: dict[int, float] = {}
    while waiting:
        for number, rank in list(waiting.items()):
            if not rank.job.done():
                ended.pop(number, None)  # Slurm may queue a rank again
                continue
            now = time.monotonic()
            if rank.results.exists() or now - ended.setdefault(number, now) >= _LATE_S:
                del waiting[number]
                yield rank.shards, _answer(rank)
        if waiting:
            time.sleep(_LOOK_EVERY_S)


def _answer(rank: SubmittedRank) -> list[Result] | str:
    """The results of a rank that ended, or why it was lost."""
    log = f"its log: {rank.job.paths.stderr}"
    try:
        answer = read_json(rank.results)
        if "error" in answer:
            return f"with {visible(str(answer['error']), 300)}; {log}"
        return [(str(name), dict(result)) for name, result in answer["results"]]
    except DataError:
        return f"without results (state {visible(rank.job.state, 50)}); {log}"
    except (KeyError, TypeError, ValueError):
        return f"with results that are not those of shards; {log}"


def _cancel(jobs: Sequence[Any]) -> None:
    """Cancel ranks: arrays with one command, ranks of this machine one by one."""
    arrays = {job.job_id.partition("_")[0]: job for job in jobs}
    for number, job in arrays.items():
        whole = job
        if job.job_id != number:
            whole = type(job)(folder=job.paths.folder, job_id=number)
        whole.cancel(check=False)
        job.paths.submission_file.unlink(missing_ok=True)


def _cancel_left_over(executor: Any, log: Callable[[str], None]) -> None:
    """Cancel the arrays of a run that was killed before it could cancel them."""
    for path in sorted(executor.folder.glob("*_submission.sh")):
        number = path.name.partition("_")[0]
        log(f"Cancelling job {number} of a killed run.")
        executor.job_class(folder=executor.folder, job_id=number).cancel(check=False)
        path.unlink()


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise RunError(
            f"this execution needs {name}, which is not installed",
            fix=f"pip install {name}, or use execution=LocalExecutor",
        ) from None
