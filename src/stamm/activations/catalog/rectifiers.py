"""Rectifiers and other functions whose pieces are lines, parabolas and powers.

Where a gradient jumps, its value at the knot is the one torch takes, if torch has the function;
elsewhere one of the two sides was chosen; the notes record it where it could matter.
"""

from __future__ import annotations

from stamm.activations.catalog.notation import cut, everywhere, fixed, free, positive
from stamm.activations.spec import Jump, Spec
from stamm.activations.spec.parameters import Fixed, Identity, Parameter, Softplus

_MOBILENET = "Howard et al. 2019, Searching for MobileNetV3 (1905.02244)"
_SHRINKAGE = "Donoho and Johnstone 1994, Ideal Spatial Adaptation by Wavelet Shrinkage (Biometrika)"
_OSCILLATING = (
    "Noel et al. 2021, Biologically Inspired Oscillating Activation Functions Can Bridge the"
    " Performance Gap between Biological and Artificial Neurons (2111.04020)"
)
_MODULUS = (
    "Vallés-Pérez et al. 2023, Empirical Study of the Modulus as Activation Function in Computer"
    " Vision Applications (2301.05993)"
)
_REPU = (
    "Li, Tang and Yu 2019, Better Approximations of High Dimensional Smooth Functions by"
    " Deep Neural Networks with Rectified Power Units (1903.05858)"
)
_LAMBDA = Parameter(name="lam", initial=0.5, bijection=Fixed())

