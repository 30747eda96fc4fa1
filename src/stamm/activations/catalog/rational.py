"""Rational, bounded, clipped and surrogate activations.

Left out, because they are not functions of one number: tri-diagonal TMAF (it mixes neighbouring
channels), the matrix-exponential layer, KAF's Fourier part and the grouped coefficients of NoRA.
Rationals without a safe denominator (Boulle et al. 2020) reach a pole while they are trained.
Closed-form Mittag-Leffler members are entries under other names (ELU, the logistic gate, tanh).
"""

from __future__ import annotations

from stamm.activations.catalog.notation import cut, everywhere, fixed, free, positive
from stamm.activations.spec import Jump, Piece, Spec
from stamm.activations.spec.parameters import Identity, Parameter

_MONOTONIC = "Runje and Shankaranarayana 2022, Constrained Monotonic Neural Networks (2205.11775)"

_P = "(a0 + x*(a1 + x*(a2 + x*a3)))"
_P_SLOPE = "(a1 + x*(2*a2 + x*(3*a3)))"
_M = "x*(b1 + x*b2)"
_M_SLOPE = "(b1 + 2*b2*x)"
# The same with t = 1/x, x**3 and x**2 taken out, so that no power of a large x is formed.
_N = "(a3 + (a2 + (a1 + a0/x)/x)/x)"
_N_SLOPE = "(a2 + (2*a1 + 3*a0/x)/x)"
_L = "(b2 + b1/x)"
_D = f"(1/x**2 + abs({_L}))"
_FAR = Piece(
    where="x > 1",
    formula=(f"{_N}/{_D} - {_N_SLOPE}/(x*{_D}) + {_N}*(2/x + sign({_L})*b1)/(x*{_D}**2)"),
    integral=f"x*{_N}/{_D}",
)
_PAU_STARTS = {
    "a0": 0.11143814042285753,
    "a1": 0.5500043254094745,
    "a2": 0.38748030194742117,
    "a3": 0.10859116398267224,
    "b1": 7.370237749086212e-06,
    "b2": 0.19743788349488567,
}

