"""Matched arms: equal parameters by width, equal FLOPs or equal time by length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stamm.base.config import validate
from stamm.base.errors import ConfigError
from stamm.models.config import DecoderConfig, Dense
from stamm.models.flops import count_parameters, guide_flops, training_flops
from stamm.models.self_guide import expected_guide_uses
from stamm.recipes.arm import Arm

_ROUND = 64  # widths that are multiples of powers of two up to 64 are faster on a GPU


@dataclass(frozen=True, kw_only=True)
class EqualParameters:
    """Every arm has as many parameters as the baseline, by its width.

    tolerance   largest difference, as a share of the baseline's parameters. Within it the width is
                a multiple of the highest possible power of two, up to 64
    """

    tolerance: float = 0.001

    def __post_init__(self) -> None:
        share = self.tolerance
        validate(self, ("tolerance", 0 < share <= 0.1, "must lie in (0, 0.1]"))


@dataclass(frozen=True, kw_only=True)
class EqualFlops:
    """Every arm uses as many FLOPs as the baseline, by its length; widths are as given."""


@dataclass(frozen=True, kw_only=True)
class EqualTime:
    """Every arm trains as many seconds as the baseline, by its length; widths are as given.

    rounds, warmup_steps, steps   how seconds per step are measured: `pretrain.step_timing`
    """

    rounds: int = 3
    warmup_steps: int = 5
    steps: int = 10


Matched = EqualParameters | EqualFlops | EqualTime


def equal_widths(
    model: DecoderConfig, arms: Sequence[Arm], baseline: Arm, tolerance: float
) -> tuple[Arm, ...]:
    """The arms with widths at which their decoders have as many parameters as the baseline's.

    Edge     the baseline keeps its width, and so does an arm that already matches
    Raises   ConfigError when no width fits
    """
    wanted = _parameters(model, baseline)
    return tuple(
        arm
        if abs(_parameters(model, arm) - wanted) <= tolerance * wanted
        else replace(arm, ffn=replace(arm.ffn, width=_width(model, arm, wanted, tolerance)))
        for arm in arms
    )


def equal_work(
    models: Sequence[DecoderConfig],
    baseline: DecoderConfig,
    context: int,
    sequences: int,
    batch: int,
) -> tuple[int, ...]:
    """For each model, the number of sequences with the FLOPs of `sequences` of the baseline.

    Rounded to whole steps of `batch` sequences: FLOPs differ by at most half a step. Guides of
    self-guided training count by the mean of their draws.
    """
    work = training_work(baseline, context, sequences // batch, batch)
    lengths = []
    for model in models:
        # Without guides the first division is exact; with them the share of guided steps is fixed.
        steps = max(round(work / (training_flops(model, context) * batch)), 1)
        for _ in range(3):
            step_work = training_work(model, context, steps, batch) / steps
            steps = max(round(work / step_work), 1)
        lengths.append(steps * batch)
    return tuple(lengths)


def training_work(model: DecoderConfig, context: int, steps: int, batch: int) -> float:
    """FLOPs of `steps` steps of `batch` sequences, guides of self-guided training included."""
    guided = guide_flops(model, context)
    uses = (
        math.fsum(expected_guide_uses(model, step, steps) for step in range(1, steps + 1))
        if guided
        else 0.0
    )
    return batch * (steps * training_flops(model, context) + uses * guided)


def _parameters(model: DecoderConfig, arm: Arm) -> int:
    return count_parameters(arm.model_of(model)).total


def _width(model: DecoderConfig, arm: Arm, wanted: int, tolerance: float) -> int:
    if not isinstance(arm.ffn.linear, Dense):
        raise ConfigError(
            f"arm {arm.name}: the width cannot be matched with ffn.linear = "
            f"{type(arm.ffn.linear).__name__}",
            fix="Set a width with an equal parameter count",
        )

    def parameters(width: int) -> int:
        return _parameters(model, replace(arm, ffn=replace(arm.ffn, width=width)))

    at_width_1, at_width_2 = parameters(1), parameters(2)
    exact = (wanted - at_width_1) / (at_width_2 - at_width_1) + 1
    power = _ROUND
    while power:
        width = max(round(exact / power), 1) * power
        count = parameters(width)
        if abs(count - wanted) <= tolerance * wanted:
            return width
        power //= 2
    raise ConfigError(
        f"arm {arm.name}: no width gives {wanted:,} parameters to {tolerance:.2%}; {width} gives "
        f"{count:,}",
        fix="Raise matched.tolerance, or make the models larger",
    )
