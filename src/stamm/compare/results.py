"""The run folder of a comparison as one value: trials, training and measurements of each arm."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from stamm.base.errors import RunError
from stamm.base.receipts import is_present
from stamm.base.schema import (
    FieldError,
    decode,
    read_lines,
    read_record,
    read_record_if_present,
)
from stamm.compare.config import LOOK
from stamm.compare.records import LookFile
from stamm.evaluate.records import DocumentLoss, HeldOutFile
from stamm.evaluate.results import read_held_out
from stamm.pretrain.records import ChosenRate, RateTrial
from stamm.pretrain.results import ArmTraining, read_training
from stamm.runs.records import ConfigFile
from stamm.runs.run_view import RunView, open_view
from stamm.statistics.variance_components import Documents


@dataclass(frozen=True, kw_only=True)
class SeedRun:
    """A full-length run; None where it was not evaluated.

    held_out    of the weights that the verdict is about
    documents   the same by document: bytes and nats
    final       of the final weights, where averaged ones are in the verdict
    """

    seed: int
    training: ArmTraining
    held_out: HeldOutFile | None
    documents: Documents = field(default_factory=dict)
    final: HeldOutFile | None = None

    def curve(self) -> dict[int, float]:
        """Training loss by step, in nats per kept token."""
        metrics = self.training.metrics
        return dict(zip(metrics.loss.steps, metrics.loss.values, strict=True)) if metrics else {}

    def plateau(self) -> tuple[int, int] | None:
        """First and last step at the peak of the learning rate; None where nothing was logged."""
        rates = self.training.metrics.learning_rate if self.training.metrics else None
        if rates is None or not rates.values:
            return None
        peak = max(rates.values)
        steps = [n for n, rate in zip(rates.steps, rates.values, strict=True) if rate == peak]
        return steps[0], steps[-1]

    @property
    def diverged(self) -> bool:
        """Whether the loss ended non-finite, or above that of the first step."""
        if self.held_out is not None and not math.isfinite(self.held_out.overall.loss_nats):
            return True
        metrics, summary = self.training.metrics, self.training.summary
        if metrics is None or summary is None:
            return False
        steps, losses = metrics.loss.steps, metrics.loss.values
        # A step with a non-finite loss has no line.
        if not steps or steps[-1] < summary.steps:
            return True
        last = losses[-max(len(losses) // 20, 1) :]
        return not math.fsum(last) / len(last) <= losses[0]


@dataclass(frozen=True, kw_only=True)
class ComparedArm:
    """One arm.

    number    its place, which gives its colour
    trials    by rising rate
    rate      chosen learning rate; None before the search is finished
    shape_factor   chosen factor of the rate of trained shapes; None where it was not tuned
    at_edge   whether the best of the trials is the lowest or the highest
    factor_at_edge   whether the chosen factor is
    tuning_seconds   of all short runs, from their receipts
    """

    name: str
    number: int
    trials: tuple[RateTrial, ...]
    rate: float | None
    shape_factor: float | None
    at_edge: bool
    factor_at_edge: bool
    runs: tuple[SeedRun, ...]
    tuning_seconds: float

    @property
    def diverged(self) -> tuple[int, ...]:
        """Seeds with which it diverged."""
        return tuple(run.seed for run in self.runs if run.diverged)

    def judged(self) -> dict[int, float]:
        """Held-out bits per byte by seed; infinite where the run diverged, whatever was recorded."""
        return {**self.bits(), **dict.fromkeys(self.diverged, math.inf)}

    def bits(self) -> dict[int, float]:
        """Held-out bits per byte by seed."""
        return {run.seed: run.held_out.overall.bits_per_byte for run in self.runs if run.held_out}

    def nats(self) -> dict[int, float]:
        """Held-out nats per token by seed."""
        return {run.seed: run.held_out.overall.loss_nats for run in self.runs if run.held_out}


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A comparison, finished or not.

    view      the rest of its folder: manifest, steps
    matched   "parameters", "FLOPs" or "time"
    scale     "EqualStart", "LearnedScale", or "" where the scale of blocks is not matched
    short     length of a short run, as a share
    looks     numbers of seeds after which a verdict was planned; () where none was
    stopped   the look that ended the comparison; None where none did
    """

    view: RunView
    arms: tuple[ComparedArm, ...]
    baseline: str
    matched: str
    scale: str
    confidence: float
    seeds: tuple[int, ...]
    short: float
    looks: tuple[int, ...] = ()
    stopped: int | None = None

    def by_seed(self, name: str) -> dict[int, float]:
        """Finite differences of an arm to the baseline, in bits per byte, in the order of seeds."""
        arms = {arm.name: arm.judged() for arm in self.arms}
        bits, base = arms[name], arms[self.baseline]
        pairs = {
            seed: bits[seed] - base[seed] for seed in self.seeds if seed in bits and seed in base
        }
        return {seed: value for seed, value in pairs.items() if math.isfinite(value)}

    def paired(self, name: str) -> list[float]:
        """The values of `by_seed`."""
        return list(self.by_seed(name).values())

    def finished(self) -> int:
        """Number of leading seeds that have a result of every arm."""
        results = [arm.judged().keys() for arm in self.arms]
        missing = (n for n, seed in enumerate(self.seeds) if any(seed not in r for r in results))
        return next(missing, len(self.seeds))

    def first(self, seeds: int) -> Compared:
        """The comparison as it was after its first `seeds` seeds."""
        counted = self.seeds[:seeds]
        arms = tuple(
            replace(arm, runs=tuple(run for run in arm.runs if run.seed in counted))
            for arm in self.arms
        )
        return replace(self, arms=arms, seeds=counted)


