"""Bounded functions: sigmoids, bumps and waves.

Gradients are stated so that every quantity stays finite far out: by logistic gates instead of
hyperbolic functions, and by 1/x where x**2 would overflow first.
"""

from __future__ import annotations

from stamm.activations.catalog.notation import cut, everywhere, fixed
from stamm.activations.spec import Spec

_SECH2 = "logistic(2*x)*logistic(-2*x)"

ENTRIES: tuple[Spec, ...] = (
    Spec(
        name="sigmoid",
        title="Logistic sigmoid",
        pieces=everywhere("logistic(x)*logistic(-x)"),
        anchor=("0", "1/2"),
        source=(
            "Rumelhart, Hinton and Williams 1986, Learning Representations by Back-propagating"
            " Errors (Nature 323)"
        ),
        aliases=("logistic",),
        peers=("torch:sigmoid",),
    ),
    Spec(
        name="tanh",
        title="Hyperbolic tangent",
        pieces=everywhere(f"4*{_SECH2}"),
        source="LeCun et al. 1998, Efficient BackProp",
        peers=("torch:tanh",),
    ),
    Spec(
        name="scaled_tanh",
        title="1.7159 tanh(2x/3), which sends 1 to 1",
        pieces=everywhere("4*height*rate*logistic(2*rate*x)*logistic(-2*rate*x)"),
        parameters=fixed(height=1.7159, rate=2 / 3),
        source="LeCun et al. 1998, Efficient BackProp",
    ),
    Spec(
        name="penalized_tanh",
        title="tanh with its left side scaled down",
        pieces=cut(("x > 0", f"4*{_SECH2}"), ("x <= 0", f"4*alpha*{_SECH2}")),
        parameters=fixed(alpha=0.25),
        continuity="jump",
        source="Xu, Huang and Li 2016, Revise Saturated Activation Functions (1602.05980)",
    ),
    Spec(
        name="arctan",
        title="Arctangent",
        pieces=everywhere("pi*cauchy_pdf(x)"),
        source="torch.atan; no first publication is known",
        peers=("torch:atan",),
    ),
    Spec(
        name="erf",
        title="Error function",
        pieces=everywhere("2/sqrt(pi)*exp(-x**2)", "erf(x)"),
        source="Williams 1996, Computing with Infinite Networks",
        peers=("torch:erf",),
    ),
    Spec(
        name="softsign",
        title="Softsign: x/(1 + |x|)",
        pieces=cut(("x > 0", "1/(1 + x)**2", "x/(1 + x)"), ("x <= 0", "1/(1 - x)**2", "x/(1 - x)")),
        source="Elliott 1993, A Better Activation Function for Artificial Neural Networks",
        aliases=("elliott",),
        peers=("torch.nn.functional:softsign",),
    ),
    Spec(
        name="isru",
        title="ISRU: x/sqrt(1 + alpha x**2)",
        pieces=cut(
            ("x > 1", "(alpha + x**-2)**(-3/2)*x**-3", "1/sqrt(alpha + x**-2)"),
            ("-1 <= x <= 1", "(1 + alpha*x**2)**(-3/2)", "x/sqrt(1 + alpha*x**2)"),
            ("x < -1", "-(alpha + x**-2)**(-3/2)*x**-3", "-1/sqrt(alpha + x**-2)"),
        ),
        parameters=fixed(alpha=1.0),
        source=(
            "Carlile et al. 2017, Improving Deep Learning by Inverse Square Root Linear Units"
            " (1710.09967)"
        ),
        notes="Stated by 1/x beyond 1, where x**2 would overflow first.",
    ),
    Spec(
        name="gaussian",
        title="Gaussian bump: exp(-x**2)",
        pieces=everywhere("-2*sqrt(2*pi)*x*normal_pdf(sqrt(2)*x)", "exp(-x**2)"),
        anchor=("0", "1"),
        source=(
            "Ramasinghe and Lucey 2021, Beyond Periodicity: Towards a Unifying Framework for"
            " Activations in Coordinate-MLPs (2111.15135)"
        ),
        notes=(
            "The paper's exp(-x**2/(2 a**2)) at a = 1/sqrt(2). The gradient is stated with the"
            " normal density, which is 0 before the powers of x beside it overflow."
        ),
    ),
    Spec(
        name="sine",
        title="Sine",
        pieces=everywhere("cos(x)", "sin(x)"),
        source=(
            "Sitzmann et al. 2020, Implicit Neural Representations with Periodic Activation"
            " Functions (2006.09661)"
        ),
        notes="SIREN scales its first layer's input by 30; that factor belongs to the layer.",
        peers=("torch:sin",),
    ),
    Spec(
        name="cosine",
        title="Cosine",
        pieces=everywhere("-sin(x)", "cos(x)"),
        anchor=("0", "1"),
        source="Rahimi and Recht 2007, Random Features for Large-Scale Kernel Machines",
        peers=("torch:cos",),
    ),
    Spec(
        name="laplace",
        title="Laplace: the normal gate that matches a squared rectifier",
        pieces=everywhere("normal_pdf((x - mu)/sigma)/sigma"),
        parameters=fixed(mu=0.707107, sigma=0.282095),
        anchor=("mu", "1/2"),
        source="Ma et al. 2022, Mega: Moving Average Equipped Gated Attention (2209.10655)",
        notes="The paper's sqrt(1/2) and sqrt(1/(4 pi)), rounded to six digits as in transformers.",
        peers=("transformers.activations:LaplaceActivation",),
    ),
    Spec(
        name="cloglog",
        title="Complementary log-log gate: 1 - exp(-exp(x))",
        pieces=cut(
            ("x > 0", "gompertz_pdf(-x)", "1 - gompertz(-x)"),
            ("x <= 0", "gompertz_pdf(-x)", "-expm1(-exp(x))"),
        ),
        anchor=("0", "-expm1(-1)"),
        source=(
            "Gomes and Ludermir 2008, Complementary Log-Log and Probit: Activation Functions"
            " Implemented in Artificial Neural Networks"
        ),
    ),
)
