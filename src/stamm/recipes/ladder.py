"""A ladder of comparisons: xIELU, ReLU² and SwiGLU over four sizes and three lengths, scale matched or not.

Each point is an ordinary comparison. Its learning rates are not tuned at the point: those of the smallest point are
transferred by a rule, which `rates=near` tests at any other point. **The present rule has failed that test** (0.7 M parameters,
5 tokens a parameter: docs/log/2026-11-28-ladder-rates.md), so tune a point with `rates=near`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from stamm.base.errors import ConfigError
from stamm.losses.config import Goldfish
from stamm.models.config import Dense, GatedFFN, LowRank, PlainFFN, SelfGuide, Structured
from stamm.models.flops import count_parameters
from stamm.optim.config import AdamW
from stamm.optim.schedules import Cosine, WarmupStableDecay
from stamm.recipes.arm import Arm, ArmOverrides
from stamm.recipes.compare import Comparison, Tuning
from stamm.recipes.comparisons import claim
from stamm.recipes.matching import EqualFlops, EqualParameters, EqualStart

SIZES = {0.35: 64, 0.7: 96, 1.35: 144, 2.65: 208}  # million parameters: d_model
SHIFTS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
TRIED_FACTORS = (1.0, 10.0, 100.0, 1000.0)  # of the rate of the shapes
NEAR = (0.5, 1.0, 2.0)
# Best rates at the smallest point, their fall with d_model and tokens, and the best factor of the rate of the shapes: fitted to
# three tuned points (docs/evidence/ladder_rates.json).
RATES = {
    "as_is": {"swiglu": 3.93e-3, "relu2": 3.01e-3, "xielu": 3.08e-3},
    "matched": {"swiglu": 5.85e-3, "relu2": 3.62e-3, "xielu": 3.97e-3},
}
SHAPE_FACTORS = {"as_is": 100.0, "matched": 100.0}
WIDTH_POWER, LENGTH_POWER = 1.96, 0.18
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
                         and D0 of the smallest point. "near": each arm chooses among NEAR times that rate, and two
                         more beside the best or beyond an edge, by runs of the full length, which tests the rule; "grid": among SHIFTS times that rate, and
                         xIELU among TRIED_FACTORS, which gives one

    Raises               ConfigError for another size, or fewer than 64 steps
    """
    width = _width(size)
    base = at_length(sized(width, _activations(width), "swiglu"), tokens_a_parameter)
    tried, tuning = {
        "rule": ((1.0,), Tuning(refinements=0)),
        "near": (NEAR, Tuning(refinements=1, length=1.0)),
        "grid": (SHIFTS, Tuning(refinements=0, length=1.0, shape_factors=TRIED_FACTORS)),
    }[rates]
    shift = rule_shift(base)
    optimizer = replace(base.pretrain.optimizer, shape_lr_factor=SHAPE_FACTORS[scale])
    return replace(
        base,
        pretrain=replace(base.pretrain, optimizer=optimizer),
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
        tuning=tuning,
        seeds=(201, 202, 203, 204) if size < 1 else (201, 202, 203),
    )


