"""Matched arms: equal parameters by width, equal FLOPs or equal time by length; and the scale of blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from stamm.activations.spec import Spec
from stamm.activations.spec.scaled import SCALE, gaussian_moments, times, with_learned_scale
from stamm.base.bounds import AtLeastOne, Positive, within
from stamm.base.config import Bounded
from stamm.base.errors import ConfigError
from stamm.models.config import DecoderConfig, Dense
from stamm.models.flops import count_parameters, guide_flops, training_flops
from stamm.models.self_guide import expected_guide_uses
from stamm.optim.config import GroupRule
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.arm import Arm

_ROUND = 64  # widths that are multiples of powers of two up to 64 are faster on a GPU


@dataclass(frozen=True, kw_only=True)
class EqualStart(Bounded):
    """Blocks start with equal variance: a constant factor on the activation of every arm.

    For normal inputs of a block, whose components have mean square 1, an output of the block has at the start
    the variance width * init_std^2 * E[y^2], with y the activation on inputs of variance d_model * init_std^2.
    The factor makes it equal in all arms; the norm of the last matrix's gradient, for equal gradients of the
    block's output, is then equal, too. That of the first matrices is not: its ratio to the output depends on the
    function alone, so that no scale changes it (`docs/comparisons.md`).

    deviation   of a block's output at the start; None: that of the baseline, which keeps its function
    """

    deviation: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class LearnedScale(Bounded):
    """Every arm has one more trained number a layer, a factor on its activation that starts at 1.

    lr_factor   its learning rate, as a multiple of the arm's; `tuning.shape_factors` tune those of the other
                shapes, and leave it
    """

    lr_factor: Positive = 1.0


Scale = EqualStart | LearnedScale


@dataclass(frozen=True, kw_only=True)
class EqualParameters(Bounded):
    """Every arm has as many parameters as the baseline, by its width.

    tolerance   largest difference, as a share of the baseline's parameters. Within it the width is
                a multiple of the highest possible power of two, up to 64
    scale       EqualStart or LearnedScale: the scale of the blocks is matched, too; None: as it is
    """

    tolerance: Annotated[float, within("(0, 0.1]")] = 0.001
    scale: Scale | None = None


@dataclass(frozen=True, kw_only=True)
class EqualFlops:
    """Every arm uses as many FLOPs as the baseline, by its length; widths are as given.

    scale   as in EqualParameters
    """

    scale: Scale | None = None


@dataclass(frozen=True, kw_only=True)
class EqualTime(Bounded):
    """Every arm trains as many seconds as the baseline, by its length; widths are as given.

    rounds, warmup_steps, steps   how seconds per step are measured: `pretrain.step_timing`
    scale                         as in EqualParameters
    """

    rounds: AtLeastOne = 3
    warmup_steps: AtLeastOne = 5
    steps: AtLeastOne = 10
    scale: Scale | None = None


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


def scaled_arms(
    model: DecoderConfig, arms: Sequence[Arm], baseline: Arm, scale: Scale | None
) -> tuple[Arm, ...]:
    """The arms with the scale of their activations matched.

    arms     with their final widths; `baseline` is one of them
    Raises   ConfigError for structured matrices, whose variance at the start is another, and as
             `with_learned_scale`
    """
    if scale is None:
        return tuple(arms)
    if isinstance(scale, LearnedScale):
        return tuple(_with_spec(arm, with_learned_scale(arm.ffn.spec)) for arm in arms)
    wanted = scale.deviation or _checked_deviation(model, baseline)
    return tuple(
        _with_spec(arm, times(arm.ffn.spec, _factor(wanted, _checked_deviation(model, arm))))
        for arm in arms
    )


def output_deviation(model: DecoderConfig) -> float | None:
    """Standard deviation of an output of a feed-forward block at the start.

    init_std sqrt(width E[y^2]), y the activation on normal inputs of variance d_model init_std^2

    Edge     None for structured matrices, and for an activation that overflows on such inputs
    Checked  tests/unit/recipes/test_scale_matching.py, against blocks of real decoders
    """
    if not isinstance(model.ffn.linear, Dense):
        return None
    try:
        moments = gaussian_moments(model.ffn.spec, model.init_std * math.sqrt(model.d_model))
    except ArithmeticError:  # f or its slope overflows within ten standard deviations
        return None
    return model.init_std * math.sqrt(model.ffn.width * moments.value)


def _checked_deviation(model: DecoderConfig, arm: Arm) -> float:
    deviation = output_deviation(arm.model_of(model))
    if deviation is None:
        reason = (
            f"{arm.ffn.spec.name} overflows at the start"
            if isinstance(arm.ffn.linear, Dense)
            else f"ffn.linear = {type(arm.ffn.linear).__name__}"
        )
        raise ConfigError(
            f"arm {arm.name}: the scale cannot be matched: {reason}",
            fix="Leave matched.scale out, or use LearnedScale",
        )
    if not 0 < deviation < math.inf:
        raise ConfigError(
            f"arm {arm.name}: its blocks' outputs start with the standard deviation {deviation!r}",
            fix="Leave matched.scale out",
        )
    return deviation


def scaled_run(run: PretrainConfig, scale: Scale | None) -> PretrainConfig:
    """`run` with the learning rate of the learned scale, where there is one."""
    if not isinstance(scale, LearnedScale):
        return run
    rule = GroupRule(
        pattern=rf"\.act_fn\.{SCALE.name}$", lr_factor=scale.lr_factor, weight_decay=0.0
    )
    optimizer = replace(run.optimizer, groups=(rule, *run.optimizer.groups))
    return replace(run, optimizer=optimizer)


def _with_spec(arm: Arm, spec: Spec) -> Arm:
    if spec is arm.ffn.spec:
        return arm
    return replace(arm, ffn=replace(arm.ffn, activation=spec))


def _factor(wanted: float, at_start: float) -> float:
    """Six digits, so that the constant in a kernel is readable; 1 where nothing changes."""
    return float(f"{wanted / at_start:.6g}")


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
