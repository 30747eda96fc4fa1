"""A ladder of comparisons: xIELU, ReLU² and SwiGLU over four sizes and three lengths, scale matched or not.

Each point is an ordinary comparison. Its learning rates are not tuned at the point: those of the smallest point are
transferred by a rule, which `rates=grid` tests at any other point. **The numbers of the rule are guesses still**: the
tuned points of docs/evidence/ladder_plan.json have not been run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from stamm.base.errors import ConfigError
from stamm.models.config import GatedFFN, PlainFFN
from stamm.models.flops import count_parameters
from stamm.recipes.arm import Arm, ArmOverrides
from stamm.recipes.compare import Comparison, Tuning
from stamm.recipes.comparisons import claim
from stamm.recipes.matching import EqualParameters, EqualStart

SIZES = {0.35: 64, 0.7: 96, 1.35: 144, 2.65: 208}  # million parameters: d_model
SHIFTS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
TRIED_FACTORS = (1.0, 10.0, 100.0, 1000.0)  # of the rate of the shapes
NEAR = (0.5, 1.0, 2.0)
# Guesses of the best rates at the smallest point, and of how they fall with d_model and with tokens.
RATES = {
    "as_is": {"swiglu": 4e-3, "relu2": 4e-3, "xielu": 4e-3},
    "matched": {"swiglu": 4e-3, "relu2": 4e-3, "xielu": 4e-3},
}
SHAPE_FACTORS = {"as_is": 1.0, "matched": 1.0}
WIDTH_POWER, LENGTH_POWER = 0.5, 0.25
_VOCABULARY, _LAYERS, _SMALLEST = 2048, 5, 64
_STEP = 4 * 256  # tokens
_FEWEST_STEPS = 64


def ladder(
    size: float = 0.35,
    tokens_a_parameter: float = 1.0,
    scale: Literal["as_is", "matched"] = "as_is",
    rates: Literal["rule", "near", "grid"] = "rule",
) -> Comparison:
    """A point of the ladder: size=0.35|0.7|1.35|2.65 tokens_a_parameter=1|5|20 scale=as_is|matched; set corpus.inputs=YOUR_TEXT.

    size                 million parameters, a key of `SIZES`: 5 layers, tied embeddings, a vocabulary of 2,048;
                         4 seeds, 3 above a million
    tokens_a_parameter   length of a run, in steps of 1,024 tokens
    scale                "matched": all blocks start with the standard deviation 0.6 (`EqualStart`)
    rates                "rule": `RATES` times (64 / d_model)^WIDTH_POWER (D0 / D)^LENGTH_POWER, with D tokens,
                         and D0 of the smallest point. "near": each arm chooses among NEAR times that rate by
                         runs of the full length, which tests the rule; "grid": among SHIFTS times that rate, and
                         xIELU among TRIED_FACTORS, which gives one

    Raises               ConfigError for another size, or fewer than 64 steps
    """
    if size not in SIZES:
        raise ConfigError(
            f"size = {size:g} is not a size of the ladder",
            fix=f"Sizes are {', '.join(f'{known:g}' for known in SIZES)} million parameters",
        )
    base, steps = _sized(SIZES[size]), _steps(SIZES[size], tokens_a_parameter)
    if steps < _FEWEST_STEPS:
        raise ConfigError(
            f"tokens_a_parameter = {tokens_a_parameter:g} gives {steps} steps of {_STEP:,} tokens",
            fix=f"Raise it until there are {_FEWEST_STEPS}",
        )
    longer = steps / _steps(_SMALLEST, 1.0)
    shift = (_SMALLEST / SIZES[size]) ** WIDTH_POWER / longer**LENGTH_POWER
    tried = {"rule": (1.0,), "near": NEAR, "grid": SHIFTS}[rates]
    batch = base.pretrain.batch[0].size
    return replace(
        base,
        pretrain=replace(
            base.pretrain,
            sequences=steps * batch,
            schedule=replace(base.pretrain.schedule, warmup_sequences=round(steps / 20) * batch),
            optimizer=replace(base.pretrain.optimizer, shape_lr_factor=SHAPE_FACTORS[scale]),
        ),
        arms=tuple(
            replace(
                arm,
                overrides=ArmOverrides(
                    rates=tuple(RATES[scale][arm.name] * shift * factor for factor in tried)
                ),
            )
            for arm in base.arms
        ),
        matched=EqualParameters(scale=EqualStart(deviation=0.6) if scale == "matched" else None),
        tuning=Tuning(
            refinements=0, length=1.0, shape_factors=TRIED_FACTORS if rates == "grid" else ()
        ),
        seeds=(201, 202, 203, 204) if size < 1 else (201, 202, 203),
    )


def _sized(width: int) -> Comparison:
    """The comparison of `claim` with d_model = `width`."""
    ffn = (width * 8 // 3 + 15) // 16 * 16
    arms = [Arm(name="swiglu", ffn=GatedFFN(width=ffn, activation="swiglu"))]
    arms += [
        Arm(name=name, ffn=PlainFFN(width=ffn * 3 // 2, activation=name))
        for name in ("relu2", "xielu")
    ]
    base = claim(arms, "swiglu")
    model = replace(
        base.pretrain.model,
        vocab_size=_VOCABULARY,
        d_model=width,
        num_layers=_LAYERS,
        num_heads=width // 32,
        num_kv_heads=1,
        head_dim=32,
        tied_embeddings=True,
    )
    return replace(
        base,
        tokenizer=replace(base.tokenizer, vocab_size=_VOCABULARY),
        pretrain=replace(base.pretrain, model=model),
    )


def _steps(width: int, tokens_a_parameter: float) -> int:
    base = _sized(width)
    model = base.baseline_arm().model_of(base.pretrain.model)
    return round(tokens_a_parameter * count_parameters(model).total / _STEP)
