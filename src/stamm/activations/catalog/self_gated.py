"""Activations of the form x times a gate G(x), beyond the core ones.

Left out, because they are not functions of one number: the Fourier part of the KAF activation (a
matrix of frequencies acts on the whole input; its pointwise part is `gelu`), and the statistics of
Dice and VeLU, which are frozen here as fixed parameters.
"""

from __future__ import annotations

from stamm.activations.catalog.notation import cut, everywhere, free, positive
from stamm.activations.spec import Spec
from stamm.activations.spec.parameters import Fixed, Identity, Parameter

_SWISH = "Ramachandran, Zoph and Le 2017, Searching for Activation Functions (1710.05941)"
_GELU = "Hendrycks and Gimpel 2016, Gaussian Error Linear Units (1606.08415)"
_APTX = "Kumar 2022, APTx: better activation function than MISH, SWISH, and ReLU's variants"
_TANHSOFT = "Biswas et al. 2020, TanhSoft: combining Tanh and Softplus (2009.03863)"

# Twice sqrt(2/pi) (x + 0.044715 x**3): the tanh form is the logistic of it.
_TWICE_TANH = "2*sqrt(2/pi)*(x + 0.044715*x**3)"

SWISH_BETA = Spec(
    name="swish_beta",
    title="Swish: x times the logistic gate of beta x",
    pieces=everywhere(
        "logistic(beta*x) + beta*x*logistic(beta*x)*logistic(-beta*x)", "x*logistic(beta*x)"
    ),
    parameters=free(beta=1.0),
    source=_SWISH,
    notes="At beta = 0 it is x/2; as beta grows it tends to the rectifier. At beta = 1 it is silu.",
)
GELU_TANH = Spec(
    name="gelu_tanh",
    title="GELU in its tanh form",
    pieces=cut(
        ("x <= -25", "0"),
        (
            "-25 < x < 25",
            f"logistic({_TWICE_TANH}) + 2*sqrt(2/pi)*(x + 0.134145*x**3)"
            f"*logistic({_TWICE_TANH})*logistic(-{_TWICE_TANH})",
            f"x*logistic({_TWICE_TANH})",
        ),
        ("x >= 25", "1"),
    ),
    source=_GELU,
    aliases=("gelu_pytorch_tanh", "gelu_new"),
    notes=(
        "Written as x logistic(2u) instead of x (1 + tanh u)/2, whose bracket cancels on the left."
        " A function of its own: it differs from gelu by at most 4.73e-4, at |x| = 2.70."
        " Beyond |x| = 25 it is 0 or x to within 1e-500, and is stated so: there the cube in its"
        " slope would meet a gate that has vanished."
    ),
    peers=(
        "transformers.activations:NewGELUActivation",
        "transformers.activations:FastGELUActivation",
    ),
)
QUICK_GELU = Spec(
    name="quick_gelu",
    title="Quick GELU: x times the logistic gate of 1.702 x",
    pieces=everywhere(
        "logistic(1.702*x) + 1.702*x*logistic(1.702*x)*logistic(-1.702*x)", "x*logistic(1.702*x)"
    ),
    source=_GELU,
    notes="Swish at beta = 1.702.",
    peers=("transformers.activations:QuickGELUActivation",),
)
MISH = Spec(
    name="mish",
    title="Mish: x times the tanh of its softplus",
    pieces=everywhere(
        "logistic(x)*(1 + logistic(-x))/(1 + logistic(-x)**2)"
        " + 4*x*logistic(x)*logistic(-x)**2/(1 + logistic(-x)**2)**2",
        "x*logistic(x)*(1 + logistic(-x))/(1 + logistic(-x)**2)",
    ),
    source="Misra 2019, Mish: A Self Regularized Non-Monotonic Activation Function (1908.08681)",
    notes=(
        "tanh(softplus(x)) = s (1 + c)/(1 + c**2) with s = logistic(x) and c = logistic(-x), which"
        " needs one decaying exponential and has no difference in it. The usual x n/(n + 2) with"
        " n = exp(x) (exp(x) + 2) overflows float32 above x = 44.3."
    ),
    peers=("torch.nn.functional:mish",),
)
GOLU = Spec(
    name="golu",
    title="GoLU: x times the Gompertz gate",
    pieces=everywhere("gompertz(x) + x*gompertz_pdf(x)", "x*gompertz(x)"),
    source="Das et al. 2025, Gompertz Linear Units (2502.03654)",
    notes=(
        "The backward pass of the published kernel evaluates"
        " exp(-exp(-x)) (1 + x exp(-x)), which is 0 times infinity below x = -84.29 in float32 (53"
        " of 400 points on [-100, 20]), and masks the NaN; the form here has none."
    ),
)
AGLU = Spec(
    name="aglu",
    title="AGLU: x times the adaptive parametric gate (1 + lam exp(-kappa x))**(-1/lam)",
    pieces=everywhere(
        "exp(-softplus(log(lam) - kappa*x)/lam)*(1 + kappa/lam*x*logistic(log(lam) - kappa*x))",
        "x*exp(-softplus(log(lam) - kappa*x)/lam)",
    ),
    parameters=positive(lam=0.5, kappa=1.0),
    source="Alexandridis et al. 2024, Adaptive Parametric Activation (2407.08567)",
    notes=(
        "lam = 1 is Swish at kappa, and lam to 0 is GoLU. The library's hand-written backward"
        " pass omits the logarithm in df/dlam: at x = 0.5, lam = 0.5, kappa = 1 it returns -0.2740"
        " where the derivative is +0.0379. The library draws lam from (0, 1) and kappa from"
        " (0.8, 1.2); the starts here are the middles."
    ),
)
APTX = Spec(
    name="aptx",
    title="APTx: (1 + tanh x) x/2",
    pieces=everywhere("logistic(2*x) + 2*x*logistic(2*x)*logistic(-2*x)", "x*logistic(2*x)"),
    source=f"{_APTX} (2209.06119)",
    notes=(
        "gamma x (alpha + tanh(beta x)) at alpha = 1, beta = 1, gamma = 1/2. Since"
        " 1 + tanh(u) = 2 logistic(2u) it is x logistic(2x), which is swish_beta at beta = 2; at"
        " beta = 1/2 it is silu."
    ),
)
APTX_TRAINABLE = Spec(
    name="aptx_trainable",
    title="APTx with trainable shape: gamma x (alpha + tanh(beta x))",
    pieces=everywhere(
        "gamma*(alpha - 1) + 2*gamma*logistic(2*beta*x)"
        " + 4*gamma*beta*x*logistic(2*beta*x)*logistic(-2*beta*x)",
        "gamma*(alpha - 1)*x + 2*gamma*x*logistic(2*beta*x)",
    ),
    parameters=free(alpha=1.0, beta=1.0, gamma=0.5),
    source=f"{_APTX} (2209.06119); trainable in Kumar 2025, APTx Neuron (2507.14270)",
    notes=(
        "gamma (alpha - 1) x is a straight line and the rest is Swish at 2 beta: the shape is that"
        " of an expanded logistic gate. At (1, 1/2, 1/2) it is silu."
    ),
)
DICE = Spec(
    name="dice",
    title="Dice: a leak that a normalised logistic gate closes",
    pieces=everywhere(
        "logistic((x - mean)/deviation) + alpha*logistic(-(x - mean)/deviation)"
        " + (1 - alpha)/deviation*x*logistic((x - mean)/deviation)"
        "*logistic(-(x - mean)/deviation)",
        "x*logistic((x - mean)/deviation) + alpha*x*logistic(-(x - mean)/deviation)",
    ),
    parameters=(
        Parameter(name="alpha", initial=0.0, bijection=Identity()),
        Parameter(name="mean", initial=0.0, bijection=Fixed()),
        Parameter(name="deviation", initial=1.0, bijection=Fixed()),
    ),
    source="Zhou et al. 2018, Deep Interest Network for Click-Through Rate Prediction (1706.06978)",
    notes=(
        "The evaluation form: mean and deviation (sqrt(variance + 1e-8)) are the running ones of"
        " the channel, frozen. In training they belong to the batch and gradients flow through"
        " them, which no function of one number can state. alpha starts at 0, a plain gate."
    ),
)
VELU = Spec(
    name="velu",
    title="VeLU without its row scale: x times the logistic gate of 0.1 (atan + asin)",
    pieces=cut(
        (
            "x <= -10",
            "lam*(logistic((atan(x/10) - pi/2)/10) + x/(100 + x**2)"
            "*logistic((atan(x/10) - pi/2)/10)*logistic(-(atan(x/10) - pi/2)/10))",
            "lam*x*logistic((atan(x/10) - pi/2)/10)",
        ),
        (
            "-10 < x < 10",
            "lam*(logistic((atan(x/10) + asin(x/10))/10)"
            " + x/10*(10/(100 + x**2) + 1/sqrt((10 - x)*(10 + x)))"
            "*logistic((atan(x/10) + asin(x/10))/10)*logistic(-(atan(x/10) + asin(x/10))/10))",
            "lam*x*logistic((atan(x/10) + asin(x/10))/10)",
        ),
        (
            "x >= 10",
            "lam*(logistic((atan(x/10) + pi/2)/10) + x/(100 + x**2)"
            "*logistic((atan(x/10) + pi/2)/10)*logistic(-(atan(x/10) + pi/2)/10))",
            "lam*x*logistic((atan(x/10) + pi/2)/10)",
        ),
    ),
    parameters=free(lam=1.0),
    continuity="singular",
    source="Shakarami et al. 2025, VeLU: Variance-enhanced Learning Unit (2504.15051)",
    notes=(
        "The pointwise core x logistic(0.1 (atan(0.1 x) + asin(clip(0.1 x)))) with the published"
        " constants. The row statistic multiplies it by 1 + 0.1 tanh(0.9/sqrt(mean(x**2) + 1e-6)),"
        " 1.072 for a row of unit variance. Almost linear: on |x| <= 4 the gate lies in"
        " [0.480, 0.520], and under a standard normal input the best straight line leaves 0.0002 of"
        " the variance (silu: 0.20). The slope of asin is infinite at |x| = 10."
    ),
)
TANHSOFT_1 = Spec(
    name="tanhsoft_1",
    title="TanhSoft-1: tanh(0.87 x) times softplus",
    pieces=everywhere(
        "tanh(0.87*x)*logistic(x) + 3.48*logistic(1.74*x)*logistic(-1.74*x)*softplus(x)",
        "tanh(0.87*x)*softplus(x)",
    ),
    source=_TANHSOFT,
    notes="The member of tanh(a x + b exp(c x)) log(d + exp(x)) with a = 0.87, b = 0, d = 1.",
)
TANHSOFT_2 = Spec(
    name="tanhsoft_2",
    title="TanhSoft-2: x times tanh(0.6 exp(x))",
    pieces=cut(
        (
            "x <= 8",
            "tanh(0.6*exp(x)) + 2.4*x*exp(x - 1.2*exp(x))/(1 + exp(-1.2*exp(x)))**2",
            "x*tanh(0.6*exp(x))",
        ),
        ("x > 8", "1"),
    ),
    source=_TANHSOFT,
    notes=(
        "The member of tanh(a x + b exp(c x)) log(d + exp(x)) with a = 0, b = 0.6, c = 1, d = 0."
    ),
)
SRS = Spec(
    name="srs",
    title="SRS: x over x/5 + exp(-x/3)",
    pieces=everywhere(
        "(1 + x/3)*logistic(x/3)*logistic(-x/3)/(x/5*logistic(x/3) + logistic(-x/3))**2",
        "x*logistic(x/3)/(x/5*logistic(x/3) + logistic(-x/3))",
    ),
    source="Zhou et al. 2020, Soft-Root-Sign Activation Function (2003.00547)",
    notes=(
        "alpha = 5 and beta = 3, where the paper starts; it trains both. exp(-u) is written as"
        " logistic(-u)/logistic(u), which overflows on no side. The range is"
        " [-alpha beta/(e alpha - beta), alpha), here [-1.416, 5): from beta >= e alpha on, the"
        " denominator vanishes somewhere on the left."
    ),
)

ENTRIES: tuple[Spec, ...] = (
    SWISH_BETA,
    GELU_TANH,
    QUICK_GELU,
    MISH,
    GOLU,
    AGLU,
    APTX,
    APTX_TRAINABLE,
    DICE,
    VELU,
    TANHSOFT_1,
    TANHSOFT_2,
    SRS,
)
