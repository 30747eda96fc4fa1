"""Relatives of xIELU and of the squared rectifier: stated gradients whose integrals are short.

Left out: PolyNorm and the normalised members of the same family, which divide by a row statistic.
"""

from __future__ import annotations

from dataclasses import replace

from stamm.activations.catalog.notation import cut, fixed, free
from stamm.activations.spec import Gated, Piece, Spec
from stamm.activations.spec.parameters import Absolute, Fixed, Identity, Parameter, Softplus

_XIELU_PAPER = "Huang and Schlag 2024, Deriving Activation Functions Using Integration (2411.13010)"
_MEGATRON = "AllenHaoHuang/Megatron-LM, megatron/core/activations.py"
_FIXED_BETA = Parameter(name="beta", initial=0.5, bijection=Fixed())
_ALPHA_1 = Parameter(name="alpha_1", initial=0.8, bijection=Absolute())
_ALPHA_2 = Parameter(name="alpha_2", initial=0.4, bijection=Absolute())
_ALPHA_N = Parameter(name="alpha_n", initial=0.8, bijection=Absolute(above="beta"))
_BETA = Parameter(name="beta", initial=0.5, bijection=Absolute())
_SOFTSIGN_GATE = Piece(where="x <= 0", formula="alpha_n/(1 - x)**2", integral="alpha_n*x/(1 - x)")
_SOFTSIGN = Piece(
    where="x <= 0",
    formula="alpha_n*x/(1 - x)*(1 + 1/(1 - x)) + beta",
    integral="alpha_n*x**2/(1 - x) + beta*x",
)
_ABSOLUTE_NOTE = "alpha_n = |beta| + |raw| and all others are |raw|: the library's own constraint."

