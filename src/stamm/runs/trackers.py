"""Adapters of trackers: TensorBoard event files, Trackio and wandb.

A tracker receives metric names, numbers and the facts it is given; not the code, the packages, the
account, the machine or its load.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stamm.base.errors import RunError
from stamm.runs.event_file import EventFile
from stamm.runs.tracker_config import TensorBoard, TrackerConfig, Trackio, WandB


class Tracker(Protocol):
    """A run in a tracker."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add the metrics of a step; steps increase."""

    def flush(self) -> None:
        """Make the logged steps visible."""

    def finish(self) -> None:
        """Send everything that was logged."""


@dataclass(frozen=True, kw_only=True)
class TrackerRun:
    """Description of a run for a tracker, sent before the first step.

    folder   parent of the files that it keeps on this machine
    name     display name
    run_id   unique; the same when the run is resumed
    after    last step that was logged before; 0: none
    """

    folder: Path
    name: str
    run_id: str
    after: int
    facts: Mapping[str, Any]


def open_tracker(config: TrackerConfig, run: TrackerRun) -> Tracker:
    """Start or resume the run in its tracker.

    Raises   RunError when the package is missing; whatever the package raises
    """
    match config:
        case TensorBoard():
            return _TensorBoardRun(run)
        case Trackio():
            return _TrackioRun(config, run)
        case WandB():
            return _WandBRun(config, run)


def _missing(package: str) -> RunError:
    return RunError(f"{package} is not installed", fix=f"pip install 'stamm[{package}]'")


class _TensorBoardRun:
    def __init__(self, run: TrackerRun) -> None:
        self._file = EventFile(run.folder / "tensorboard", run.after, time.time())

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._file.add(step, values, time.time())

    def flush(self) -> None:
        self._file.flush()

    def finish(self) -> None:
        self._file.close()


class _TrackioRun:
    def __init__(self, config: Trackio, run: TrackerRun) -> None:
        try:
            import trackio
        except ImportError:
            raise _missing("trackio") from None
        # Trackio identifies a run by its name: two run folders of one name must not become one run.
        self._run = trackio.init(
            project=config.project,
            name=f"{run.name} {run.run_id[:6]}",
            space_id=config.space or None,
            config=dict(run.facts),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """Do nothing: Trackio sends every half second."""

    def finish(self) -> None:
        self._run.finish()


class _WandBRun:
    def __init__(self, config: WandB, run: TrackerRun) -> None:
        try:
            import wandb
        except ImportError:
            raise _missing("wandb") from None
        run.folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            mode=config.mode,
            root_dir=str(run.folder),
            host="stamm",
            console="off",
            silent=True,
            save_code=False,
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        # Online, the server ignores a step that it has already.
        self._run = wandb.init(
            project=config.project,
            entity=config.entity or None,
            name=run.name,
            id=run.run_id,
            resume="allow",
            config=dict(run.facts),
            settings=settings,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """Do nothing: wandb's own process sends."""

    def finish(self) -> None:
        self._run.finish()
