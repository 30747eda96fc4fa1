"""Comparison recipes for the claims of docs/evidence.md; each costs at most an hour of a core.

All are made by `comparisons.claim`. A run of 768 steps takes 48 s of one core (Intel Xeon, AVX-512), its
evaluation 12 s.

Set corpus.inputs=YOUR_TEXT, 50 MB or more, of which 4 % are held out.
"""

from __future__ import annotations

from dataclasses import replace

from stamm.activations.spec import Piece, Spec
from stamm.activations.spec.parameters import Parameter, Softplus
from stamm.losses.config import Goldfish
from stamm.models.config import GatedFFN, LowRank, PlainFFN, SelfGuide, Structured
from stamm.optim.config import AdamW
from stamm.optim.schedules import Cosine
from stamm.recipes.arm import Arm, ArmOverrides
from stamm.recipes.compare import Comparison
from stamm.recipes.comparisons import claim, evidence_activations
from stamm.recipes.matching import EqualFlops

_PLAIN, _GATED = 384, 256


def evidence_longer() -> Comparison:
    """xIELU against ReLU² with twice the tokens, 6 seeds; set corpus.inputs=YOUR_TEXT; 32 minutes of a core.

    2 (3 + 6) runs, on seeds that no other recipe with these two arms uses. The 36 seeds at 768 steps show xIELU
    above ReLU², the published runs, 10^5 times as long, below.
    """
    comparison, steps = evidence_activations(), 2 * 768
    batch = comparison.pretrain.batch[0].size
    schedule = replace(comparison.pretrain.schedule, warmup_sequences=2 * 40 * batch)
    return replace(
        comparison,
        pretrain=replace(comparison.pretrain, sequences=steps * batch, schedule=schedule),
        arms=comparison.arms[1:],
        baseline="relu2",
        tuning=replace(comparison.tuning, rates=(5e-4, 1e-3, 2e-3)),
        seeds=tuple(range(69, 75)),
        looks=(),
    )


def evidence_expanded() -> Comparison:
    """GELU, SiLU, ATLU and their expanded ranges, 6 arms; set corpus.inputs=YOUR_TEXT; 54 minutes of a core.

    6 (4 + 5) runs. Pairs of child and parent are judged by `tools.evidence`.
    """
    names = ("gelu", "xgelu", "silu", "xsilu", "atlu", "xatlu")
    return claim([Arm(name=n, ffn=PlainFFN(width=_PLAIN, activation=n)) for n in names], "gelu")


def evidence_expanded_gated() -> Comparison:
    """GEGLU, SwiGLU and their expanded ranges, 4 arms; set corpus.inputs=YOUR_TEXT; 36 minutes of a core.

    4 (4 + 5) runs. xgeglu and xswiglu are G(gate) * up with an expanded G, of first order as in arXiv
    2405.20768, whose parents there are of second order.
    """
    names = ("swiglu", "xswiglu", "geglu", "xgeglu")
    return claim([Arm(name=n, ffn=GatedFFN(width=_GATED, activation=n)) for n in names], "swiglu")


