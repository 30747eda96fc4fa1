"""Which optimizer, with which numbers. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101).

    shape_lr_factor   learning rate of trainable activation shapes, as a multiple of the rest's
    """

    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    shape_lr_factor: float = 1.0

    def __post_init__(self) -> None:
        validate(
            self,
            ("beta1", 0 <= self.beta1 < 1, "must lie in [0, 1)"),
            ("beta2", 0 <= self.beta2 < 1, "must lie in [0, 1)"),
            *_shared_checks(self),
        )

    @property
    def moments(self) -> int:
        """Moment tensors kept per parameter."""
        return 2


@dataclass(frozen=True, kw_only=True)
class AdEMAMix:
    """Adam with a second, slow average of the gradient (arXiv 2409.03137), as Apertus runs it.

    alpha                 weight of the slow average after its warm-up
    alpha_warmup_steps    steps over which alpha rises from 0, linearly; None means all steps, 0
                          the whole alpha from the first step on
    beta3_warmup_steps    steps over which beta3 rises from beta1, linearly in half-life; likewise
    shape_lr_factor       as in `AdamW`
    """

    beta1: float = 0.9
    beta2: float = 0.999
    beta3: float = 0.9999
    alpha: float = 8.0
    alpha_warmup_steps: int | None = None
    beta3_warmup_steps: int | None = None
    eps: float = 1e-8
    weight_decay: float = 0.1
    shape_lr_factor: float = 1.0

    def __post_init__(self) -> None:
        validate(
            self,
            ("beta1", 0 < self.beta1 < 1, "must lie in (0, 1): beta3 starts from it"),
            ("beta2", 0 <= self.beta2 < 1, "must lie in [0, 1)"),
            ("beta3", self.beta1 <= self.beta3 <= _LARGEST_BETA3, "must lie in [beta1, 1 - 1e-7]"),
            ("alpha", 0 <= self.alpha < math.inf, _NOT_NEGATIVE),
            *(
                (name, steps is None or steps >= 0, "must not be negative")
                for name, steps in (
                    ("alpha_warmup_steps", self.alpha_warmup_steps),
                    ("beta3_warmup_steps", self.beta3_warmup_steps),
                )
            ),
            *_shared_checks(self),
        )

    @property
    def moments(self) -> int:
        """Moment tensors kept per parameter."""
        return 3

    def alpha_at(self, step: int, total_steps: int) -> float:
        """alpha * min(step / warm-up, 1) for the step numbered from 1; alpha without a warm-up."""
        warmup = total_steps if self.alpha_warmup_steps is None else self.alpha_warmup_steps
        return self.alpha if step >= warmup else self.alpha * (step / warmup)

    def beta3_at(self, step: int, total_steps: int) -> float:
        """beta3 of the step numbered from 1: its half-life grows linearly from beta1's to beta3's.

        half_life(b) = ln(1/2) / ln(b) - 1, and back b = (1/2)^(1 / (half_life + 1))
        """
        warmup = total_steps if self.beta3_warmup_steps is None else self.beta3_warmup_steps
        if step >= warmup:
            return self.beta3
        share = step / warmup
        start, end = _half_life(self.beta1), _half_life(self.beta3)
        beta = math.pow(0.5, 1.0 / ((1.0 - share) * start + share * end + 1.0))
        return min(beta, self.beta3)


_LARGEST_BETA3 = 1 - 1e-7  # beyond it the guard in _half_life makes half-lives infinite
_NOT_NEGATIVE = "must be finite and not negative"


def _shared_checks(config: AdamW | AdEMAMix) -> list[tuple[str, bool, str]]:
    return [
        ("eps", 0 < config.eps < math.inf, "must be positive and finite"),
        ("weight_decay", 0 <= config.weight_decay < math.inf, _NOT_NEGATIVE),
        ("shape_lr_factor", 0 <= config.shape_lr_factor < math.inf, _NOT_NEGATIVE),
    ]


def _half_life(beta: float) -> float:
    # 1e-8 keeps the logarithm away from 0; the reference (apple/ml-ademamix) has the same guard.
    return math.log(0.5) / math.log(beta + 1e-8) - 1.0
