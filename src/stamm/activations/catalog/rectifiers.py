"""Rectifiers and other functions whose pieces are lines, parabolas and powers.

Where a gradient jumps, its value at the knot is the one torch takes, if torch has the function;
elsewhere one of the two sides was chosen; the notes record it where it could matter.
"""

from __future__ import annotations

from stamm.activations.spec import Jump, Piece, Spec
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
        pieces=(Piece(where="all x", formula="1"),),
        source="torch.nn.Identity; the baseline without a nonlinearity",
        aliases=("linear",),
        peers=("torch.nn:Identity", "transformers.activations:LinearActivation"),
    ),
    Spec(
        name="leaky_relu",
        title="Leaky rectifier",
        pieces=(Piece(where="x > 0", formula="1"), Piece(where="x <= 0", formula="alpha")),
        parameters=(Parameter(name="alpha", initial=0.01, bijection=Fixed()),),
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
        pieces=(Piece(where="x > 0", formula="1"), Piece(where="x <= 0", formula="alpha")),
        parameters=(Parameter(name="alpha", initial=0.25, bijection=Identity()),),
        continuity="jump",
        source="He et al. 2015, Delving Deep into Rectifiers (1502.01852)",
        peers=("torch.nn:PReLU",),
    ),
    Spec(
        name="rrelu",
        title="RReLU: randomized leaky rectifier, as evaluated",
        pieces=(Piece(where="x > 0", formula="1"), Piece(where="x <= 0", formula="(low + high)/2")),
        parameters=(
            Parameter(name="low", initial=1 / 8, bijection=Fixed()),
            Parameter(name="high", initial=1 / 3, bijection=Fixed()),
        ),
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
        pieces=(
            Piece(where="x > 0", formula="alpha"),
            Piece(where="x <= 0", formula="0.01*alpha"),
        ),
        parameters=(Parameter(name="alpha", initial=1.0, bijection=Identity()),),
        continuity="jump",
        source=(
            "Maniatopoulos and Mitianoudis 2021, Learnable Leaky ReLU (LeLeLU): An Alternative"
            " Accuracy-Optimized Activation Function (Information 12)"
        ),
    ),
    Spec(
        name="modulus",
        title="Absolute value",
        pieces=(Piece(where="x > 0", formula="1"), Piece(where="x <= 0", formula="-1")),
        continuity="jump",
        source=_MODULUS,
        notes="The gradient at 0 is -1; torch.abs takes 0 there.",
    ),
    Spec(
        name="relu6",
        title="Rectifier that stops at 6",
        pieces=(
            Piece(where="x <= 0", formula="0"),
            Piece(where="0 < x < 6", formula="1"),
            Piece(where="x >= 6", formula="0"),
        ),
        continuity="jump",
        source="Krizhevsky 2010, Convolutional Deep Belief Networks on CIFAR-10",
        peers=("torch.nn.functional:relu6",),
    ),
    Spec(
        name="shifted_relu",
        title="Rectifier that opens at 1",
        pieces=(
            Piece(where="x > shift", formula="1"),
            Piece(where="x <= shift", formula="0"),
        ),
        parameters=(Parameter(name="shift", initial=1.0, bijection=Fixed()),),
        continuity="jump",
        source=(
            "Mirzadeh et al. 2023, ReLU Strikes Back: Exploiting Activation Sparsity in Large"
            " Language Models (2310.04564)"
        ),
    ),
    Spec(
        name="thresholded_relu",
        title="Identity above a threshold, 0 below it",
        pieces=(
            Piece(where="x > theta", formula="1"),
            Piece(where="x <= theta", formula="0"),
        ),
        parameters=(Parameter(name="theta", initial=1.0, bijection=Fixed()),),
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
        pieces=(
            Piece(where="x > lam", formula="1"),
            Piece(where="-lam <= x <= lam", formula="0"),
            Piece(where="x < -lam", formula="1"),
        ),
        parameters=(_LAMBDA,),
        continuity="jump",
        jumps=(Jump(at="lam", by="lam"), Jump(at="-lam", by="lam")),
        source=_SHRINKAGE,
        peers=("torch.nn.functional:hardshrink",),
    ),
    Spec(
        name="soft_shrink",
        title="Soft thresholding",
        pieces=(
            Piece(where="x > lam", formula="1"),
            Piece(where="-lam <= x <= lam", formula="0"),
            Piece(where="x < -lam", formula="1"),
        ),
        parameters=(_LAMBDA,),
        continuity="jump",
        source=_SHRINKAGE,
        peers=("torch.nn.functional:softshrink",),
    ),
    Spec(
        name="hard_tanh",
        title="Identity cut off at -1 and 1",
        pieces=(
            Piece(where="x <= -1", formula="0"),
            Piece(where="-1 < x < 1", formula="1"),
            Piece(where="x >= 1", formula="0"),
        ),
        continuity="jump",
        source="Collobert 2004, Large Scale Machine Learning (thesis)",
        peers=("torch.nn.functional:hardtanh",),
    ),
    Spec(
        name="hard_sigmoid",
        title="Line from 0 at -3 to 1 at 3",
        pieces=(
            Piece(where="x <= -3", formula="0"),
            Piece(where="-3 < x < 3", formula="1/6"),
            Piece(where="x >= 3", formula="0"),
        ),
        anchor=("0", "1/2"),
        continuity="jump",
        source=_MOBILENET,
        notes="An earlier hard sigmoid (BinaryConnect, 1511.00363) has slope 1/2 between -1 and 1.",
        peers=("torch.nn.functional:hardsigmoid",),
    ),
    Spec(
        name="plu",
        title="PLU: steep between -1 and 1, flat beyond",
        pieces=(
            Piece(where="x <= -c", formula="alpha"),
            Piece(where="-c < x < c", formula="1"),
            Piece(where="x >= c", formula="alpha"),
        ),
        parameters=(
            Parameter(name="alpha", initial=0.1, bijection=Fixed()),
            Parameter(name="c", initial=1.0, bijection=Fixed()),
        ),
        continuity="jump",
        source="Nicolae 2018, PLU: The Piecewise Linear Unit Activation Function (1809.09534)",
    ),
    Spec(
        name="s_shaped_relu",
        title="SReLU: three lines with learned knots and slopes",
        pieces=(
            Piece(where="x <= t_left", formula="a_left"),
            Piece(where="t_left < x < t_right", formula="1"),
            Piece(where="x >= t_right", formula="a_right"),
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
        pieces=(
            Piece(where="x <= -delta", formula="0"),
            Piece(where="-delta < x <= 0", formula="1"),
            Piece(where="0 < x < delta", formula="-1"),
            Piece(where="x >= delta", formula="0"),
        ),
        parameters=(Parameter(name="delta", initial=1.0, bijection=Softplus()),),
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
        pieces=(
            Piece(where="x <= 0", formula="0"),
            Piece(where="0 < x <= 1", formula="1"),
            Piece(where="1 < x < 2", formula="-1"),
            Piece(where="x >= 2", formula="0"),
        ),
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
        pieces=(
            Piece(where="x <= -3", formula="0"),
            Piece(where="-3 < x < 3", formula="x/3 + 1/2", integral="x*(x + 3)/6"),
            Piece(where="x >= 3", formula="1"),
        ),
        continuity="jump",
        source=_MOBILENET,
        peers=("torch.nn.functional:hardswish",),
    ),
    Spec(
        name="hard_mish",
        title="Parabola between -2 and 0, a rectifier beyond",
        pieces=(
            Piece(where="x <= -2", formula="0"),
            Piece(where="-2 < x <= 0", formula="x + 1", integral="x*(x + 2)/2"),
            Piece(where="x > 0", formula="1"),
        ),
        continuity="jump",
        source="Misra, H-Mish (github.com/digantamisra98/H-Mish), as hard_mish in timm computes it",
    ),
    Spec(
        name="smelu",
        title="SmeLU: rectifier with its corner rounded by a parabola",
        pieces=(
            Piece(where="x <= -beta", formula="0"),
            Piece(
                where="-beta < x < beta",
                formula="(x + beta)/(2*beta)",
                integral="(x + beta)**2/(4*beta)",
            ),
            Piece(where="x >= beta", formula="1"),
        ),
        parameters=(Parameter(name="beta", initial=1.0, bijection=Fixed()),),
        anchor=("-beta", "0"),
        source=(
            "Shamir, Lin and Coviello 2020, Smooth Activations and Reproducibility in Deep Networks"
            " (2010.09931)"
        ),
    ),
    Spec(
        name="sqnl",
        title="SQNL: a sigmoid of two parabolas",
        pieces=(
            Piece(where="x <= -2", formula="0"),
            Piece(where="-2 < x <= 0", formula="1 + x/2"),
            Piece(where="0 < x < 2", formula="1 - x/2"),
            Piece(where="x >= 2", formula="0"),
        ),
        source=(
            "Wuraola and Patel 2018, SQNL: A New Computationally Efficient Activation Function"
            " (IJCNN)"
        ),
    ),
    Spec(
        name="softmodulus_q",
        title="SoftModulusQ: absolute value, cubic between -1 and 1",
        pieces=(
            Piece(where="x <= -1", formula="-1"),
            Piece(where="-1 < x <= 0", formula="4*x + 3*x**2", integral="x**2*(2 + x)"),
            Piece(where="0 < x < 1", formula="4*x - 3*x**2", integral="x**2*(2 - x)"),
            Piece(where="x >= 1", formula="1"),
        ),
        source=_MODULUS,
    ),
    Spec(
        name="relu3",
        title="Cubed rectifier",
        pieces=(Piece(where="x > 0", formula="3*x**2"), Piece(where="x <= 0", formula="0")),
        source=_REPU,
    ),
    Spec(
        name="repu",
        title="Rectified power with a learned exponent",
        pieces=(
            Piece(where="x > 0", formula="p*x**(p - 1)", integral="x**p"),
            Piece(where="x <= 0", formula="0"),
        ),
        parameters=(Parameter(name="p", initial=2.0, bijection=Softplus(above="1")),),
        source=_REPU,
        notes="The paper's exponent is a whole number; here it is learned and stays above 1.",
    ),
    Spec(
        name="square",
        title="Square",
        pieces=(Piece(where="all x", formula="2*x"),),
        source=(
            "Livni, Shalev-Shwartz and Shamir 2014, On the Computational Efficiency of Training"
            " Neural Networks (1410.1141)"
        ),
        peers=("torch:square",),
    ),
    Spec(
        name="cube",
        title="Cube",
        pieces=(Piece(where="all x", formula="3*x**2"),),
        source=(
            "Chen and Manning 2014, A Fast and Accurate Dependency Parser using Neural Networks"
        ),
    ),
    Spec(
        name="squ",
        title="SQU: shifted quadratic unit",
        pieces=(Piece(where="all x", formula="2*x + 1", integral="x*(x + 1)"),),
        source=_OSCILLATING,
    ),
    Spec(
        name="ncu",
        title="NCU: non-monotonic cubic unit",
        pieces=(Piece(where="all x", formula="1 - 3*x**2", integral="x*(1 - x)*(1 + x)"),),
        source=_OSCILLATING,
    ),
)

ENTRIES: tuple[Spec, ...] = (*LINES, *CURVES)
