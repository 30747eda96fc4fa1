"""A comparison's run folder as one value: what each arm tried, trained and measured."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from stamm.base.errors import RunError
from stamm.reports.json_reader import Record, record_if_there, record_in
from stamm.reports.results import read_measured
from stamm.reports.run_data import Study, collect
from stamm.reports.training import Training, read_training
from stamm.runs.schemas.evaluation import HeldOutFile


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A short run: its learning rate and its loss at the end, None where it was no number."""

    rate: float
    loss_nats: float | None


@dataclass(frozen=True, kw_only=True)
class SeedRun:
    """A run that counts. held_out is None where it was not evaluated."""

    seed: int
    training: Training
    held_out: HeldOutFile | None

    @property
    def diverged(self) -> bool:
        """Whether its loss ended as no number, or above that of its first step."""
        if self.held_out is not None and not math.isfinite(self.held_out.overall.loss_nats):
            return True
        metrics, summary = self.training.metrics, self.training.summary
        if metrics is None or summary is None:
            return False
        steps, losses = metrics.loss.steps, metrics.loss.values
        # A step whose loss is no number has no line.
        if not steps or steps[-1] < summary.steps:
            return True
        last = losses[-max(len(losses) // 20, 1) :]
        return not math.fsum(last) / len(last) <= losses[0]


@dataclass(frozen=True, kw_only=True)
class ComparedArm:
    """One arm.

    number    its place, which gives its colour
    trials    by rising rate
    rate      that was chosen; None where it was not yet
    at_edge   whether it is the lowest or the highest of all that were tried
    tuning_seconds   of all short runs together, by their receipts
    """

    name: str
    number: int
    trials: tuple[Trial, ...]
    rate: float | None
    at_edge: bool
    runs: tuple[SeedRun, ...]
    tuning_seconds: float

    @property
    def diverged(self) -> tuple[int, ...]:
        """Seeds with which it diverged."""
        return tuple(one.seed for one in self.runs if one.diverged)

    def judged(self) -> dict[int, float]:
        """Held-out bits per byte by seed; infinite where the run diverged, whatever it left."""
        return {**self.bits(), **dict.fromkeys(self.diverged, math.inf)}

    def bits(self) -> dict[int, float]:
        """Held-out bits per byte by seed."""
        return {one.seed: one.held_out.overall.bits_per_byte for one in self.runs if one.held_out}

    def nats(self) -> dict[int, float]:
        """Held-out nats per token by seed."""
        return {one.seed: one.held_out.overall.loss_nats for one in self.runs if one.held_out}


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A comparison as far as it has come.

    study     the rest of its folder: manifest, corpus, steps
    matched   "parameters", "FLOPs" or "time"
    short     length of a short run, as a share
    """

    study: Study
    arms: tuple[ComparedArm, ...]
    baseline: str
    matched: str
    confidence: float
    seeds: tuple[int, ...]
    short: float


_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_MATCHED = {"EqualParameters": "parameters", "EqualFlops": "FLOPs", "EqualTime": "time"}


def is_comparison(run_folder: Path) -> bool:
    """Whether the folder was made by a comparison."""
    config = record_if_there(run_folder / "config.json", schema=1)
    if config is None or not config.has("config"):
        return False
    return {"arms", "baseline", "seeds", "tuning"} <= config.record("config").plain.keys()


def read_comparison(run_folder: Path) -> Compared:
    """The comparison in `run_folder`.

    Raises   RunError when the folder holds none; DataError when a file in it is not what it
             should be
    """
    if not is_comparison(run_folder):
        raise RunError(
            f"{run_folder} holds no comparison", fix="Name a folder that `stamm compare` wrote"
        )
    config = record_in(run_folder / "config.json", schema=1).record("config")
    study = collect(run_folder)
    # The page's own receipt comes after it: a page written again would differ by it.
    steps = tuple(step for step in study.steps if step[0] != "compare")
    study = replace(study, steps=steps)
    seeds = tuple(int(seed) for seed in config.numbers("seeds"))
    return Compared(
        study=study,
        arms=tuple(
            _arm(run_folder, _name(record), number, seeds, study)
            for number, record in enumerate(config.records("arms"))
        ),
        baseline=config.text("baseline"),
        matched=_matched(config),
        confidence=config.number("confidence"),
        seeds=seeds,
        short=config.record("tuning").number("length"),
    )


def _name(arm: Record) -> str:
    # It becomes part of a path.
    if not _NAME.fullmatch(arm.text("name")):
        raise arm.wrong("name", "a name of letters, digits, - and _")
    return arm.text("name")


def _matched(config: Record) -> str:
    matched = config.record("matched")
    kind = matched.text("kind")
    if kind not in _MATCHED:
        raise matched.wrong("kind", f"one of {', '.join(_MATCHED)}")
    return _MATCHED[kind]


def _arm(root: Path, name: str, number: int, seeds: tuple[int, ...], study: Study) -> ComparedArm:
    chosen = record_if_there(root / "tune" / name / "chosen" / "chosen.json", schema=1)
    folders = {seed: root / "final" / name / str(seed) for seed in seeds}
    return ComparedArm(
        name=name,
        number=number,
        trials=_trials(chosen) if chosen else (),
        rate=chosen.number("rate") if chosen else None,
        at_edge=chosen.flag("at_edge") if chosen else False,
        runs=tuple(
            SeedRun(
                seed=seed,
                training=read_training(folder),
                held_out=read_measured(folder).held_out,
            )
            for seed, folder in folders.items()
            if (folder / "summary.json").exists()
        ),
        tuning_seconds=math.fsum(s for step, s in study.steps if step.startswith(f"tune.{name}.")),
    )


def _trials(chosen: Record) -> tuple[Trial, ...]:
    return tuple(
        Trial(
            rate=one.number("rate"),
            loss_nats=one.number("loss_nats") if one.has("loss_nats") else None,
        )
        for one in chosen.records("trials")
    )