def ladder_expanded(
    size: float = 0.35,
    tokens_a_parameter: float = 5.0,
    scale: Literal["as_is", "matched"] = "as_is",
) -> Comparison:
    """GELU against xGELU at a point of the ladder, rates near its rule; parameters and text as for compare.ladder.

    Each arm chooses among NEAR times the rule's rate for ReLU², xGELU among factors of its shapes' rate, too.
    """
    width = _width(size)
    arms = [
        Arm(name=name, ffn=PlainFFN(width=_gated(width) * 3 // 2, activation=name))
        for name in ("gelu", "xgelu")
    ]
    base = at_length(sized(width, arms, "gelu"), tokens_a_parameter)
    return replace(
        base,
        matched=EqualParameters(scale=EqualStart(deviation=0.6) if scale == "matched" else None),
        tuning=Tuning(
            rates=_near(RATES[scale]["relu2"] * rule_shift(base)),
            refinements=1,
            length=1.0,
            shape_factors=TRIED_FACTORS[:3],
        ),
        seeds=(201, 202, 203, 204),
    )


def ladder_recipe(size: float = 0.35, tokens_a_parameter: float = 5.0) -> Comparison:
    """The Apertus recipe at a point of the ladder, with AdamW, without QK-norm, with a cosine, and trained on every token.

    The parts of compare.evidence_ablation and the Goldfish loss, each taken out. Parameters and text as for compare.ladder; 8 seeds, and
    each arm chooses among NEAR times the rule's rate for xIELU; its shapes learn at the common rate, as published.
    """
    width = _width(size)
    block = PlainFFN(width=_gated(width) * 3 // 2, activation="xielu")
    mask = Goldfish(k=50, h=50)
    parts = {
        "whole": ArmOverrides(goldfish=mask),
        "adamw": ArmOverrides(goldfish=mask, optimizer=AdamW()),
        "no_qk_norm": ArmOverrides(goldfish=mask, qk_norm=False),
        "cosine": ArmOverrides(goldfish=mask, schedule=Cosine()),
        "every_token": ArmOverrides(),
    }
    arms = [Arm(name=name, ffn=block, overrides=overrides) for name, overrides in parts.items()]
    base = at_length(sized(width, arms, "whole"), tokens_a_parameter)
    return replace(
        base,
        pretrain=replace(base.pretrain, goldfish=None),
        tuning=Tuning(
            rates=_near(RATES["as_is"]["xielu"] * rule_shift(base)), refinements=1, length=1.0
        ),
        seeds=tuple(range(211, 219)),
    )


def ladder_structured(size: float = 0.35, tokens_a_parameter: float = 5.0) -> Comparison:
    """The arms of compare.evidence_structured at a point of the ladder, at equal FLOPs; parameters and text as for compare.ladder.

    6 seeds; each arm chooses among NEAR times the rule's rate for ReLU². Tokens a parameter are those of the low-rank arm.
    """
    width = _width(size)
    block = PlainFFN(width=4 * width, activation="gelu", linear=LowRank(rank=width // 2))
    guided = ArmOverrides(structured=Structured(guide=SelfGuide()))
    arms = [
        Arm(name="low_rank", ffn=block),
        Arm(name="self_guided", ffn=block, overrides=guided),
        Arm(name="dense", ffn=replace(block, linear=Dense())),
    ]
    base = sized(width, arms[:1], "low_rank")
    base = at_length(replace(base, matched=EqualFlops(), arms=tuple(arms)), tokens_a_parameter)
    return replace(
        base,
        tuning=Tuning(
            rates=_near(RATES["as_is"]["relu2"] * rule_shift(base)), refinements=1, length=1.0
        ),
        seeds=tuple(range(231, 237)),
    )


def published(tokens_a_parameter: float = 100.0) -> Comparison:
    """SwiGLU, ReLU² and xIELU as near to arXiv 2411.13010 as 0.28 M parameters are; set corpus.inputs=YOUR_TEXT.

    Its block (SwiGLU 4 d_model wide, the others 6), as many heads as key-value heads, no QK-norm, tied embeddings, matrices of
    standard deviation 0.025, AdamW with betas 0.9 and 0.95, decay 0.1, a warm-up of 2,000 of 70,000 steps, 1-sqrt from
    55,500 on to 0, shapes at the common rate, every token. Rates are chosen by runs of a tenth of the length; 3 or 6 seeds.
    """
    width = 48
    arms = [
        Arm(name="swiglu", ffn=GatedFFN(width=4 * width, activation="swiglu")),
        *(
            Arm(name=name, ffn=PlainFFN(width=6 * width, activation=name))
            for name in ("relu2", "xielu")
        ),
    ]
    base = sized(width, arms, "swiglu")
    model = replace(
        base.pretrain.model,
        num_heads=2,
        num_kv_heads=2,
        head_dim=24,
        qk_norm=False,
        norm_eps=1e-6,
        init_std=0.025,
    )
    base = replace(base, pretrain=replace(base.pretrain, model=model))
    run = at_length(base, tokens_a_parameter).pretrain
    sequences = run.total_sequences()
    schedule = WarmupStableDecay(
        warmup_sequences=round(sequences * 2 / 70), decay_share=1 - 55.5 / 70, law="1-sqrt"
    )
    return replace(
        base,
        pretrain=replace(run, optimizer=AdamW(), schedule=schedule, goldfish=None),
        tuning=Tuning(rates=(1e-3, 2e-3, 4e-3, 8e-3), refinements=0, length=0.1),
        seeds=tuple(range(221, 227)),
        looks=(3, 6),
    )


def _width(size: float) -> int:
    if size not in SIZES:
        raise ConfigError(
            f"size = {size:g} is not a size of the ladder",
            fix=f"Sizes are {', '.join(f'{known:g}' for known in SIZES)} million parameters",
        )
    return SIZES[size]


def _gated(width: int) -> int:
    """Width of a gated block at a d_model of `width`."""
    return (width * 8 // 3 + 15) // 16 * 16


def _activations(width: int) -> list[Arm]:
    ffn = _gated(width)
    return [
        Arm(name="swiglu", ffn=GatedFFN(width=ffn, activation="swiglu")),
        *(
            Arm(name=name, ffn=PlainFFN(width=ffn * 3 // 2, activation=name))
            for name in ("relu2", "xielu")
        ),
    ]


def sized(width: int, arms: Sequence[Arm], baseline: str) -> Comparison:
    """The comparison of `claim` with d_model = `width` and the other dimensions of the ladder."""
    base = claim(arms, baseline)
    model = replace(
        base.pretrain.model,
        vocab_size=_VOCABULARY,
        d_model=width,
        num_layers=_LAYERS,
        num_heads=max(width // 32, 1),
        num_kv_heads=1,
        head_dim=32,
        tied_embeddings=True,
    )
    return replace(
        base,
        tokenizer=replace(base.tokenizer, vocab_size=_VOCABULARY),
        pretrain=replace(base.pretrain, model=model),
    )


def at_length(base: Comparison, tokens_a_parameter: float) -> Comparison:
    """`base` with runs of so many tokens a parameter of its baseline, a twentieth of them warm-up."""
    model = base.baseline_arm().model_of(base.pretrain.model)
    steps = round(tokens_a_parameter * count_parameters(model).total / _STEP)
    if steps < _FEWEST_STEPS:
        raise ConfigError(
            f"tokens_a_parameter = {tokens_a_parameter:g} gives {steps} steps of {_STEP:,} tokens",
            fix=f"Raise it until there are {_FEWEST_STEPS}",
        )
    batch = base.pretrain.batch[0].size
    warmup = round(steps / 20) * batch

    def longer(arm: Arm) -> Arm:
        own = arm.overrides.schedule
        if own is None:
            return arm
        schedule = replace(own, warmup_sequences=warmup)
        return replace(arm, overrides=replace(arm.overrides, schedule=schedule))

    return replace(
        base,
        pretrain=replace(
            base.pretrain,
            sequences=steps * batch,
            schedule=replace(base.pretrain.schedule, warmup_sequences=warmup),
        ),
        arms=tuple(map(longer, base.arms)),
    )


def rule_shift(base: Comparison) -> float:
    """The rule's rate at the width and length of `base`, as a multiple of that at the smallest point."""
    smallest = at_length(sized(_SMALLEST, _activations(_SMALLEST), "swiglu"), 1.0)
    width = base.pretrain.model.d_model / _SMALLEST
    longer = base.pretrain.total_sequences() / smallest.pretrain.total_sequences()
    return float(width**-WIDTH_POWER * longer**-LENGTH_POWER)


def _near(rate: float) -> tuple[float, ...]:
    return tuple(rate * factor for factor in NEAR)
