"""Where the numbers of a run are shown: the doors to Trackio and wandb, and event files.

A tracker gets names, numbers and the facts it was given, and nothing else: not the code, the
packages, the account, the name of the machine or what it is doing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stamm.base.errors import RunError
from stamm.runs.event_file import EventFile
from stamm.runs.tracker_config import Mirror, TensorBoard, Trackio, WandB


class Tracker(Protocol):
    """A run in a tracker."""

    def tell(self, step: int, values: Mapping[str, float]) -> None:
        """The numbers of a step; steps rise."""

    def flush(self) -> None:
        """Let people see what was told."""

    def end(self) -> None:
        """Send all that was told."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What a tracker is told before the first number.

    folder   what it keeps on this machine stands below it
    name     for people
    code     of its own for every run, kept when the run goes on
    after    the step up to which it was told before; 0: nothing
    """

    folder: Path
    name: str
    code: str
    after: int
    facts: Mapping[str, Any]


def open_tracker(mirror: Mirror, opening: Opening) -> Tracker:
    """The run in its tracker, new or gone on with.

    Raises   RunError when the package is missing; whatever the package raises
    """
    match mirror:
        case TensorBoard():
            return _Events(opening)
        case Trackio():
            return _Trackio(mirror, opening)
        case WandB():
            return _WandB(mirror, opening)


def _missing(package: str) -> RunError:
    return RunError(f"{package} is not installed", fix=f"pip install 'stamm[{package}]'")


class _Events:
    def __init__(self, opening: Opening) -> None:
        self._file = EventFile(opening.folder / "tensorboard", opening.after, time.time())

    def tell(self, step: int, values: Mapping[str, float]) -> None:
        self._file.add(step, values, time.time())

    def flush(self) -> None:
        self._file.flush()

    def end(self) -> None:
        self._file.close()


class _Trackio:
    def __init__(self, mirror: Trackio, opening: Opening) -> None:
        try:
            import trackio
        except ImportError:
            raise _missing("trackio") from None
        # Trackio knows a run by its name: two run folders of one name must not become one run.
        self._run = trackio.init(
            project=mirror.project,
            name=f"{opening.name} {opening.code[:6]}",
            space_id=mirror.space or None,
            config=dict(opening.facts),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def tell(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """It sends every half second by itself."""

    def end(self) -> None:
        self._run.finish()


class _WandB:
    def __init__(self, mirror: WandB, opening: Opening) -> None:
        try:
            import wandb
        except ImportError:
            raise _missing("wandb") from None
        opening.folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            mode=mirror.mode,
            root_dir=str(opening.folder),
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
        # Online, a step that the server has is not taken a second time.
        self._run = wandb.init(
            project=mirror.project,
            entity=mirror.entity or None,
            name=opening.name,
            id=opening.code,
            resume="allow",
            config=dict(opening.facts),
            settings=settings,
        )

    def tell(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """Its own process sends."""

    def end(self) -> None:
        self._run.finish()
