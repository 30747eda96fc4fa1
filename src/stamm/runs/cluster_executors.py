"""Ranks on many machines, started by engines made for that: the doors to submitit and Ray.

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
from stamm.runs.executors import RayWork, SlurmWork
from stamm.runs.local_pool import Result, do_rank
from stamm.runs.sharded_job import Batch, Task, code_hash
from stamm.runs.worker import attempt

RANKS = ".slurm"


@dataclass(frozen=True)
class SubmittedRank:
    """A submitit job, the shards dealt to it, and the JSON file in which it leaves its results."""

    job: Any
    tasks: Sequence[Task]
    results: Path


_LOOK_EVERY_S = 1.0
_LATE_S = 15.0  # a network file system may show a rank's answer so long after its end
_AT_ONCE = 4000  # shards that Ray is told of; it looks at all of them each time one ends
_FIX = (
    "Read the logs; give the ranks more execution.hours or execution.memory_gib, and run the same "
    "command: the other shards are done"
)
_FIX_RAY = (
    "Raise execution.cpus, so that fewer shards share the memory of a machine, or remove these "
    "inputs, and run the same command: the other shards are done"
)
# Words in Slurm's refusals, and the settings that they are about.
_BLAMED = {
    "partition": "partition",
    "account ": "account",
    "qos": "qos",
    "array": "max_array_size",
    "submit limit": "tasks",
    "time limit": "hours",
    "memory": "memory_gib",
    "node configuration": "cpus",
}


def on_slurm(
    batch: Batch, plan: Path, execution: SlurmWork, say: Callable[[str], None]
) -> Generator[Result]:
    """What became of the shards, as ranks end. Those of lost ranks are submitted again.

    When the caller stops early, however it does, the ranks are cancelled.

    Edge     what a rank answers is taken over: nothing is done or hashed here.
    Raises   RunError when submitit is not installed or Slurm refuses the ranks.
    """
    executor = _executor(batch.folder / RANKS, execution)
    _cancel_forgotten(executor, say)
    if not execution.simulated:
        _see_accounts(say)
    left: Sequence[Task] = batch.tasks
    why: dict[str, str] = {}
    for number in range(1, execution.attempts + 1):
        if number > 1:
            say(
                f"{len(left)} shards are left of ranks that were lost, the last {why[left[-1].name]}"
                f". They are submitted again (attempt {number} of {execution.attempts})."
            )
        why = {}
        with _submitted(executor, plan, left, execution, say) as ranks:
            for tasks, answer in _answers(ranks):
                if isinstance(answer, str):
                    why |= {task.name: answer for task in tasks}
                else:
                    yield from answer
        left = [task for task in left if task.name in why]
        if not left:
            return
    for task in left:
        times = "once" if execution.attempts == 1 else f"{execution.attempts} times"
        yield task.name, {"error": f"its rank was lost {times}, last {why[task.name]}", "fix": _FIX}


def on_ray(batch: Batch, execution: RayWork) -> Generator[Result]:
    """Do every shard as a Ray task. A shard whose worker died is handed out again.

    Raises   RunError when Ray is not installed or the cluster does not answer.
    """
    ray = _engine("ray")
    try:
        ray.init(address=None if execution.address == "local" else execution.address)
    except ConnectionError as error:
        raise RunError(
            f"no Ray cluster answers at {execution.address}: {visible(str(error), 300)}",
            fix="Start one (`ray start --head`), or use execution=LocalWork",
        ) from None
    try:
        # Ray's own retries are endless where memory runs out; ours are counted.
        remote = ray.remote(num_cpus=execution.cpus, max_retries=0)(_attempt_there)
        shared = ray.put((code_hash(batch.rooms), str(Path.cwd()), replace(batch, tasks=())))
        waiting = iter([(task, 1) for task in batch.tasks])
        running: dict[Any, tuple[Task, int]] = {}
        again: list[tuple[Task, int]] = []
        while True:
            while len(running) < _AT_ONCE:
                given = next(waiting, None) or (again.pop() if again else None)
                if given is None:
                    break
                running[remote.remote(shared, given[0])] = given
            if not running:
                return
            (ready,), _ = ray.wait(list(running))
            task, tried = running.pop(ready)
            try:
                yield task.name, ray.get(ready)
            except ray.exceptions.RayError as error:
                if tried < execution.attempts:
                    again.append((task, tried + 1))
                else:
                    said = f"tried {tried} times, last: {visible(str(error), 300)}"
                    yield task.name, {"error": said, "fix": _FIX_RAY}
    finally:
        ray.shutdown()


def _attempt_there(shared: tuple[str, str, Batch], task: Task) -> dict[str, Any]:
    """`attempt` on another machine, which must have the same code; paths mean the same there."""
    code, folder, batch = shared
    if code != code_hash(batch.rooms):
        return {"error": "this worker's code of stamm is another: install the same everywhere"}
    with contextlib.chdir(folder):
        return attempt(batch, task)


def _executor(folder: Path, execution: SlurmWork) -> Any:
    submitit = _engine("submitit")
    if "%" in str(folder):
        raise RunError(
            f"Slurm would take the % in {folder} for a pattern", fix="Choose another run folder"
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
            fix="Run where sbatch is, or use execution=LocalWork",
        ) from None
    return executor


def _parameters(execution: SlurmWork) -> dict[str, Any]:
    chosen = {
        "job_name": "stamm",
        "time": _minutes(execution),
        "cpus_per_task": execution.cpus,
        "mem": f"{round(1024 * execution.memory_gib)}M",
        "array_parallelism": execution.tasks,
    }
    named = {name: getattr(execution, name) for name in ("partition", "account", "qos")}
    return chosen | {name: value for name, value in named.items() if value}


def _minutes(execution: SlurmWork) -> int:
    return max(1, math.ceil(60 * execution.hours))


def _see_accounts(say: Callable[[str], None]) -> None:
    """Warn where Slurm does not tell what became of a job."""
    try:
        asked = subprocess.run(
            ["sacct", "--noheader", "-j", "1"], capture_output=True, text=True, check=False
        )
        said = asked.stderr if asked.returncode else ""
    except OSError as error:
        said = str(error)
    if said:
        say(
            f"Slurm tells nothing of ended jobs (sacct: {said.strip()}): a lost rank is waited for."
        )


@contextlib.contextmanager
def _submitted(
    executor: Any,
    plan: Path,
    tasks: Sequence[Task],
    execution: SlurmWork,
    say: Callable[[str], None],
) -> Iterator[list[SubmittedRank]]:
    """The ranks that do `tasks`, in arrays that the cluster takes. None outlives the block."""
    world = min(execution.tasks, len(tasks))
    dealt = [tasks[rank::world] for rank in range(world)]
    ranks: list[SubmittedRank] = []
    try:
        for first in range(0, world, execution.max_array_size):
            part = dealt[first : first + execution.max_array_size]
            ranks += _submit(executor, plan, part, execution)
        jobs = ", ".join(dict.fromkeys(rank.job.job_id.partition("_")[0] for rank in ranks))
        say(f"{len(ranks)} ranks are submitted (job {jobs}), their logs: {executor.folder}")
        yield ranks
    except BaseException:
        if ranks:
            _cancel([rank.job for rank in ranks])
            for rank in ranks if execution.simulated else ():
                rank.job.wait()  # these end at once; Slurm takes its time, and they stop by themselves
            say(f"{len(ranks)} ranks were cancelled; the shards that are done stay done.")
        raise
    for rank in ranks:
        rank.job.paths.submission_file.unlink(missing_ok=True)


def _submit(
    executor: Any, plan: Path, dealt: Sequence[Sequence[Task]], execution: SlurmWork
) -> list[SubmittedRank]:
    files = [Path(executor.folder) / f"results-{secrets.token_hex(8)}.json" for _ in dealt]
    # submitit prints what sbatch said before it raises it.
    try:
        with contextlib.redirect_stderr(io.StringIO()), executor.batch():
            jobs = [
                executor.submit(
                    _leave_results,
                    str(file),
                    do_rank,
                    str(plan),
                    part,
                    execution.cpus,
                    execution.attempts,
                )
                for file, part in zip(files, dealt, strict=True)
            ]
    except (RuntimeError, FileNotFoundError) as error:
        said = " ".join(str(error).split())
        blamed = [
            f"execution.{name} = {getattr(execution, name)!r}"
            for word, name in _BLAMED.items()
            if word in said.lower()
        ]
        raise RunError(
            f"Slurm refuses {len(dealt)} ranks: {visible(said, 500)}",
            where=", ".join(blamed),
            fix="Change what it names (execution.*) and run the same command",
        ) from None
    return [SubmittedRank(*one) for one in zip(jobs, dealt, files, strict=True)]


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
) -> Iterator[tuple[Sequence[Task], list[Result] | str]]:
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
                yield rank.tasks, _answer(rank)
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
        return f"without an answer (state {visible(rank.job.state, 50)}); {log}"
    except (KeyError, TypeError, ValueError):
        return f"with results that are not those of shards; {log}"


def _cancel(jobs: Sequence[Any]) -> None:
    """Cancel ranks: an array by one word, those of this machine one by one."""
    arrays = {job.job_id.partition("_")[0]: job for job in jobs}
    for number, job in arrays.items():
        whole = job
        if job.job_id != number:
            whole = type(job)(folder=job.paths.folder, job_id=number)
        whole.cancel(check=False)
        job.paths.submission_file.unlink(missing_ok=True)


def _cancel_forgotten(executor: Any, say: Callable[[str], None]) -> None:
    """Cancel the arrays of a run that was killed before it could do so itself."""
    for path in sorted(executor.folder.glob("*_submission.sh")):
        number = path.name.partition("_")[0]
        say(f"Job {number} of a run that was killed is cancelled.")
        executor.job_class(folder=executor.folder, job_id=number).cancel(check=False)
        path.unlink()


def _engine(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise RunError(
            f"this execution needs {name}, which is not installed",
            fix=f"pip install {name}, or use execution=LocalWork",
        ) from None
