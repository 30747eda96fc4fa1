"""Ranks on many machines, started by engines made for that: the doors to submitit and Ray.

Every machine must see the run folder and the inputs under the same paths.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from types import ModuleType
from typing import Any

from stamm.base.errors import RunError, visible
from stamm.runs.execution import RayWork, SlurmWork
from stamm.runs.tasks import PLAN, Batch
from stamm.runs.worker import attempt, do_rank

RANKS = ".slurm"
Result = tuple[str, dict[str, Any]]


def on_slurm(batch: Batch, execution: SlurmWork) -> Generator[Result]:
    """Submit the ranks as one job array, wait, submit again what a lost rank left, and collect.

    Raises   RunError when submitit is not installed or Slurm refuses the array.
    """
    submitit = _engine("submitit")
    folder = batch.folder / RANKS
    kind = submitit.LocalExecutor if execution.simulated else submitit.SlurmExecutor
    try:
        executor = kind(folder=str(folder))
        executor.update_parameters(**_parameters(execution))
    except (RuntimeError, NameError) as error:
        raise RunError(
            f"no job can be submitted: {visible(str(error), 300)}",
            fix="Run where sbatch is, or use execution=LocalWork",
        ) from None
    world = min(execution.tasks, len(batch.tasks))
    plan = str(batch.folder / PLAN)
    for _ in range(execution.attempts):
        with executor.batch():
            jobs = [executor.submit(do_rank, plan, rank, world) for rank in range(world)]
        lost = [job for job in jobs if _lost(job)]  # every rank is waited for
        if not lost:
            break
    # Whoever did a shard, its manifest is looked at here; what still is missing is done or told.
    for task in batch.tasks:
        yield task.name, attempt(batch, task)


def on_ray(batch: Batch, execution: RayWork) -> Generator[Result]:
    """Do every shard as a Ray task; Ray itself starts again those whose worker died.

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
        remote = ray.remote(num_cpus=execution.cpus, max_retries=execution.attempts - 1)(attempt)
        names = {remote.remote(batch, task): task.name for task in batch.tasks}
        while names:
            (ready,), _ = ray.wait(list(names))
            name = names.pop(ready)
            try:
                yield name, ray.get(ready)
            except ray.exceptions.RayError as error:
                yield name, {"error": visible(str(error), 300)}
    finally:
        ray.shutdown()


def _parameters(execution: SlurmWork) -> dict[str, Any]:
    if execution.simulated:
        return {"timeout_min": int(60 * execution.hours)}
    chosen = {
        "time": int(60 * execution.hours),
        "cpus_per_task": execution.cpus,
        "mem": f"{round(1024 * execution.memory_gib)}M",
        "array_parallelism": execution.tasks,
    }
    return chosen | ({"partition": execution.partition} if execution.partition else {})


def _lost(job: Any) -> bool:
    """Whether a rank ended without its own answer: its shards may be half done."""
    try:
        job.result()
    except Exception:  # submitit raises what the rank raised, or an error of its own for a lost one
        return True
    return False


def _engine(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise RunError(
            f"this execution needs {name}, which is not installed",
            fix=f"pip install {name}, or use execution=LocalWork",
        ) from None
