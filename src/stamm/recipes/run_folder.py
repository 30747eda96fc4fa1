"""Read a run folder: its arms, manifest, configuration, metrics and results."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stamm.base.config import nearest
from stamm.base.errors import DataError, RunError
from stamm.base.files import read_json
from stamm.runs.arms import trained_arms
from stamm.runs.metrics import read_metrics
from stamm.runs.model_outputs import KEY, check_same_weights
from stamm.runs.run import shown_state

_PAGES = ("comparison.html", "report.html")


@dataclass(frozen=True)
class RunFolder:
    """A run folder on disk. Files are read on access; nothing is written.

    root        the folder
    execution   the `RecipeRun` of `stamm.run` with its steps; None for a folder that is only read. Of a
                dry run the folder need not exist
    """

    root: Path
    execution: Any = field(default=None, repr=False, compare=False)

    def __init__(self, root: str | os.PathLike[str], execution: Any = None) -> None:
        object.__setattr__(self, "root", Path(root))
        object.__setattr__(self, "execution", execution)
        if execution is None and not (self.root / "config.json").is_file():
            raise RunError(f"{self.root} is not a run folder", fix="`stamm ls runs` lists them")

    def __fspath__(self) -> str:
        return str(self.root)

    @property
    def state(self) -> str:
        """ "complete", "running" (by another process), or "interrupted"."""
        return shown_state(self.root, str(self.manifest.get("state", "")))

    @property
    def manifest(self) -> dict[str, Any]:
        """manifest.json: command, commit, versions, hardware, steps."""
        return _object(self.root / "manifest.json")

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, as plain values."""
        stored = _object(self.root / "config.json")
        config: dict[str, Any] = stored.get("config", stored)
        return config

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms with a trained model; () for a corpus, or before training."""
        return tuple(path.name for path in trained_arms(self.root))

    @property
    def report(self) -> Path | None:
        """The run's HTML page; None before it is written."""
        return next((self.root / page for page in _PAGES if (self.root / page).is_file()), None)

    def arm(self, name: str = "") -> Path:
        """The folder of one arm; `name` may be left out when there is only one.

        Raises   RunError for an unknown name, for several arms without a name, or for no arm.
        """
        arms = {path.name: path for path in trained_arms(self.root)}
        if not arms:
            raise RunError(f"{self.root} holds no trained model", fix="Finish its run first")
        if not name and len(arms) == 1:
            return next(iter(arms.values()))
        if name not in arms:
            problem = f"has no arm {name!r}" if name else f"has {len(arms)} arms"
            raise RunError(
                f"{self.root} {problem}",
                fix=nearest(name, arms) if name else f"Name one: {', '.join(arms)}",
            )
        return arms[name]

    def metrics(self, arm: str = "") -> list[dict[str, Any]]:
        """Training metrics of an arm, one dict per logged step, each with "step"."""
        return read_metrics(self.arm(arm) / "metrics.jsonl")

    def result(self, file: str, arm: str = "") -> dict[str, Any]:
        """A JSON result of an arm: "summary.json", "evaluate/held_out.json", ...

        Raises   DataError when the arm has no such file, or it was made from other weights than the
                 arm's model holds.
        """
        path = self.arm(arm) / file
        record = _object(path)
        check_same_weights(record.get(KEY), str(path), self.arm(arm) / "model")
        return record


def open_run(folder: str | os.PathLike[str]) -> RunFolder:
    """The run folder at `folder`.

    Raises   RunError when it is not a run folder.
    """
    return RunFolder(folder)


def _object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path} holds {json.dumps(value)[:40]}, not a JSON object")
    return value
