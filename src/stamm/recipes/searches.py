"""Search recipes: a minute of toys for tests, and hours of a laptop for a better function than xIELU."""

from __future__ import annotations

from dataclasses import replace

from stamm.models.config import PlainFFN
from stamm.recipes import comparisons
from stamm.recipes.arm import Arm
from stamm.recipes.compare import Comparison, Tuning
from stamm.recipes.matching import EqualTime
from stamm.recipes.search import Confirmation, Round, Search
from stamm.search.config import ScreenLimits
from stamm.search.families import Expanded, Integrals, Linear, Pieces

_SEARCHED = ("package:guides.jsonl.zst", "package:rights.jsonl.zst", "package:pages.warc.gz")
_CONFIRMED = ("package:manuals.jsonl.zst", "package:novels.jsonl.zst", "package:public.jsonl.zst")
# f'(0) = beta is trained. Left pieces: `fall` pulls the gradient below 0, as xIELU's alpha_n does, or it
# falls to 0, where f is bounded.
_FAMILIES = (
    Pieces(
        right=("2*alpha_p*x + beta", "alpha_p*log1p(x) + beta"),
        left=(
            "fall*expm1(x) + beta*exp(x)",
            "fall*tanh(x) + 2*beta*logistic(2*x)",
            "fall*x/(1 - x) + beta/(1 - x)",
            "fall*x*exp(x) + beta*(1 + x*exp(x))",
            "beta*exp(x)",
            "beta/(1 - x)**2",
            "beta*(1 + x)*exp(x)",
        ),
        parameters=("alpha_p=0.8:softplus", "fall=0.3:softplus", "beta=0.5:softplus"),
    ),
    Integrals(of=("softplus", "silu", "gelu", "arctan")),
    Expanded(of=("mish", "golu", "tanh_exp")),
    Linear(basis=("1", "x", "logistic(x)", "tanh(x)"), terms=(3,)),
)


def activations() -> Search:
    """25 gradients in 2 rounds, the best confirmed against xIELU at 2 sizes; set the corpora; 2 hours of a core.

    Set compare.corpus.inputs=A and, for each of the three confirmations, confirm.N.compare.corpus.inputs=B.
    With runs of 48 s and evaluations of 6 s a MB (compare.evidence_activations): 27 (2 (12 + 6)) s for the first
    round, 6 (3 (24 + 6)) s for the second, 2 (2 48 + 4 60) s for a confirmation, a third more where it takes
    6 seeds, and 1.1 times as much for the large one, half as long. `--jobs 2` takes half the time on 2 cores.
    """
    # xIELU, and ReLU², the best of compare.evidence_activations.
    arms = (_plain("xielu", 384), _plain("relu2", 384))
    base = comparisons.claim(arms, "xielu")
    tuning = Tuning(rates=(1e-3, 2e-3), refinements=0, length=1.0, margin=0.005)
    small = replace(
        base,
        confidence=0.99,
        arms=arms[:1],
        seeds=tuple(range(101, 107)),
        looks=(4, 6),
        tuning=replace(tuning, seed=100),
        corpus=replace(base.corpus, inputs=_CONFIRMED),
    )
    model = replace(base.pretrain.model, d_model=144, num_layers=6)
    schedule = replace(base.pretrain.schedule, warmup_sequences=80)
    large = replace(
        small,
        pretrain=replace(base.pretrain, model=model, sequences=1536, schedule=schedule),
        arms=(_plain("xielu", 576),),
    )
    searched = replace(
        base,
        corpus=replace(base.corpus, inputs=_SEARCHED, held_out=0.02),
        tuning=Tuning(refinements=0),
        seeds=Comparison.seeds,  # the rounds have rates and seeds of their own
    )
    return Search(
        families=_FAMILIES,
        compare=searched,
        rounds=(
            # The rate that xIELU and ReLU² chose at these lengths in compare.evidence_activations.
            Round(length=0.25, seeds=(1, 2), rates=(2e-3,), keep=4),
            Round(length=0.5, seeds=(1, 2, 3), rates=(2e-3,), keep=1),
        ),
        confirm=(
            Confirmation(name="small", compare=small),
            Confirmation(name="large", compare=large),
            Confirmation(name="small_equal_time", compare=replace(small, matched=EqualTime())),
        ),
    )


def smoke() -> Search:
    """Toys in the steps of search.activations: 3 gradients, 2 rounds, 2 confirmations."""
    toy = comparisons.smoke()
    base = replace(
        toy,
        arms=(_plain("xielu", 24), _plain("relu2", 24)),  # small enough for plain torch functions
        baseline="xielu",
        tuning=Tuning(rates=(3e-3, 9e-3), refinements=0, length=0.5),
        corpus=replace(toy.corpus, inputs=_SEARCHED[:1], held_out=0.01),
    )
    fresh = replace(
        base,
        confidence=0.99,
        arms=base.arms[:1],
        seeds=(11, 12),
        tuning=replace(base.tuning, seed=10),
        corpus=replace(base.corpus, inputs=_CONFIRMED[2:]),
    )
    model = replace(base.pretrain.model, num_layers=3)
    return Search(
        families=(
            Pieces(
                right=("2*alpha_p*x + beta",),
                left=(
                    "alpha_n*expm1(x) + beta",
                    "alpha_n*tanh(x) + beta",
                    "alpha_n*x/(1 - x) + beta",
                ),
                parameters=("alpha_p=0.8:softplus", "alpha_n=0.8:softplus>beta", "beta=0.5:fixed"),
            ),
        ),
        screen=ScreenLimits(slower=100.0),  # times of toy models on a busy machine are not reliable
        compare=replace(base, seeds=Comparison.seeds),
        rounds=(
            Round(length=0.5, seeds=(1, 2), rates=(9e-3,), keep=2),
            Round(seeds=(1, 2), keep=1),
        ),
        confirm=(
            Confirmation(name="small", compare=fresh),
            Confirmation(
                name="deep", compare=replace(fresh, pretrain=replace(fresh.pretrain, model=model))
            ),
        ),
    )


def _plain(activation: str, width: int) -> Arm:
    return Arm(name=activation, ffn=PlainFFN(width=width, activation=activation))