XIEP = Spec(
    name="xiep",
    title="xIEP: xIELU with a cubic term on the right",
    pieces=cut(
        ("x > 0", "3*alpha_3*x**2 + 2*alpha_2*x + beta"), ("x <= 0", "alpha_n*(exp(x) - 1) + beta")
    ),
    parameters=(
        Parameter(name="alpha_2", initial=0.8, bijection=Softplus()),
        Parameter(name="alpha_n", initial=0.8, bijection=Softplus(above="beta")),
        Parameter(name="alpha_3", initial=0.4, bijection=Softplus()),
        _FIXED_BETA,
    ),
    source=f"{_XIELU_PAPER}; Anonymous5823/xielu, src/nanotron/nn/activations.py",
    notes="Grows as a cube: in float16 it overflows above x = 54.",
)
XIPRELUP = Spec(
    name="xiprelup",
    title="xIPReLUP: xIPReLU with a trainable power",
    pieces=cut(
        ("x > 0", "alpha_p*power*x**(power - 1) + beta", "alpha_p*x**power + beta*x"),
        ("x <= 0", "beta - alpha_n*power*(-x)**(power - 1)", "alpha_n*(-x)**power + beta*x"),
    ),
    parameters=(
        Parameter(name="alpha_p", initial=0.8, bijection=Softplus()),
        Parameter(name="alpha_n", initial=0.8, bijection=Softplus()),
        Parameter(name="power", initial=2.0, bijection=Softplus(above="1")),
        _FIXED_BETA,
    ),
    source="swiss-ai/Megatron-LM, megatron/training/activations.py",
    notes=(
        "The library clamps |x| at 1e-6 before it takes the power; that makes f(0) as large as"
        " alpha 1e-6**power and is not done here. Below power 2 the curvature is infinite at 0."
    ),
)
XSSSLUR2 = Spec(
    name="xssslur2",
    title="XSSSLUR2: a square on the right, x times its softsign on the left",
    pieces=(Piece(where="x > 0", formula="2*alpha_1*x + beta"), _SOFTSIGN),
    parameters=(_ALPHA_1, _ALPHA_N, _BETA),
    source=_MEGATRON,
    notes=_ABSOLUTE_NOTE,
)
XSSSLUPR = Spec(
    name="xssslupr",
    title="XSSSLUPR: a cubic on the right, x times its softsign on the left",
    pieces=(Piece(where="x > 0", formula="3*alpha_2*x**2 + 2*alpha_1*x + beta"), _SOFTSIGN),
    parameters=(_ALPHA_1, _ALPHA_2, _ALPHA_N, _BETA),
    source=_MEGATRON,
    notes=_ABSOLUTE_NOTE,
)
GXSSSLUR2 = Spec(
    name="gxssslur2",
    title="GXSSSLUR2: a line on the right, softsign on the left, times up",
    pieces=(Piece(where="x > 0", formula="alpha_1"), _SOFTSIGN_GATE),
    parameters=(_ALPHA_1, _ALPHA_N, _BETA),
    anchor=("0", "beta"),
    continuity="jump",
    arity=Gated(order=1),
    source=_MEGATRON,
    notes=f"{_ABSOLUTE_NOTE} The gate's slope jumps at 0 unless alpha_1 = alpha_n.",
)
GXSSSLUPR = replace(
    GXSSSLUR2,
    name="gxssslupr",
    title="GXSSSLUPR: a square on the right, softsign on the left, times up",
    pieces=(Piece(where="x > 0", formula="2*alpha_2*x + alpha_1"), _SOFTSIGN_GATE),
    parameters=(_ALPHA_1, _ALPHA_2, _ALPHA_N, _BETA),
)
POLYRELU = Spec(
    name="polyrelu",
    title="PolyReLU: powers one to three of the rectifier",
    pieces=cut(("x > 0", "alpha_1 + 2*alpha_2*x + 3*alpha_3*x**2"), ("x <= 0", "0")),
    parameters=tuple(
        Parameter(name=f"alpha_{power}", initial=1 / 3, bijection=Identity()) for power in (1, 2, 3)
    ),
    continuity="jump",
    source="Zhuo et al. 2024, Polynomial Composition Activations (2411.03884)",
    notes="Of degree 3 and without its constant term, which starts at 0 in the paper.",
)
RELU2_SOFT_CLAMPED = Spec(
    name="relu2_soft_clamped",
    title="Soft-clamped squared rectifier: (limit tanh(relu(x)/limit))**2",
    pieces=cut(
        (
            "x > 0",
            "8*limit*tanh(x/limit)*logistic(2*x/limit)*logistic(-2*x/limit)",
            "limit**2*tanh(x/limit)**2",
        ),
        ("x <= 0", "0"),
    ),
    parameters=fixed(limit=16.0),
    source="NVIDIA/TransformerEngine pull request 3463",
    notes=(
        "At limit 16 the slope is at most 12.32, at x = 10.54, where that of the squared rectifier"
        " is 21.07. The function stays below limit**2."
    ),
)
CRRELU = Spec(
    name="crrelu",
    title="CRReLU: rectifier plus epsilon x exp(-x**2/2)",
    pieces=cut(
        (
            "x > 0",
            "1 + epsilon*(1 - x**2)*sqrt(2*pi)*normal_pdf(x)",
            "x + epsilon*x*sqrt(2*pi)*normal_pdf(x)",
        ),
        (
            "x <= 0",
            "epsilon*(1 - x**2)*sqrt(2*pi)*normal_pdf(x)",
            "epsilon*x*sqrt(2*pi)*normal_pdf(x)",
        ),
    ),
    parameters=free(epsilon=0.01),
    continuity="jump",
    source="Sun et al. 2024, A Method on Searching Better Activation Functions (2405.12954)",
    notes=(
        "The gradient changes sign at x = -1 for every epsilon but 0; on the right it stays"
        " positive for -1 < epsilon < 2.24."
    ),
)
STARRELU = Spec(
    name="starrelu",
    title="StarReLU: scale times the squared rectifier, plus bias",
    pieces=cut(("x > 0", "2*scale*x"), ("x <= 0", "0")),
    parameters=free(scale=0.8944, bias=-0.4472),
    anchor=("0", "bias"),
    source="Yu et al. 2022, MetaFormer Baselines for Vision (2210.13452)",
    notes=(
        "The starts are the paper's: 1/sqrt(5/4) and minus half of it give mean 0 and variance 1"
        " for a standard normal input. The authors' code starts at 1 and 0."
    ),
)
SYMLOG = Spec(
    name="symlog",
    title="Symlog: sign(x) log(1 + |x|)",
    pieces=cut(("x > 0", "1/(1 + x)", "log1p(x)"), ("x <= 0", "1/(1 - x)", "-log1p(-x)")),
    source="Hafner et al. 2023, Mastering Diverse Domains through World Models (2301.04104)",
    notes="Inverse of symexp.",
)
SYMEXP = Spec(
    name="symexp",
    title="Symexp: sign(x) (exp(|x|) - 1)",
    pieces=cut(("x > 0", "exp(x)", "expm1(x)"), ("x <= 0", "exp(-x)", "-expm1(-x)")),
    source="Hafner et al. 2023, Mastering Diverse Domains through World Models (2301.04104)",
    notes="Inverse of symlog. Overflows float32 beyond |x| = 88.7 and float16 beyond 11.0.",
)

ENTRIES: tuple[Spec, ...] = (
    XIEP,
    XIPRELUP,
    XSSSLUR2,
    XSSSLUPR,
    GXSSSLUR2,
    GXSSSLUPR,
    POLYRELU,
    RELU2_SOFT_CLAMPED,
    CRRELU,
    STARRELU,
    SYMLOG,
    SYMEXP,
)