_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_MATCHED = {"EqualParameters": "parameters", "EqualFlops": "FLOPs", "EqualTime": "time"}


@dataclass(frozen=True, kw_only=True)
class _Name:
    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):  # it becomes part of a path
            raise FieldError("name", "a name of letters, digits, - and _")


@dataclass(frozen=True, kw_only=True)
class _Scale:
    kind: Literal["EqualStart", "LearnedScale"]


@dataclass(frozen=True, kw_only=True)
class _Matched:
    kind: str
    scale: _Scale | None = None

    def __post_init__(self) -> None:
        if self.kind not in _MATCHED:
            raise FieldError("kind", f"one of {', '.join(_MATCHED)}")


@dataclass(frozen=True, kw_only=True)
class _Tuning:
    length: float


@dataclass(frozen=True, kw_only=True)
class _ComparisonConfig:
    arms: tuple[_Name, ...]
    baseline: str
    matched: _Matched
    confidence: float
    seeds: tuple[int, ...]
    tuning: _Tuning
    looks: tuple[int, ...] = ()
    average: object = None


def is_comparison(run_folder: Path) -> bool:
    """Whether the folder was made by a comparison."""
    file = read_record_if_present(ConfigFile, run_folder / "config.json")
    config = file.config if file else None
    keys = config.keys() if isinstance(config, Mapping) else set()
    return {"arms", "baseline", "seeds", "tuning"} <= keys


def read_comparison(run_folder: Path) -> Compared:
    """The comparison in `run_folder`.

    Raises   RunError when the folder is not a comparison's; DataError when a file in it does not
             follow its schema
    """
    if not is_comparison(run_folder):
        raise RunError(
            f"{run_folder} holds no comparison", fix="Name a folder that `stamm compare` wrote"
        )
    path = run_folder / "config.json"
    plain = read_record(ConfigFile, path).config
    config: _ComparisonConfig = decode(_ComparisonConfig, plain, str(path), "config")
    view = open_view(run_folder)
    # The page's own receipt is written after the page: read here, it would change a second page.
    view = replace(view, steps=tuple(step for step in view.steps if step[0] != "compare"))
    return Compared(
        view=view,
        arms=tuple(
            _arm(run_folder, arm.name, number, config, view)
            for number, arm in enumerate(config.arms)
        ),
        baseline=config.baseline,
        matched=_MATCHED[config.matched.kind],
        scale=config.matched.scale.kind if config.matched.scale else "",
        confidence=config.confidence,
        seeds=config.seeds,
        short=config.tuning.length,
        looks=config.looks,
        stopped=_stopped(run_folder, config.looks),
    )


def _stopped(root: Path, looks: tuple[int, ...]) -> int | None:
    files = (read_record_if_present(LookFile, root / "looks" / str(n) / LOOK) for n in looks)
    return next((file.seeds for file in files if file and file.stop), None)


def _arm(
    root: Path, name: str, number: int, config: _ComparisonConfig, view: RunView
) -> ComparedArm:
    chosen = read_record_if_present(ChosenRate, root / "tune" / name / "chosen" / "chosen.json")
    folders = {seed: root / "final" / name / str(seed) for seed in config.seeds}
    return ComparedArm(
        name=name,
        number=number,
        trials=chosen.trials if chosen else (),
        rate=chosen.rate if chosen else None,
        shape_factor=chosen.shape_factor if chosen else None,
        at_edge=chosen.at_edge if chosen else False,
        factor_at_edge=chosen.factor_at_edge if chosen else False,
        runs=tuple(
            _run(folder, seed, config.average is not None)
            for seed, folder in folders.items()
            if is_present(folder / "summary.json")
        ),
        tuning_seconds=math.fsum(s for step, s in view.steps if step.startswith(f"tune.{name}.")),
    )


def _run(folder: Path, seed: int, averaged: bool) -> SeedRun:
    measured = folder / "averaged" if averaged else folder
    documents = measured / "evaluate" / "held_out_documents.jsonl"
    return SeedRun(
        seed=seed,
        training=read_training(folder),
        held_out=read_held_out(measured),
        documents={
            line.document_id: (line.bytes, line.nats)
            for line in (read_lines(DocumentLoss, documents) if is_present(documents) else ())
        },
        final=read_held_out(folder) if averaged else None,
    )