PAU = Spec(
    name="pau",
    title="PAU: safe rational of degrees 3 and 2 that starts as a leaky rectifier",
    pieces=(
        Piece(where="x < -1", formula=_FAR.formula, integral=_FAR.integral),
        Piece(
            where="-1 <= x <= 1",
            formula=(f"{_P_SLOPE}/(1 + abs({_M})) - {_P}*sign({_M})*{_M_SLOPE}/(1 + abs({_M}))**2"),
            integral=f"{_P}/(1 + abs({_M}))",
        ),
        _FAR,
    ),
    parameters=tuple(
        Parameter(name=name, initial=value, bijection=Identity())
        for name, value in _PAU_STARTS.items()
    ),
    anchor=("1", "(a0 + a1 + a2 + a3)/(1 + abs(b1 + b2))"),
    continuity="jump",
    source=(
        "Molina, Schramowski and Kersting 2019, Pade Activation Units (1907.06732); form B and"
        " starting coefficients: ml-research/rational_activations, rationals_config.json"
    ),
    notes=(
        "P(x)/(1 + |b1 x + b2 x**2|), fitted by its authors to the leaky rectifier of slope 0.1 on"
        " [-3, 3]; the largest error there is 0.111, at 0. Beyond |x| = 1 it is evaluated in 1/x,"
        " so that no power of a large x overflows. The gradient has a small jump wherever the sum"
        " under the bars changes sign."
    ),
)
TEMPERED_SIGMOID = Spec(
    name="tempered_sigmoid",
    title="Tempered sigmoid: scale logistic(temperature x) - offset",
    pieces=everywhere(
        "scale*temperature*logistic(temperature*x)*logistic(-temperature*x)",
        "scale*logistic(temperature*x)",
    ),
    parameters=fixed(scale=2.0, temperature=2.0, offset=1.0),
    anchor=("0", "scale/2 - offset"),
    source=(
        "Papernot et al. 2020, Tempered Sigmoid Activations for Deep Learning with Differential"
        " Privacy (2007.14191)"
    ),
    notes="At (2, 2, 1), the values here, it is tanh. |f| < max(scale - offset, offset).",
)
CLIPPED_RELU_ZERO = Spec(
    name="clipped_relu_zero",
    title="Rectifier that falls back to 0 above a threshold",
    pieces=cut(("x <= 0", "0"), ("0 < x <= threshold", "1"), ("x > threshold", "0")),
    parameters=fixed(threshold=6.0),
    continuity="jump",
    jumps=(Jump(at="threshold", by="-threshold"),),
    source="Hoang, Hanif and Shafique 2019, FT-ClipAct (1912.00941)",
    notes=(
        "A value beyond what the trained network ever shows is taken for a hardware fault and"
        " replaced by 0. The threshold is found layer by layer after training; 6 is a placeholder."
    ),
)
PACT = Spec(
    name="pact",
    title="PACT: rectifier clipped at a trainable level",
    pieces=cut(("x <= 0", "0"), ("0 < x < alpha", "1"), ("x >= alpha", "0")),
    parameters=positive(alpha=10.0),
    continuity="jump",
    source="Choi et al. 2018, PACT: Parameterized Clipping Activation (1805.06085)",
    aliases=("clipped_relu",),
    notes=(
        "df/dalpha is 1 where the clip acts and 0 elsewhere. The paper calls that a"
        " straight-through estimate because of the quantiser behind it; for the clip alone it is"
        " exact. alpha is kept positive here."
    ),
)
ELU_CONCAVE = Spec(
    name="elu_concave",
    title="Concave ELU: -elu(-x)",
    pieces=cut(("x <= 0", "1"), ("x > 0", "exp(-x)", "-expm1(-x)")),
    source=_MONOTONIC,
    notes="With elu and elu_saturated the three kinds of unit of a constrained monotonic layer.",
)
ELU_SATURATED = Spec(
    name="elu_saturated",
    title="Saturated ELU: convex below 0, concave above",
    pieces=cut(
        ("x <= -1", "exp(x + 1)", "exp(x + 1)"),
        ("-1 < x < 1", "1"),
        ("x >= 1", "exp(1 - x)", "-exp(1 - x)"),
    ),
    source=_MONOTONIC,
    notes="elu(x + 1) - elu(1) up to 0 and elu(1) - elu(1 - x) above: bounded by 2 on both sides.",
)
SOFTPLUS_SATURATED = Spec(
    name="softplus_saturated",
    title="Saturated softplus: convex below 0, concave above",
    pieces=cut(
        ("x <= 0", "logistic(x + 1)", "log1p(exp(1)/(1 + exp(1))*expm1(x))"),
        ("x > 0", "logistic(1 - x)", "-log1p(exp(1)/(1 + exp(1))*expm1(-x))"),
    ),
    source=_MONOTONIC,
    notes="softplus(x + 1) - softplus(1) up to 0 and softplus(1) - softplus(1 - x) above.",
)
HELU = Spec(
    name="helu",
    title="HeLU: a rectifier whose backward threshold lies at -0.05",
    pieces=cut(("x > 0", "1"), ("x <= 0", "0")),
    continuity="jump",
    surrogate=cut(("x > -0.05", "1"), ("x <= -0.05", "0")),
    source="Kimhi et al. 2024, Hysteresis Activation Function for Efficient Inference (2411.10573)",
    notes=(
        "The backward pass is declared, and is not the gradient of this function: on -0.05 < x <= 0 it"
        " is 1 where the slope is 0, and there is no continuous function with value 0 left of 0,"
        " slope 1 between and value x right of 0."
    ),
)
TMAF_DIAGONAL = Spec(
    name="tmaf_diagonal",
    title="Diagonal TMAF on three intervals: a trainable multiple of x on each",
    pieces=cut(("x <= 0", "t_1"), ("0 < x <= 1", "t_2"), ("x > 1", "t_3")),
    parameters=free(t_1=0.0, t_2=1.0, t_3=1.0),
    continuity="jump",
    jumps=(Jump(at="1", by="t_3 - t_2"),),
    source="Liu, Li and Zikatanov 2021, Trainable Matrix Activation Functions (2109.09948)",
    notes=(
        "t_k x on the k-th interval, so the function jumps by (t_3 - t_2) at x = 1. The paper"
        " leaves knots and starts free; here they make it the rectifier at the start."
    ),
)

ENTRIES: tuple[Spec, ...] = (
    PAU,
    TEMPERED_SIGMOID,
    CLIPPED_RELU_ZERO,
    PACT,
    ELU_CONCAVE,
    ELU_SATURATED,
    SOFTPLUS_SATURATED,
    HELU,
    TMAF_DIAGONAL,
)