def evidence_optimizer() -> Comparison:
    """AdEMAMix, QK-norm, WSD and the whole recipe against a Llama-like baseline; set corpus.inputs=YOUR_TEXT; 45 minutes of a core.

    5 (4 + 5) runs. The baseline has SwiGLU, AdamW, a cosine and no QK-norm; every other arm changes one thing, as in
    arXiv 2509.14233, and "apertus" all, with xIELU and the Goldfish loss.
    """
    swiglu = GatedFFN(width=_GATED, activation="swiglu")
    xielu = PlainFFN(width=_PLAIN, activation="xielu")
    base = claim([Arm(name="llama", ffn=swiglu), Arm(name="xielu", ffn=xielu)], "llama", seeds=5)
    ademamix, wsd = base.pretrain.optimizer, base.pretrain.schedule
    everything = ArmOverrides(
        optimizer=ademamix, schedule=wsd, qk_norm=True, goldfish=Goldfish(k=50, h=50)
    )
    arms = (
        Arm(name="llama", ffn=swiglu),
        Arm(name="ademamix", ffn=swiglu, overrides=ArmOverrides(optimizer=ademamix)),
        Arm(name="qk_norm", ffn=swiglu, overrides=ArmOverrides(qk_norm=True)),
        Arm(name="wsd", ffn=swiglu, overrides=ArmOverrides(schedule=wsd)),
        Arm(name="apertus", ffn=xielu, overrides=everything),
    )
    comparison = claim(arms, "llama")
    return replace(
        comparison,
        pretrain=replace(
            comparison.pretrain,
            model=replace(comparison.pretrain.model, qk_norm=False),
            optimizer=AdamW(),
            schedule=Cosine(peak=wsd.peak, warmup_sequences=wsd.warmup_sequences),
            goldfish=None,
        ),
    )


def evidence_tokens() -> Comparison:
    """The whole recipe with 70 and 60 % of the tokens of a Llama-like baseline, 8 seeds; set corpus.inputs=YOUR_TEXT; 24 minutes of a core.

    arXiv 2509.14233 reports 30 to 40 % fewer tokens for an equal loss. A cosine has no steps at
    its peak from which the tokens to an equal loss could be read, so losses at the ends are compared.
    3 (2 + 8) runs, on seeds that evidence_optimizer does not use; the rates are those that it chose.
    """
    comparison = evidence_optimizer()
    llama, apertus = comparison.arms[0], comparison.arms[-1]
    shorter = tuple(
        Arm(
            name=f"apertus_{percent}",
            ffn=apertus.ffn,
            overrides=replace(apertus.overrides, length=percent / 100),
        )
        for percent in (70, 60)
    )
    return replace(
        comparison,
        arms=(llama, *shorter),
        tuning=replace(comparison.tuning, rates=(1e-3, 2e-3)),
        seeds=tuple(range(9, 17)),
    )


def evidence_ablation() -> Comparison:
    """The whole recipe against itself with AdamW, without QK-norm and with a cosine, 8 seeds; set corpus.inputs=YOUR_TEXT; 48 minutes of a core.

    The parts of evidence_optimizer, taken out instead of added: its Llama-like baseline differs from
    seed to seed by a tenth of a bit per byte, which hides what a part does; the whole recipe by a
    hundredth. 4 (4 + 8) runs, on seeds that evidence_optimizer and evidence_tokens do not use.
    """
    comparison = evidence_optimizer()
    base, arm = comparison.pretrain, comparison.arms[-1]
    whole = arm.pretrain_of(base)
    parts = {
        "whole": ArmOverrides(),
        "adamw": ArmOverrides(optimizer=base.optimizer),
        "no_qk_norm": ArmOverrides(qk_norm=base.model.qk_norm),
        "cosine": ArmOverrides(schedule=base.schedule),
    }
    return replace(
        comparison,
        pretrain=replace(whole, model=replace(whole.model, ffn=base.model.ffn)),
        arms=tuple(
            Arm(name=name, ffn=arm.ffn, overrides=overrides) for name, overrides in parts.items()
        ),
        baseline="whole",
        seeds=tuple(range(17, 25)),
    )


def evidence_goldfish() -> Comparison:
    """Cost of the Goldfish loss in held-out loss, by both hashes; set corpus.inputs=YOUR_TEXT; 27 minutes of a core.

    3 (4 + 5) runs. Memorization: audit.goldfish.
    """
    ffn = PlainFFN(width=_PLAIN, activation="xielu")
    masks = (Goldfish(k=50, h=50, hash="apertus"), Goldfish(k=50, h=50, hash="stamm"))
    arms = [Arm(name="every_token", ffn=ffn)]
    arms += [Arm(name=mask.hash, ffn=ffn, overrides=ArmOverrides(goldfish=mask)) for mask in masks]
    comparison = claim(arms, "every_token")
    return replace(comparison, pretrain=replace(comparison.pretrain, goldfish=None))


