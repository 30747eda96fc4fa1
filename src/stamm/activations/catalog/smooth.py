"""Smooth functions that grow: rectifiers by square roots, gates times their input, waves on a line.

Where a form would overflow or cancel on one side, the gradient is stated on two or three.
"""

from __future__ import annotations

from stamm.activations.catalog.notation import cut, everywhere, fixed, free, positive
from stamm.activations.spec import Spec
from stamm.activations.spec.parameters import Exp, Fixed, Parameter, Softplus

_BIGVGAN = (
    "Lee et al. 2022, BigVGAN: A Universal Neural Vocoder with Large-Scale Training (2206.04658)"
)
_ROOT = "sqrt(x**2 + b)"
_FAR = "sqrt(1 + x**-2)"

ENTRIES: tuple[Spec, ...] = (
    Spec(
        name="squareplus",
        title="Squareplus: (x + sqrt(x**2 + b))/2",
        pieces=cut(
            ("x > 0", f"1 - b/(2*{_ROOT}*({_ROOT} + x))", f"x + b/(2*({_ROOT} + x))"),
            ("-1 <= x <= 0", f"b/(2*{_ROOT}*({_ROOT} - x))", f"b/(2*({_ROOT} - x))"),
            (
                "x < -1",
                "b/(2*x**2*sqrt(1 + b*x**-2)*(sqrt(1 + b*x**-2) + 1))",
                "-b/(2*x*(sqrt(1 + b*x**-2) + 1))",
            ),
        ),
        parameters=fixed(b=4.0),
        anchor=("0", "sqrt(b)/2"),
        source=("Barron 2021, Squareplus: A Softplus-Like Algebraic Rectifier (2112.11687)"),
    ),
    Spec(
        name="bent_identity",
        title="Bent identity: x + (sqrt(x**2 + 1) - 1)/2",
        pieces=cut(
            ("x > 1", f"1 + 1/(2*{_FAR})", f"x + x*{_FAR}/2"),
            ("-1 <= x <= 1", "1 + x/(2*sqrt(x**2 + 1))", "x + x**2/(2*(sqrt(x**2 + 1) + 1))"),
            ("x < -1", f"1 - 1/(2*{_FAR})", f"x - x*{_FAR}/2"),
        ),
        source="No first publication is known",
    ),
    Spec(
        name="isrlu",
        title="ISRLU: identity on the right, x/sqrt(1 + alpha x**2) on the left",
        pieces=cut(
            ("x > 0", "1"),
            ("-1 <= x <= 0", "(1 + alpha*x**2)**(-3/2)", "x/sqrt(1 + alpha*x**2)"),
            ("x < -1", "-(alpha + x**-2)**(-3/2)*x**-3", "-1/sqrt(alpha + x**-2)"),
        ),
        parameters=fixed(alpha=1.0),
        source=(
            "Carlile et al. 2017, Improving Deep Learning by Inverse Square Root Linear Units"
            " (1710.09967)"
        ),
    ),
    Spec(
        name="tanh_shrink",
        title="x - tanh(x)",
        pieces=everywhere("(2*logistic(2*x) - 1)**2", "x - tanh(x)"),
        source="torch.nn.Tanhshrink",
        notes="Near 0, where f is x**3/3, the difference keeps absolute digits only.",
        peers=("torch.nn.functional:tanhshrink",),
    ),
    Spec(
        name="lisht",
        title="LiSHT: x tanh(x)",
        pieces=everywhere("tanh(x) + 4*x*logistic(2*x)*logistic(-2*x)", "x*tanh(x)"),
        source=(
            "Roy et al. 2019, LiSHT: Non-Parametric Linearly Scaled Hyperbolic Tangent Activation"
            " Function for Neural Networks (1901.05894)"
        ),
    ),
    Spec(
        name="softmodulus_t",
        title="SoftModulusT: x tanh(x/alpha)",
        pieces=everywhere(
            "2*logistic(2*x/alpha) - 1 + 4*x*logistic(2*x/alpha)*logistic(-2*x/alpha)/alpha",
            "x*tanh(x/alpha)",
        ),
        parameters=fixed(alpha=0.01),
        source=(
            "Vallés-Pérez et al. 2023, Empirical Study of the Modulus as Activation Function in"
            " Computer Vision Applications (2301.05993)"
        ),
    ),
    Spec(
        name="dsilu",
        title="dSiLU: the slope of SiLU",
        pieces=everywhere(
            "logistic(x)*logistic(-x)*(2 + x*(1 - 2*logistic(x)))",
            "logistic(x) + x*logistic(x)*logistic(-x)",
        ),
        anchor=("0", "1/2"),
        source=(
            "Elfwing, Uchibe and Doya 2017, Sigmoid-Weighted Linear Units for Neural Network"
            " Function Approximation in Reinforcement Learning (1702.03118)"
        ),
    ),
    Spec(
        name="flatten_t_swish",
        title="Flatten-T Swish: SiLU on the right, shifted; constant on the left",
        pieces=cut(("x > 0", "logistic(x) + x*logistic(x)*logistic(-x)"), ("x <= 0", "0")),
        parameters=fixed(t=-0.2),
        anchor=("0", "t"),
        continuity="jump",
        source=(
            "Chieng et al. 2018, Flatten-T Swish: A Thresholded ReLU-Swish-like Activation Function"
            " for Deep Learning (1812.06247)"
        ),
    ),
    Spec(
        name="ptelu",
        title="P-TELU: identity on the right, learned tanh on the left",
        pieces=cut(
            ("x > 0", "1"),
            (
                "x <= 0",
                "4*alpha*beta*logistic(2*beta*x)*logistic(-2*beta*x)",
                "alpha*expm1(2*beta*x)*logistic(-2*beta*x)",
            ),
        ),
        parameters=positive(alpha=1.0, beta=1.0),
        continuity="jump",
        source=(
            "Duggal and Gupta 2017, P-TELU: Parametric Tan Hyperbolic Linear Unit Activation for"
            " Deep Neural Networks (ICCV Workshops)"
        ),
        notes="The paper takes |alpha| and |beta|; here they stay above 0.",
    ),
    Spec(
        name="sinlu",
        title="SinLU: a line with a learned wave, times the logistic gate",
        pieces=everywhere(
            "(1 - a*b + 2*a*b*cos(b*x/2)**2)*logistic(x) + (x + a*sin(b*x))*logistic(x)*logistic(-x)",
            "(x + a*sin(b*x))*logistic(x)",
        ),
        parameters=free(a=1.0, b=1.0),
        source=("Paul et al. 2022, SinLU: Sinu-Sigmoidal Linear Unit (Mathematics 10, 337)"),
    ),
    Spec(
        name="smu",
        title="SMU: a leaky rectifier smoothed by the error function",
        pieces=everywhere(
            "(1 + alpha)/2 + (1 - alpha)/2*erf(mu*(1 - alpha)*x)"
            " + mu*(1 - alpha)**2/sqrt(pi)*x*exp(-(mu*(1 - alpha)*x)**2)",
            "((1 + alpha)*x + (1 - alpha)*x*erf(mu*(1 - alpha)*x))/2",
        ),
        parameters=(
            Parameter(name="alpha", initial=0.25, bijection=Fixed()),
            Parameter(name="mu", initial=1.0, bijection=Softplus()),
        ),
        source=(
            "Biswas et al. 2021, SMU: Smooth Activation Function for Deep Networks Using Smoothing"
            " Maximum Technique (2111.04682)"
        ),
        notes="Larger mu is closer to the leaky rectifier; here it starts at 1.",
    ),
    Spec(
        name="serf",
        title="Serf: x erf(softplus(x))",
        pieces=everywhere(
            "erf(softplus(x)) + 2*sqrt(2)*x*logistic(x)*normal_pdf(sqrt(2)*softplus(x))",
            "x*erf(softplus(x))",
        ),
        source=(
            "Nag and Bhattacharyya 2021, Serf: Towards Better Training of Deep Neural Networks"
            " Using Log-Softplus Error Activation Function (2108.09598)"
        ),
    ),
    Spec(
        name="snake",
        title="Snake: x + sin(alpha x)**2/alpha",
        pieces=everywhere("1 + sin(2*alpha*x)", "x + sin(alpha*x)**2/alpha"),
        parameters=(Parameter(name="alpha", initial=1.0, bijection=Exp()),),
        source=(
            "Ziyin, Hartwig and Ueda 2020, Neural Networks Fail to Learn Periodic Functions and How"
            " to Fix It (2006.08195)"
        ),
    ),
    Spec(
        name="snake_beta",
        title="SnakeBeta: x + sin(alpha x)**2/beta",
        pieces=everywhere("1 + alpha*sin(2*alpha*x)/beta", "x + sin(alpha*x)**2/beta"),
        parameters=(
            Parameter(name="alpha", initial=1.0, bijection=Exp()),
            Parameter(name="beta", initial=1.0, bijection=Exp()),
        ),
        source=_BIGVGAN,
    ),
    Spec(
        name="gcu",
        title="GCU: growing cosine unit, x cos(x)",
        pieces=everywhere("cos(x) - x*sin(x)", "x*cos(x)"),
        source=(
            "Noel et al. 2021, Growing Cosine Unit: A Novel Oscillatory Activation Function That"
            " Can Speedup Training and Reduce Parameters in Convolutional Neural Networks"
            " (2108.12943)"
        ),
    ),
    Spec(
        name="tanh_exp",
        title="TanhExp: x tanh(exp(x))",
        pieces=cut(
            (
                "x <= 8",
                "tanh(exp(x)) + 4*x*exp(x - 2*exp(x))/(1 + exp(-2*exp(x)))**2",
                "x*tanh(exp(x))",
            ),
            ("x > 8", "1"),
        ),
        notes="Right of 8 the function is within 1e-2500 of x and is stated as x.",
        source=(
            "Liu and Di 2020, TanhExp: A Smooth Activation Function with High Convergence Speed for"
            " Lightweight Neural Networks (2003.09855)"
        ),
        aliases=("telu",),
    ),
    Spec(
        name="acon_c",
        title="ACON-C: a smooth maximum of two learned lines",
        pieces=everywhere(
            "p1*logistic(beta*(p1 - p2)*x) + p2*logistic(-beta*(p1 - p2)*x)"
            " + beta*(p1 - p2)**2*x"
            "*logistic(beta*(p1 - p2)*x)*logistic(-beta*(p1 - p2)*x)",
            "p1*x*logistic(beta*(p1 - p2)*x) + p2*x*logistic(-beta*(p1 - p2)*x)",
        ),
        parameters=free(p1=1.0, p2=0.0, beta=1.0),
        source="Ma et al. 2020, Activate or Not: Learning Customized Activation (2009.04759)",
        notes="The paper draws p1 and p2 at random; here it starts as SiLU: 1, 0 and 1.",
    ),
)
