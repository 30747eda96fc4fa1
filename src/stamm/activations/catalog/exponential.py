"""Functions made of exponentials and logarithms on one or both sides of 0."""

from __future__ import annotations

from stamm.activations.catalog.notation import cut, everywhere, fixed, positive
from stamm.activations.spec import Spec
from stamm.activations.spec.parameters import Fixed, Identity, Parameter, Softplus

_GOLDEN = "Basirat and Roth 2018, The Quest for the Golden Activation Function (1808.00783)"
_ALPHA = Parameter(name="alpha", initial=1.0, bijection=Fixed())

ENTRIES: tuple[Spec, ...] = (
    Spec(
        name="elu",
        title="ELU: exponential linear unit",
        pieces=cut(("x > 0", "1"), ("x <= 0", "alpha*exp(x)")),
        parameters=(_ALPHA,),
        continuity="jump",
        source=(
            "Clevert, Unterthiner and Hochreiter 2015, Fast and Accurate Deep Network Learning by"
            " Exponential Linear Units (1511.07289)"
        ),
        notes="Its gradient is continuous at alpha = 1.",
        peers=("torch.nn.functional:elu",),
    ),
    Spec(
        name="celu",
        title="CELU: ELU whose gradient is continuous for every alpha",
        pieces=cut(("x > 0", "1"), ("x <= 0", "exp(x/alpha)")),
        parameters=(_ALPHA,),
        source="Barron 2017, Continuously Differentiable Exponential Linear Units (1704.07483)",
        peers=("torch.nn.functional:celu",),
    ),
    Spec(
        name="selu",
        title="SELU: scaled ELU that keeps mean 0 and variance 1",
        pieces=cut(("x > 0", "scale"), ("x <= 0", "scale*alpha*exp(x)")),
        parameters=fixed(alpha=1.6732632423543772, scale=1.0507009873554805),
        continuity="jump",
        source="Klambauer et al. 2017, Self-Normalizing Neural Networks (1706.02515)",
        notes="The constants are the fixed point of the moments, to the nearest double.",
        peers=("torch.nn.functional:selu",),
    ),
    Spec(
        name="pelu",
        title="PELU: ELU with learned height and decay",
        pieces=cut(("x > 0", "a/b"), ("x <= 0", "a/b*exp(x/b)")),
        parameters=positive(a=1.0, b=1.0),
        source=(
            "Trottier, Giguère and Chaib-draa 2016, Parametric Exponential Linear Unit for Deep"
            " Convolutional Neural Networks (1605.09332)"
        ),
        notes="The paper clips a and b at 0.1; here they stay above 0.",
    ),
    Spec(
        name="mpelu",
        title="MPELU: ELU with learned height and rate, apart from the right side",
        pieces=cut(("x > 0", "1"), ("x <= 0", "alpha*beta*exp(beta*x)")),
        parameters=(
            Parameter(name="alpha", initial=1.0, bijection=Identity()),
            Parameter(name="beta", initial=1.0, bijection=Softplus()),
        ),
        continuity="jump",
        source=(
            "Li et al. 2016, Improving Deep Neural Network with Multiple Parametric Exponential"
            " Linear Units (1606.00305)"
        ),
    ),
    Spec(
        name="elish",
        title="ELiSH: SiLU on the right, ELU times the logistic gate on the left",
        pieces=cut(
            ("x > 0", "logistic(x) + x*logistic(x)*logistic(-x)"),
            (
                "x <= 0",
                "exp(x)*logistic(x) + expm1(x)*logistic(x)*logistic(-x)",
                "expm1(x)*logistic(x)",
            ),
        ),
        source=_GOLDEN,
    ),
    Spec(
        name="hard_elish",
        title="HardELiSH: identity and ELU, each times a hard gate",
        pieces=cut(
            ("x >= 1", "1"),
            ("0 < x < 1", "x + 1/2", "x*(x + 1)/2"),
            ("-1 < x <= 0", "(expm1(x) + (x + 1)*exp(x))/2", "(x + 1)*expm1(x)/2"),
            ("x <= -1", "0"),
        ),
        continuity="jump",
        source=_GOLDEN,
    ),
    Spec(
        name="nlrelu",
        title="NLReLU: logarithm of a rectifier",
        pieces=cut(("x > 0", "beta/(1 + beta*x)", "log1p(beta*x)"), ("x <= 0", "0")),
        parameters=fixed(beta=1.0),
        continuity="jump",
        source=(
            "Liu et al. 2019, Natural-Logarithm-Rectified Activation Function in Convolutional"
            " Neural Networks (1908.03682)"
        ),
    ),
    Spec(
        name="softplus",
        title="Softplus: the integral of the logistic gate",
        pieces=everywhere("logistic(x)"),
        anchor=("0", "log(2)"),
        source=(
            "Dugas et al. 2000, Incorporating Second-Order Functional Knowledge for Better Option"
            " Pricing"
        ),
        peers=("torch.nn.functional:softplus",),
    ),
    Spec(
        name="softplus_beta",
        title="Softplus with a learned sharpness",
        pieces=cut(
            ("x > 0", "logistic(beta*x)", "x + softplus(-beta*x)/beta"),
            ("x <= 0", "logistic(beta*x)", "softplus(beta*x)/beta"),
        ),
        parameters=positive(beta=1.0),
        anchor=("0", "log(2)/beta"),
        source=(
            "Dugas et al. 2000, Incorporating Second-Order Functional Knowledge for Better Option"
            " Pricing; beta as in torch.nn.Softplus"
        ),
        notes="Stated on two sides so that the slope in beta does not cancel on the right.",
        peers=("torch.nn.functional:softplus",),
    ),
    Spec(
        name="log_sigmoid",
        title="Logarithm of the logistic gate",
        pieces=everywhere("logistic(-x)", "-softplus(-x)"),
        anchor=("0", "-log(2)"),
        source="torch.nn.LogSigmoid; -softplus(-x)",
        peers=("torch.nn.functional:logsigmoid",),
    ),
    Spec(
        name="logish",
        title="Logish: x log(1 + sigmoid(x))",
        pieces=everywhere(
            "log1p(logistic(x)) + x*logistic(x)*logistic(-x)/(1 + logistic(x))",
            "x*log1p(logistic(x))",
        ),
        source=(
            "Zhu et al. 2021, Logish: A New Nonlinear Nonmonotonic Activation Function for"
            " Convolutional Neural Network (Neurocomputing)"
        ),
    ),
    Spec(
        name="smish",
        title="Smish: x tanh(log(1 + sigmoid(x)))",
        pieces=everywhere(
            "logistic(x)*(2 + logistic(x))/(2 + 2*logistic(x) + logistic(x)**2)"
            " + 4*x*logistic(x)*logistic(-x)*(1 + logistic(x))"
            "/(2 + 2*logistic(x) + logistic(x)**2)**2",
            "x*logistic(x)*(2 + logistic(x))/(2 + 2*logistic(x) + logistic(x)**2)",
        ),
        source=(
            "Wang, Ren and Wang 2022, Smish: A Novel Activation Function for Deep Learning Methods"
            " (Electronics 11, 540)"
        ),
    ),
)