def evidence_structured() -> Comparison:
    """Low-rank feed-forward layers with self-guided training and without it, at equal FLOPs; set corpus.inputs=YOUR_TEXT; 40 minutes of a core.

    GELU at 4 d_model, rank d_model / 2, the first layer dense (arXiv 2406.16450). Guides run in half of
    the guided steps' blocks on average; their FLOPs count, so the guided arm is shorter.
    3 (4 + 5) runs; small factors use a core less.
    """
    low_rank = PlainFFN(width=_PLAIN, activation="gelu", linear=LowRank(rank=48))
    guided = ArmOverrides(structured=Structured(guide=SelfGuide()))
    arms = (
        Arm(name="low_rank", ffn=low_rank),
        Arm(name="self_guided", ffn=low_rank, overrides=guided),
        Arm(name="dense", ffn=PlainFFN(width=_PLAIN, activation="gelu")),
    )
    return claim(arms, "low_rank", matched=EqualFlops())


def evidence_beta() -> Comparison:
    """xIELU with beta learned against beta fixed at 0.5, 8 seeds; set corpus.inputs=YOUR_TEXT; 24 minutes of a core."""
    arms = (
        Arm(name="fixed", ffn=PlainFFN(width=_PLAIN, activation="xielu")),
        Arm(name="learned", ffn=PlainFFN(width=_PLAIN, activation=_learned_beta())),
    )
    return claim(arms, "fixed", seeds=8)


def evidence_shapes() -> Comparison:
    """xIELU with one shape per neuron against one per layer, 8 seeds; set corpus.inputs=YOUR_TEXT; 24 minutes of a core."""
    arms = (
        Arm(name="layer", ffn=PlainFFN(width=_PLAIN, activation="xielu")),
        Arm(name="neuron", ffn=PlainFFN(width=_PLAIN, activation="xielu", shapes="neuron")),
    )
    return claim(arms, "layer", seeds=8)


def evidence_scale() -> Comparison:
    """xIELU, ReLU² and SwiGLU with a tuned rate of the shapes, 8 seeds; set corpus.inputs=YOUR_TEXT; 55 minutes of a core.

    3 x 8 + 3 + 3 + 12 runs. The same seeds with `matched.scale=EqualStart matched.scale.deviation=0.6`, with
    `matched.scale=LearnedScale matched.scale.lr_factor=30`, and with `pretrain.model.init_std=0.02` separate the
    function of a block from the scale of its output.
    """
    comparison = claim(evidence_activations().arms, "swiglu", seeds=8)
    tuning = replace(
        comparison.tuning, rates=(1e-3, 2e-3, 4e-3), shape_factors=(1.0, 10.0, 30.0, 100.0)
    )
    return replace(comparison, tuning=tuning, seeds=tuple(range(101, 109)))


def _learned_beta() -> Spec:
    """xIELU whose beta is learned above 0, from 0.5, with alpha_n = beta + fall as in xIELU.

    With alpha_n itself as a parameter the gradient of the stored beta would be x + (exp(x) - 1 - x),
    which cancels; in this form it is exp(x) - 1.
    """
    return Spec(
        name="xielu_learned_beta",
        title="xIELU with a learned beta",
        pieces=(
            Piece(where="x > 0", formula="2*alpha_p*x + beta"),
            Piece(where="x <= 0", formula="fall*(exp(x) - 1) + beta*exp(x)"),
        ),
        parameters=(
            Parameter(name="alpha_p", initial=0.8, bijection=Softplus()),
            Parameter(name="fall", initial=0.3, bijection=Softplus()),
            Parameter(name="beta", initial=0.5, bijection=Softplus()),
        ),
        source="Huang and Schlag 2024 (2411.13010), with a learned beta",
    )
