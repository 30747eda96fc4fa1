"""Learning-rate schedules and batch-size stages, by the number of sequences trained on. No torch here."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from stamm.base.bounds import AtLeastOne, Natural, Positive, Share
from stamm.base.config import Bounded, validate


@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay:
    """Warmup-stable-decay (WSD): warm-up, constant, then a cooldown lr = low + (peak - low) law(t), t from 0 to 1.

    peak               highest learning rate
    final_share        learning rate at the end, low, as a fraction of the peak rate
    warmup_sequences   length of the warm-up, in sequences; a shorter run is all warm-up
    warmup_from        learning rate at its start, as a fraction of the peak rate
    decay_sequences    length of the cooldown, in sequences; None means decay_share of the run
    law                "1-sqrt" 1 - sqrt(t), "linear" 1 - t, "cosine" (1 + cos(pi t)) / 2
    Edge               where the two overlap, the cooldown is shortened and starts at the end of the
                       warm-up: the rate reaches the peak in every run
    Source             Hägele et al. 2024 (arXiv 2405.18392). Apertus' report starts its warm-up at
                       0.1 of the peak (arXiv 2509.14233), the scripts it was trained with at 0
    Checked            tests/unit/optim/test_schedules.py
    """

    peak: Positive = 1e-3
    final_share: Share = 0.0
    warmup_sequences: Natural = 0
    warmup_from: Share = 0.0
    decay_sequences: Natural | None = None
    decay_share: Share = 0.2
    law: Literal["1-sqrt", "linear", "cosine"] = "1-sqrt"

    def __post_init__(self) -> None:
        validate(self, ("law", self.law in _LAWS, f"must be one of {', '.join(_LAWS)}"))

    def unread(self) -> tuple[str, ...]:
        """Fields that the others leave unread."""
        return _without_warmup(self) + (() if self.decay_sequences is None else ("decay_share",))

    def decay_start(self, total: int) -> int:
        """The sequence at which the cooldown begins, in a run of `total` sequences."""
        length = self.decay_sequences
        start = total - (round(self.decay_share * total) if length is None else length)
        return max(start, min(self.warmup_sequences, total))

    def rate(self, sequence: int, total: int) -> float:
        """Learning rate after `sequence` of `total` sequences; `step_rate` is that of a step."""
        if sequence < min(self.warmup_sequences, total):
            return _warming(self, sequence, total)
        start = self.decay_start(total)
        if sequence <= start or start >= total:
            return self.peak
        return _cooling(self, self.law, (sequence - start) / (total - start))


@dataclass(frozen=True, kw_only=True)
class Cosine(Bounded):
    """Linear warm-up, then half a cosine from the peak to final_share of it.

    warmup_sequences   length of the warm-up, in sequences; a shorter run is all warm-up
    warmup_from        learning rate at its start, as a fraction of the peak rate
    """

    peak: Positive = 1e-3
    final_share: Share = 0.1
    warmup_sequences: Natural = 0
    warmup_from: Share = 0.0

    def unread(self) -> tuple[str, ...]:
        """Fields that the others leave unread."""
        return _without_warmup(self)

    def decay_start(self, total: int) -> int:
        """The sequence at which the rate begins to fall, in a run of `total` sequences."""
        return min(self.warmup_sequences, total)

    def rate(self, sequence: int, total: int) -> float:
        """Learning rate after `sequence` of `total` sequences; `step_rate` is that of a step."""
        warmup = self.decay_start(total)
        if sequence < warmup:
            return _warming(self, sequence, total)
        return _cooling(self, "cosine", (sequence - warmup) / max(total - warmup, 1))


@dataclass(frozen=True, kw_only=True)
class ConstantRate(Bounded):
    """Linear warm-up, then the peak to the end; a cooldown can be branched off any checkpoint.

    warmup_sequences   length of the warm-up, in sequences; a shorter run is all warm-up
    warmup_from        learning rate at its start, as a fraction of the peak rate
    """

    peak: Positive = 1e-3
    warmup_sequences: Natural = 0
    warmup_from: Share = 0.0

    def unread(self) -> tuple[str, ...]:
        """Fields that the others leave unread."""
        return _without_warmup(self)

    def decay_start(self, total: int) -> int:
        """The end of the run: the rate never falls."""
        return total

    def rate(self, sequence: int, total: int) -> float:
        """Learning rate after `sequence` of `total` sequences; `step_rate` is that of a step."""
        warming = sequence < min(self.warmup_sequences, total)
        return _warming(self, sequence, total) if warming else self.peak


Schedule = WarmupStableDecay | Cosine | ConstantRate


def step_rate(schedule: Schedule, first: int, size: int, total: int) -> float:
    """Learning rate of the step that trains on sequences first .. first + size - 1 of `total`.

    It is the rate at the end of the step. A fall to 0 is taken at its start, so that the last step is
    not lost: of N steps that fall linearly, step i = 0, 1, .. has peak (N - i) / N.
    """
    end, start = first + size, schedule.decay_start(total)
    falls_to_zero = not isinstance(schedule, ConstantRate) and schedule.final_share == 0
    position = max(first, start) if falls_to_zero and end > start else end
    return schedule.rate(position, total)


_LAWS: dict[str, Callable[[float], float]] = {
    "1-sqrt": lambda t: 1.0 - math.sqrt(t),
    "linear": lambda t: 1.0 - t,
    "cosine": lambda t: 0.5 * (1.0 + math.cos(math.pi * t)),
}


def _without_warmup(config: Schedule) -> tuple[str, ...]:
    return () if config.warmup_sequences else ("warmup_from",)


def _warming(config: Schedule, sequence: int, total: int) -> float:
    share = sequence / min(config.warmup_sequences, total)
    return config.peak * (config.warmup_from + (1.0 - config.warmup_from) * share)


def _cooling(config: WarmupStableDecay | Cosine, law: str, share: float) -> float:
    low = config.peak * config.final_share
    return low + (config.peak - low) * _LAWS[law](min(share, 1.0))


@dataclass(frozen=True, kw_only=True)
class BatchStage(Bounded):
    """From sequence `start` on, `size` sequences make a step."""

    MAIN_FIELD: ClassVar = "size"

    start: Natural = 0
    size: AtLeastOne = 16


@dataclass(frozen=True)
class StepSpan:
    """One optimisation step: it trains on sequences first .. first + size - 1."""

    first: int
    size: int


class BatchPlan:
    """Sequences of each step. Steps count from 0.

    partial_last_step   whether the sequences that do not fill a last step make a smaller one;
                        otherwise they are left out
    """

    def __init__(
        self,
        stages: tuple[BatchStage, ...],
        total_sequences: int,
        *,
        partial_last_step: bool = False,
    ) -> None:
        self._stages = sorted(stages, key=lambda stage: stage.start)
        self._steps_before: list[int] = []
        steps = 0
        for index, stage in enumerate(self._stages):
            self._steps_before.append(steps)
            last = index + 1 == len(self._stages)
            end = total_sequences if last else min(self._stages[index + 1].start, total_sequences)
            full, rest = divmod(max(end - stage.start, 0), stage.size)
            steps += full + (partial_last_step and rest > 0)
        self.num_steps = steps
        self._end = total_sequences if partial_last_step else sys.maxsize

    def step(self, index: int) -> StepSpan:
        """The span of step `index`, in constant time per stage."""
        for stage, before in zip(reversed(self._stages), reversed(self._steps_before), strict=True):
            if index >= before:
                first = stage.start + (index - before) * stage.size
                return StepSpan(first, min(stage.size, self._end - first))
        raise IndexError(index)

    def step_of(self, sequence: int) -> int | None:
        """The step that trains on a sequence; None for one that is left out."""
        for stage, before in zip(reversed(self._stages), reversed(self._steps_before), strict=True):
            if sequence >= stage.start:
                index = before + (sequence - stage.start) // stage.size
                known = index < self.num_steps and sequence < self._end
                return index if known and self.step(index).first <= sequence else None
        return None
