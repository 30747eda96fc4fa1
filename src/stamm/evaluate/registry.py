"""Registry of the built-in evaluation tasks; other names are files, or references to a user's task."""

from __future__ import annotations

from pathlib import Path

from stamm.base.errors import ConfigError
from stamm.evaluate.blimp import BlimpTask
from stamm.evaluate.config import BuiltInTask, is_harness_file, is_task_file
from stamm.evaluate.file_task import FileTask
from stamm.evaluate.harness_task import HarnessTask
from stamm.evaluate.held_out import HeldOutTask
from stamm.evaluate.task import EvaluationTask, load_user_task
from stamm.evaluate.task_file import open_task

TASKS: dict[BuiltInTask, EvaluationTask] = {
    "held_out": HeldOutTask(),
    "blimp": BlimpTask(),
}


def load_tasks(names: tuple[str, ...], folder: str | None = None) -> list[EvaluationTask]:
    """The tasks of these names, files or references, in order.

    folder   with the data of tasks that are shipped without them

    Raises   ConfigError for a reference that cannot be loaded, for two tasks of one name, and for the
             name of a built-in one; and as `open_task`.
    """
    tasks = [_load(name, folder) for name in names]
    own = [task.name for task in tasks]
    for name, task in zip(names, tasks, strict=True):
        if task.name in TASKS and name != task.name:
            raise ConfigError(
                f"task {name} is called {task.name!r}, as a built-in one",
                where="evaluate.tasks",
                fix='Rename it: the file, or its "name"',
            )
    twice = sorted({name for name in own if own.count(name) > 1})
    if twice:
        raise ConfigError(
            f"two tasks are called {twice[0]!r}, and would write the same files",
            where="evaluate.tasks",
            fix="Rename one of them",
        )
    return tasks


def _load(name: str, folder: str | None) -> EvaluationTask:
    built_in: dict[str, EvaluationTask] = dict(TASKS.items())
    if name in built_in:
        return built_in[name]
    if is_harness_file(name):
        return HarnessTask(Path(name))
    return FileTask(open_task(name, folder)) if is_task_file(name) else load_user_task(name)
