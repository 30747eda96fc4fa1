"""Matched arms: equal parameters by width, equal FLOPs or equal time by length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stamm.base.config import validate
from stamm.base.errors import ConfigError
from stamm.models.config import DecoderConfig, Dense, GatedFFN, PlainFFN
from stamm.models.flops import count_parameters, training_flops
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

    rounds, warmup_steps, steps   how seconds per step are measured: `pretrain.pace`
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
    wanted = _parameters(model, baseline.ffn)
    return tuple(
        arm
        if abs(_parameters(model, arm.ffn) - wanted) <= tolerance * wanted
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

    Rounded to whole steps of `batch` sequences: FLOPs differ by at most half a step.
    """
    work = sequences * training_flops(baseline, context)
    steps = (round(work / (training_flops(model, context) * batch)) for model in models)
    return tuple(max(count, 1) * batch for count in steps)


def _parameters(model: DecoderConfig, ffn: PlainFFN | GatedFFN) -> int:
    return count_parameters(replace(model, ffn=ffn)).total


def _width(model: DecoderConfig, arm: Arm, wanted: int, tolerance: float) -> int:
    if not isinstance(arm.ffn.linear, Dense):
        raise ConfigError(
            f"arm {arm.name}: the width cannot be matched with ffn.linear = "
            f"{type(arm.ffn.linear).__name__}",
            fix="Set a width with an equal parameter count",
        )
    one, two = (_parameters(model, replace(arm.ffn, width=width)) for width in (1, 2))
    exact = (wanted - one) / (two - one) + 1
    power = _ROUND
    while power:
        width = max(round(exact / power), 1) * power
        found = _parameters(model, replace(arm.ffn, width=width))
        if abs(found - wanted) <= tolerance * wanted:
            return width
        power //= 2
    raise ConfigError(
        f"arm {arm.name}: no width gives {wanted:,} parameters to {tolerance:.2%}; {width} gives "
        f"{found:,}",
        fix="Raise matched.tolerance, or make the models larger",
    )
