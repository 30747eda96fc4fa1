"""Registry of the built-in evaluation tasks; other names are references to a user's task."""

from __future__ import annotations

from stamm.base.errors import ConfigError
from stamm.evaluate.blimp import BlimpTask
from stamm.evaluate.config import BuiltInTask
from stamm.evaluate.held_out import HeldOutTask
from stamm.evaluate.task import EvaluationTask, load_user_task

TASKS: dict[BuiltInTask, EvaluationTask] = {
    "held_out": HeldOutTask(),
    "blimp": BlimpTask(),
}


def load_tasks(names: tuple[str, ...]) -> list[EvaluationTask]:
    """The tasks of these names or references, in order.

    Raises   ConfigError for a reference that cannot be loaded, and for two tasks of one name.
    """
    built_in: dict[str, EvaluationTask] = dict(TASKS.items())
    tasks = [built_in[name] if name in built_in else load_user_task(name) for name in names]
    own = [task.name for task in tasks]
    twice = sorted({name for name in own if own.count(name) > 1})
    if twice:
        raise ConfigError(
            f"two tasks are called {twice[0]!r}, and would write the same files",
            where="evaluate.tasks",
            fix="Rename one of them",
        )
    return tasks
