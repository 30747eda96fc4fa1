"""The jobs of a run by kind of step, and other heavy code of recipes, imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stamm.base.extras import missing_library
from stamm.base.shutdown import interrupt_delayed
from stamm.recipes.step_kinds import STEP_KINDS
from stamm.runs.run import Job

if TYPE_CHECKING:
    from stamm.engine.coordinator import StepBroadcaster

WORKER = "stamm.recipes.step_worker"


def job(kind: str) -> Job:
    """The function that runs a step of this kind.

    Raises   RunError when a library that it needs is not installed.
    """
    module, _, function = STEP_KINDS[kind].job.partition(":")
    step_job: Job = getattr(loaded(module), function)
    return step_job


def coordinator() -> StepBroadcaster:
    """The connection between the processes of torchrun, opened in this process."""
    broadcaster: StepBroadcaster = loaded("stamm.engine.coordinator").StepBroadcaster()
    return broadcaster


def loaded(module: str) -> Any:
    """A module whose libraries take seconds to load, such as torch: imported where it is used.

    Raises   RunError when a library that it needs is not installed.
    """
    try:
        with interrupt_delayed():
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = missing_library(error)
        if missing is None:
            raise
        raise missing from error
