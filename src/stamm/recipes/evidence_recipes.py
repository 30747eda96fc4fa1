"""Comparison recipes for the claims of docs/evidence.md; each costs at most 2.5 hours on 2 cores.

All are built on compare.evidence_activations: 1.3 M parameters, tuning at the full length, looks.
Its runs of 2.1 M tokens (512 steps) took 133 s on 2 cores, 0.26 s a step, and the evaluation of a run
15 s. So a recipe of A arms, T tuning runs, S seeds and N steps costs A (T + S) N 0.26 s + A S 15 s; the first look ends it earlier.

Set corpus.inputs=YOUR_TEXT, 30 MB or more, and of much more a corpus.held_out that leaves 2 to 3 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stamm.activations.spec import Piece, Spec
from stamm.activations.spec.parameters import Parameter, Softplus
from stamm.losses.config import Goldfish
from stamm.models.config import GatedFFN, LowRank, PlainFFN, SelfGuide, Structured
from stamm.optim.config import AdamW
from stamm.optim.schedules import Cosine
from stamm.recipes.arm import Arm, ArmOverrides
from stamm.recipes.compare import Comparison, Tuning
from stamm.recipes.comparisons import evidence_activations
from stamm.recipes.matching import EqualFlops, Matched

_BATCH = 16
_PLAIN, _GATED = 384, 256


def evidence_expanded() -> Comparison:
    """Expanded gating ranges and their parents, plain and gated, 10 arms; set corpus.inputs=YOUR_TEXT; 2.1 hours.

    10 (3 + 6) 288 0.26 s + 10 6 15 s = 2.1 h; 1.4 h if the look after 3 seeds ends it. Pairs of child
    and parent are judged by `tools.evidence`. xgeglu and xswiglu are G(gate) * up with an expanded G, of
    first order as in arXiv 2405.20768, whose parents there are of second order.
    """
    plain = ("gelu", "xgelu", "silu", "xsilu", "atlu", "xatlu")
    arms = [Arm(name=name, ffn=PlainFFN(width=_PLAIN, activation=name)) for name in plain]
    gated = ("geglu", "xgeglu", "swiglu", "xswiglu")
    arms += [Arm(name=name, ffn=GatedFFN(width=_GATED, activation=name)) for name in gated]
    return _evidence(arms, "swiglu", steps=288, seeds=6)


def evidence_optimizer() -> Comparison:
    """AdEMAMix, QK-norm, WSD and the whole recipe against a Llama-like baseline; set corpus.inputs=YOUR_TEXT; 2.2 hours.

    5 (5 + 6) 512 0.26 s + 5 6 15 s = 2.2 h; two more rates per arm, as optimizers differ in theirs.
    The baseline has SwiGLU, AdamW, a cosine and no QK-norm; every other arm changes one thing, as in
    arXiv 2509.14233, and "apertus" all, with xIELU and the Goldfish loss.
    """
    swiglu = GatedFFN(width=_GATED, activation="swiglu")
    xielu = PlainFFN(width=_PLAIN, activation="xielu")
    base = evidence_activations().pretrain
    ademamix, wsd = base.optimizer, base.schedule
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
    found = _evidence(arms, "llama", steps=512, seeds=6)
    return replace(
        found,
        pretrain=replace(
            found.pretrain,
            model=replace(found.pretrain.model, qk_norm=False),
            optimizer=AdamW(),
            schedule=Cosine(peak=wsd.peak, warmup_sequences=20 * _BATCH),
            goldfish=None,
        ),
        tuning=replace(found.tuning, refinements=1),
    )


def evidence_goldfish() -> Comparison:
    """Cost of the Goldfish loss in held-out loss, by both hashes; set corpus.inputs=YOUR_TEXT; 1.6 hours.

    3 (3 + 10) 512 0.26 s + 3 10 15 s = 1.6 h. Memorization: audit.goldfish.
    """
    ffn = PlainFFN(width=_PLAIN, activation="xielu")
    masks = (Goldfish(k=50, h=50, hash="apertus"), Goldfish(k=50, h=50, hash="stamm"))
    arms = [Arm(name="every_token", ffn=ffn)]
    arms += [Arm(name=mask.hash, ffn=ffn, overrides=ArmOverrides(goldfish=mask)) for mask in masks]
    found = _evidence(arms, "every_token", steps=512, seeds=10)
    return replace(found, pretrain=replace(found.pretrain, goldfish=None))


def evidence_structured() -> Comparison:
    """Low-rank feed-forward layers with self-guided training and without it, at equal FLOPs; set corpus.inputs=YOUR_TEXT; 2 hours.

    GELU at 4 d_model, rank d_model / 2, the first layer dense (arXiv 2406.16450). Guides run in half of
    the guided steps' blocks on average; their FLOPs count, so the guided arm is shorter.
    3 (5 + 8) 512 0.26 s + 3 8 15 s = 1.5 h, and a quarter more, since small factors use the cores less.
    """
    low_rank = PlainFFN(width=_PLAIN, activation="gelu", linear=LowRank(rank=48))
    guided = ArmOverrides(structured=Structured(guide=SelfGuide()))
    arms = (
        Arm(name="low_rank", ffn=low_rank),
        Arm(name="self_guided", ffn=low_rank, overrides=guided),
        Arm(name="dense", ffn=PlainFFN(width=_PLAIN, activation="gelu")),
    )
    found = _evidence(arms, "low_rank", steps=512, seeds=8, matched=EqualFlops())
    return replace(found, tuning=replace(found.tuning, refinements=1))


def evidence_beta() -> Comparison:
    """xIELU with beta learned against beta fixed at 0.5, 16 seeds; set corpus.inputs=YOUR_TEXT; 1.5 hours.

    2 (3 + 16) 512 0.26 s + 2 16 15 s = 1.5 h; 0.9 h if the look after 8 seeds ends it.
    """
    arms = (
        Arm(name="fixed", ffn=PlainFFN(width=_PLAIN, activation="xielu")),
        Arm(name="learned", ffn=PlainFFN(width=_PLAIN, activation=_learned_beta())),
    )
    return _evidence(arms, "fixed", steps=512, seeds=16)


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


def _evidence(
    arms: Sequence[Arm], baseline: str, *, steps: int, seeds: int, matched: Matched | None = None
) -> Comparison:
    """compare.evidence_activations with other arms: a look after half of the seeds, and after all."""
    base = evidence_activations()
    return replace(
        base,
        pretrain=replace(base.pretrain, sequences=steps * _BATCH),
        arms=tuple(arms),
        baseline=baseline,
        matched=matched or base.matched,
        tuning=Tuning(rates=base.tuning.rates, refinements=0, length=1.0, margin=0.005),
        seeds=tuple(range(1, seeds + 1)),
        looks=(seeds // 2, seeds),
        # Averaged weights were worse than the final ones in all of the first runs, by about .005.
        average=None,
        # Windows that overlap by half are read twice: as long as training takes, at 2 MB of text.
        evaluate=replace(base.evaluate, overlap=32),
    )