LINES: tuple[Spec, ...] = (
    Spec(
        name="identity",
        title="Identity",
        pieces=everywhere("1"),
        source="torch.nn.Identity; the baseline without a nonlinearity",
        aliases=("linear",),
        peers=("torch.nn:Identity", "transformers.activations:LinearActivation"),
    ),
    Spec(
        name="leaky_relu",
        title="Leaky rectifier",
        pieces=cut(("x > 0", "1"), ("x <= 0", "alpha")),
        parameters=fixed(alpha=0.01),
        continuity="jump",
        source=(
            "Maas, Hannun and Ng 2013, Rectifier Nonlinearities Improve Neural Network Acoustic"
            " Models"
        ),
        peers=("torch.nn.functional:leaky_relu",),
    ),
    Spec(
        name="prelu",
        title="PReLU: leaky rectifier with a learned slope",
        pieces=cut(("x > 0", "1"), ("x <= 0", "alpha")),
        parameters=free(alpha=0.25),
        continuity="jump",
        source="He et al. 2015, Delving Deep into Rectifiers (1502.01852)",
        peers=("torch.nn:PReLU",),
    ),
    Spec(
        name="rrelu",
        title="RReLU: randomized leaky rectifier, as evaluated",
        pieces=cut(("x > 0", "1"), ("x <= 0", "(low + high)/2")),
        parameters=fixed(low=1 / 8, high=1 / 3),
        continuity="jump",
        source=(
            "Xu et al. 2015, Empirical Evaluation of Rectified Activations in Convolutional Network"
            " (1505.00853)"
        ),
        notes="In training the slope is drawn between low and high; this is its mean.",
        peers=("torch.nn.functional:rrelu",),
    ),
    Spec(
        name="lelelu",
        title="LeLeLU: leaky rectifier with a learned scale",
        pieces=cut(("x > 0", "alpha"), ("x <= 0", "0.01*alpha")),
        parameters=free(alpha=1.0),
        continuity="jump",
        source=(
            "Maniatopoulos and Mitianoudis 2021, Learnable Leaky ReLU (LeLeLU): An Alternative"
            " Accuracy-Optimized Activation Function (Information 12)"
        ),
    ),
    Spec(
        name="modulus",
        title="Absolute value",
        pieces=cut(("x > 0", "1"), ("x <= 0", "-1")),
        continuity="jump",
        source=_MODULUS,
        notes="The gradient at 0 is -1; torch.abs takes 0 there.",
    ),
    Spec(
        name="relu6",
        title="Rectifier that stops at 6",
        pieces=cut(("x <= 0", "0"), ("0 < x < 6", "1"), ("x >= 6", "0")),
        continuity="jump",
        source="Krizhevsky 2010, Convolutional Deep Belief Networks on CIFAR-10",
        peers=("torch.nn.functional:relu6",),
    ),
    Spec(
        name="shifted_relu",
        title="Rectifier that opens at 1",
        pieces=cut(("x > shift", "1"), ("x <= shift", "0")),
        parameters=fixed(shift=1.0),
        continuity="jump",
        source=(
            "Mirzadeh et al. 2023, ReLU Strikes Back: Exploiting Activation Sparsity in Large"
            " Language Models (2310.04564)"
        ),
    ),
    Spec(
        name="thresholded_relu",
        title="Identity above a threshold, 0 below it",
        pieces=cut(("x > theta", "1"), ("x <= theta", "0")),
        parameters=fixed(theta=1.0),
        continuity="jump",
        jumps=(Jump(at="theta", by="theta"),),
        source=(
            "Konda, Memisevic and Krueger 2014, Zero-bias Autoencoders and the Benefits of"
            " Co-adapting Features (1402.3337)"
        ),
    ),
    Spec(
        name="hard_shrink",
        title="Hard thresholding",
        pieces=cut(("x > lam", "1"), ("-lam <= x <= lam", "0"), ("x < -lam", "1")),
        parameters=(_LAMBDA,),
        continuity="jump",
        jumps=(Jump(at="lam", by="lam"), Jump(at="-lam", by="lam")),
        source=_SHRINKAGE,
        peers=("torch.nn.functional:hardshrink",),
    ),
    Spec(
        name="soft_shrink",
        title="Soft thresholding",
        pieces=cut(("x > lam", "1"), ("-lam <= x <= lam", "0"), ("x < -lam", "1")),
        parameters=(_LAMBDA,),
        continuity="jump",
        source=_SHRINKAGE,
        peers=("torch.nn.functional:softshrink",),
    ),
    Spec(
        name="hard_tanh",
        title="Identity cut off at -1 and 1",
        pieces=cut(("x <= -1", "0"), ("-1 < x < 1", "1"), ("x >= 1", "0")),
        continuity="jump",
        source="Collobert 2004, Large Scale Machine Learning (thesis)",
        peers=("torch.nn.functional:hardtanh",),
    ),
    Spec(
        name="hard_sigmoid",
        title="Line from 0 at -3 to 1 at 3",
        pieces=cut(("x <= -3", "0"), ("-3 < x < 3", "1/6"), ("x >= 3", "0")),
        anchor=("0", "1/2"),
        continuity="jump",
        source=_MOBILENET,
        notes="An earlier hard sigmoid (BinaryConnect, 1511.00363) has slope 1/2 between -1 and 1.",
        peers=("torch.nn.functional:hardsigmoid",),
    ),
    Spec(
        name="plu",
        title="PLU: steep between -1 and 1, flat beyond",
        pieces=cut(("x <= -c", "alpha"), ("-c < x < c", "1"), ("x >= c", "alpha")),
        parameters=fixed(alpha=0.1, c=1.0),
        continuity="jump",
        source="Nicolae 2018, PLU: The Piecewise Linear Unit Activation Function (1809.09534)",
    ),
    Spec(
        name="s_shaped_relu",
        title="SReLU: three lines with learned knots and slopes",
        pieces=cut(
            ("x <= t_left", "a_left"), ("t_left < x < t_right", "1"), ("x >= t_right", "a_right")
        ),
        parameters=(
            Parameter(name="t_left", initial=0.0, bijection=Identity()),
            Parameter(name="a_left", initial=0.0, bijection=Identity()),
            Parameter(name="t_right", initial=1.0, bijection=Softplus(above="t_left")),
            Parameter(name="a_right", initial=1.0, bijection=Identity()),
        ),
        anchor=("t_left", "t_left"),
        continuity="jump",
        source=(
            "Jin et al. 2015, Deep Learning with S-shaped Rectified Linear Activation Units"
            " (1512.07030)"
        ),
        notes="The paper sets t_right from the data after a few epochs; here it starts at 1.",
    ),
    Spec(
        name="tent",
        title="Tent of learned width",
        pieces=cut(
            ("x <= -delta", "0"),
            ("-delta < x <= 0", "1"),
            ("0 < x < delta", "-1"),
            ("x >= delta", "0"),
        ),
        parameters=positive(delta=1.0),
        anchor=("0", "delta"),
        continuity="jump",
        source=(
            "Rozsa and Boult 2019, Improved Adversarial Robustness by Reducing Open Space Risk via"
            " Tent Activations (1908.02435)"
        ),
    ),
    Spec(
        name="hat",
        title="Linear hat between 0 and 2",
        pieces=cut(("x <= 0", "0"), ("0 < x <= 1", "1"), ("1 < x < 2", "-1"), ("x >= 2", "0")),
        continuity="jump",
        source=(
            "Hong et al. 2022, On the Activation Function Dependence of the Spectral Bias of Neural"
            " Networks (2208.04924)"
        ),
    ),
)

