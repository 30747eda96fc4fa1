"""Learning rate and batch size as functions of the sequences trained on so far. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay:
    """Linear warm-up, a flat stretch, then a cooldown lr = low + (peak - low)(1 - sqrt(t)).

    peak               highest learning rate
    final_share        learning rate at the end, as a share of the peak
    warmup_sequences   length of the warm-up, in sequences; a shorter run is all warm-up
    decay_sequences    length of the cooldown, in sequences; None means decay_share of the run
    Edge               where the two overlap the warm-up stays whole and the cooldown, shortened,
                       begins at its end: the rate reaches the peak in every run
    Source             Hägele et al. 2024 (arXiv 2405.18392)
    Checked            tests/unit/optim/test_schedules.py
    """

    peak: float = 1e-3
    final_share: float = 0.0
    warmup_sequences: int = 0
    decay_sequences: int | None = None
    decay_share: float = 0.2

    def __post_init__(self) -> None:
        length = self.decay_sequences
        validate(
            self,
            *_rate_checks(self),
            ("decay_sequences", length is None or length >= 0, "must not be negative"),
            ("decay_share", 0 <= self.decay_share <= 1, _SHARE),
        )

    def decay_start(self, total: int) -> int:
        """The sequence at which the cooldown begins, in a run of `total` sequences."""
        length = self.decay_sequences
        start = total - (round(self.decay_share * total) if length is None else length)
        return max(start, min(self.warmup_sequences, total))

    def rate(self, sequence: int, total: int) -> float:
        """Learning rate of the step that ends at `sequence` of `total`."""
        low = self.peak * self.final_share
        warmup = min(self.warmup_sequences, total)
        if sequence < warmup:
            return self.peak * sequence / warmup
        start = self.decay_start(total)
        if sequence <= start or start >= total:
            return self.peak
        share = min((sequence - start) / (total - start), 1.0)
        return low + (self.peak - low) * (1.0 - math.sqrt(share))


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Linear warm-up, then half a cosine from the peak to final_share of it.

    warmup_sequences   length of the warm-up, in sequences; a shorter run is all warm-up
    """

    peak: float = 1e-3
    final_share: float = 0.1
    warmup_sequences: int = 0

    def __post_init__(self) -> None:
        validate(self, *_rate_checks(self))

    def decay_start(self, total: int) -> int:
        """The sequence at which the rate begins to fall, in a run of `total` sequences."""
        return min(self.warmup_sequences, total)

    def rate(self, sequence: int, total: int) -> float:
        """Learning rate of the step that ends at `sequence` of `total`."""
        low = self.peak * self.final_share
        warmup = self.decay_start(total)
        if sequence < warmup:
            return self.peak * sequence / warmup
        share = min((sequence - warmup) / max(total - warmup, 1), 1.0)
        return low + (self.peak - low) * 0.5 * (1.0 + math.cos(math.pi * share))


_SHARE = "must lie in [0, 1]"


def _rate_checks(config: WarmupStableDecay | Cosine) -> list[tuple[str, bool, str]]:
    return [
        ("peak", 0 < config.peak < math.inf, "must be positive and finite"),
        ("final_share", 0 <= config.final_share <= 1, _SHARE),
        ("warmup_sequences", config.warmup_sequences >= 0, "must not be negative"),
    ]


@dataclass(frozen=True, kw_only=True)
class BatchStage:
    """From sequence `start` on, `size` sequences make a step."""

    start: int = 0
    size: int = 16

    def __post_init__(self) -> None:
        validate(
            self,
            ("start", self.start >= 0, "must not be negative"),
            ("size", self.size > 0, "must be positive"),
        )


@dataclass(frozen=True)
class StepSpan:
    """One optimisation step: it trains on sequences first .. first + size - 1."""

    first: int
    size: int


class BatchPlan:
    """Which sequences each step trains on. Steps count from 0; an incomplete last one is left out."""

    def __init__(self, stages: tuple[BatchStage, ...], total_sequences: int) -> None:
        self._stages = sorted(stages, key=lambda stage: stage.start)
        self._steps_before: list[int] = []
        steps = 0
        for index, stage in enumerate(self._stages):
            self._steps_before.append(steps)
            last = index + 1 == len(self._stages)
            end = total_sequences if last else min(self._stages[index + 1].start, total_sequences)
            steps += max(end - stage.start, 0) // stage.size
        self.num_steps = steps

    def step(self, index: int) -> StepSpan:
        """The span of step `index`, in constant time per stage."""
        for stage, before in zip(reversed(self._stages), reversed(self._steps_before), strict=True):
            if index >= before:
                return StepSpan(stage.start + (index - before) * stage.size, stage.size)
        raise IndexError(index)
