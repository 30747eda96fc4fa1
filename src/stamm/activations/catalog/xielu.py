"""xIELU and relatives: the integrals of an affine exponential and of an affine rectifier.

In a file of its own, because most models load only this family, and it needs no gates.
"""

from __future__ import annotations

from stamm.activations.catalog.notation import cut
from stamm.activations.spec import Compat, Constant, Spec
from stamm.activations.spec.parameters import Fixed, Parameter, Softplus

_XIELU_PAPER = "Huang and Schlag 2024, Deriving Activation Functions Using Integration (2411.13010)"
_BETA = Parameter(name="beta", initial=0.5, bijection=Fixed())
_ALPHA_P = Parameter(name="alpha_p", initial=0.8, bijection=Softplus())

XIELU = Spec(
    name="xielu",
    title="xIELU: expanded integral of the exponential linear unit",
    pieces=cut(("x > 0", "2*alpha_p*x + beta"), ("x <= 0", "alpha_n*(exp(x) - 1) + beta")),
    parameters=(
        _ALPHA_P,
        Parameter(name="alpha_n", initial=0.8, bijection=Softplus(above="beta")),
        _BETA,
    ),
    source=_XIELU_PAPER,
    compat=Compat(
        name="eps",
        pieces=cut(
            ("x > 0", "alpha_p * x * x + beta * x"),
            ("x <= 0", "(expm1(min(x, eps)) - x) * alpha_n + beta * x"),
        ),
        constants=(Constant(name="eps", value=-1e-6),),
        source="huggingface/transformers, src/transformers/activations.py, XIELUActivation",
    ),
    notes=(
        "alpha_n > beta, so the gradient is negative on the far left. The other libraries clamp"
        " the negative branch at eps = -1e-6, which makes the gradient at 0 beta - alpha_n instead"
        " of beta; compat='eps' reproduces that bit for bit, the default does not clamp."
    ),
    peers=("transformers.activations:XIELUActivation",),
)
XIPRELU = Spec(
    name="xiprelu",
    title="xIPReLU: expanded integral of the parametric rectifier",
    pieces=cut(("x > 0", "2*alpha_p*x + beta"), ("x <= 0", "2*alpha_n*x + beta")),
    parameters=(
        _ALPHA_P,
        Parameter(name="alpha_n", initial=0.8, bijection=Softplus()),
        _BETA,
    ),
    source=_XIELU_PAPER,
    notes="Grows as a square on both sides: its gradient has no lower bound.",
)

ENTRIES: tuple[Spec, ...] = (XIELU, XIPRELU)