CURVES: tuple[Spec, ...] = (
    Spec(
        name="hard_swish",
        title="x times the hard sigmoid",
        pieces=cut(("x <= -3", "0"), ("-3 < x < 3", "x/3 + 1/2", "x*(x + 3)/6"), ("x >= 3", "1")),
        continuity="jump",
        source=_MOBILENET,
        peers=("torch.nn.functional:hardswish",),
    ),
    Spec(
        name="hard_mish",
        title="Parabola between -2 and 0, a rectifier beyond",
        pieces=cut(("x <= -2", "0"), ("-2 < x <= 0", "x + 1", "x*(x + 2)/2"), ("x > 0", "1")),
        continuity="jump",
        source="Misra, H-Mish (github.com/digantamisra98/H-Mish), as hard_mish in timm computes it",
    ),
    Spec(
        name="smelu",
        title="SmeLU: rectifier with its corner rounded by a parabola",
        pieces=cut(
            ("x <= -beta", "0"),
            ("-beta < x < beta", "(x + beta)/(2*beta)", "(x + beta)**2/(4*beta)"),
            ("x >= beta", "1"),
        ),
        parameters=fixed(beta=1.0),
        anchor=("-beta", "0"),
        source=(
            "Shamir, Lin and Coviello 2020, Smooth Activations and Reproducibility in Deep Networks"
            " (2010.09931)"
        ),
    ),
    Spec(
        name="sqnl",
        title="SQNL: a sigmoid of two parabolas",
        pieces=cut(
            ("x <= -2", "0"), ("-2 < x <= 0", "1 + x/2"), ("0 < x < 2", "1 - x/2"), ("x >= 2", "0")
        ),
        source=(
            "Wuraola and Patel 2018, SQNL: A New Computationally Efficient Activation Function"
            " (IJCNN)"
        ),
    ),
    Spec(
        name="softmodulus_q",
        title="SoftModulusQ: absolute value, cubic between -1 and 1",
        pieces=cut(
            ("x <= -1", "-1"),
            ("-1 < x <= 0", "4*x + 3*x**2", "x**2*(2 + x)"),
            ("0 < x < 1", "4*x - 3*x**2", "x**2*(2 - x)"),
            ("x >= 1", "1"),
        ),
        source=_MODULUS,
    ),
    Spec(
        name="relu3",
        title="Cubed rectifier",
        pieces=cut(("x > 0", "3*x**2"), ("x <= 0", "0")),
        source=_REPU,
    ),
    Spec(
        name="repu",
        title="Rectified power with a learned exponent",
        pieces=cut(("x > 0", "p*x**(p - 1)", "x**p"), ("x <= 0", "0")),
        parameters=(Parameter(name="p", initial=2.0, bijection=Softplus(above="1")),),
        source=_REPU,
        notes="The paper's exponent is a whole number; here it is learned and stays above 1.",
    ),
    Spec(
        name="square",
        title="Square",
        pieces=everywhere("2*x"),
        source=(
            "Livni, Shalev-Shwartz and Shamir 2014, On the Computational Efficiency of Training"
            " Neural Networks (1410.1141)"
        ),
        peers=("torch:square",),
    ),
    Spec(
        name="cube",
        title="Cube",
        pieces=everywhere("3*x**2"),
        source=(
            "Chen and Manning 2014, A Fast and Accurate Dependency Parser using Neural Networks"
        ),
    ),
    Spec(
        name="squ",
        title="SQU: shifted quadratic unit",
        pieces=everywhere("2*x + 1", "x*(x + 1)"),
        source=_OSCILLATING,
    ),
    Spec(
        name="ncu",
        title="NCU: non-monotonic cubic unit",
        pieces=everywhere("1 - 3*x**2", "x*(1 - x)*(1 + x)"),
        source=_OSCILLATING,
    ),
)

ENTRIES: tuple[Spec, ...] = (*LINES, *CURVES)
