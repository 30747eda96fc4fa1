"""Operators on specs: the derived function of the result is the function composed by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import mpmath
import pytest
import sympy

from stamm.activations import catalog
from stamm.activations.derivation.derive import exact_formulas
from stamm.activations.derivation.formulas import Branches, Formulas, bounds
from stamm.activations.derivation.primitives import PRIMITIVES, X
from stamm.activations.derivation.symbolic import number, to_sympy
from stamm.activations.derivation.to_text import to_text
from stamm.activations.spec import Factor, Gated, Jump, Piece, Spec
from stamm.activations.spec.expressions import parse
from stamm.activations.spec.parameters import Between, Fixed, Identity, Parameter, Softplus
from stamm.activations.transforms import (
    affine,
    clip,
    clip_output,
    clip_to_zero,
    concave,
    expand,
    gated,
    leak,
    mix,
    normalise,
    power,
    reanchor,
    reflect,
    renamed,
    saturate,
    scale,
    soft_clamp,
    surrogate,
)
from stamm.activations.transforms.rewriting import minus, over, plus, substituted, times
from stamm.base.errors import ConfigError

pytestmark = pytest.mark.slow  # derives transformed entries

SOFT = Spec(
    name="soft",
    title="Softplus",
    pieces=(Piece(where="all x", formula="logistic(x)", integral="softplus(x)"),),
    anchor=("0", "log(2)"),
    source="test",
)
# A threshold that moves, and a function that jumps there.
FAT = Spec(
    name="fat",
    title="Rectifier with a moving threshold",
    pieces=(Piece(where="x > tau", formula="1"), Piece(where="x <= tau", formula="0")),
    parameters=(Parameter(name="tau", initial=0.3, bijection=Between(low=0.1, high=0.9)),),
    continuity="jump",
    jumps=(Jump(at="tau", by="tau"),),
    source="test",
)
BASES = (catalog.SILU, catalog.GELU, catalog.RELU, catalog.XIELU, SOFT, FAT)
POINTS = [mpmath.mpf(p) / 8 for p in (-61, -23, -11, -8, -3, 0, 1, 5, 7, 9, 13, 24, 57)]
Real = Callable[[Any], Any]
LABEL: Mapping[str, str] = {"name": "made", "title": "Made"}


def exact(spec: Spec) -> Formulas:
    """The formulas as integrated; choosing stable forms takes most of the time and is left out."""
    return exact_formulas(spec)


def valued(spec: Spec, values: Mapping[str, float] | None = None) -> Real:
    return pick(exact(spec).function, values or spec.initial_values())


def pick(branches: Branches, values: Mapping[str, float]) -> Real:
    def at(x: Any) -> Any:
        for branch in branches:
            low, high = bounds(branch, values)
            above = x > low or (branch.low_closed and x == low)
            if above and (x < high or (branch.high_closed and x == high)):
                return number(branch.formula, {**values, X.name: mpmath.mpf(x)})
        raise AssertionError(x)

    return at


def agree(made: Spec, composed: Real, values: Mapping[str, float] | None = None) -> None:
    """f of the result is what was composed, and f' is its slope, to 30 digits."""
    with mpmath.workdps(45):
        function = valued(made, values)
        slope = pick(exact(made).slope, values or made.initial_values())
        for x in POINTS:
            wanted = composed(x)
            assert abs(function(x) - wanted) <= mpmath.mpf(10) ** -30 * (1 + abs(wanted)), x
            around = x + mpmath.mpf(1) / 997  # away from every knot
            tiny = mpmath.mpf(10) ** -12
            secant = (function(around + tiny) - function(around - tiny)) / (2 * tiny)
            assert abs(secant - slope(around)) <= mpmath.mpf(10) ** -20 * (1 + abs(secant)), x


@pytest.fixture(params=BASES, ids=lambda s: s.name)
def base(request: pytest.FixtureRequest) -> Spec:
    found: Spec = request.param
    return found


def test_affine_maps(base: Spec) -> None:
    f = valued(base)
    made = affine(
        base,
        input_scale="-3/2",
        input_shift=0.25,
        output_scale=-2,
        linear="1/3",
        constant=1,
        **LABEL,
    )
    agree(made, lambda x: -2 * f(-x * 3 / 2 + mpmath.mpf(1) / 4) + x / 3 + 1)
    agree(reflect(base, **LABEL), lambda x: f(-x))
    agree(concave(base, **LABEL), lambda x: -f(-x))
    agree(scale(base, input_scale=2, output_scale=0.5, **LABEL), lambda x: f(2 * x) / 2)


def test_affine_maps_with_parameters_of_their_own() -> None:
    beta = Parameter(name="scale_in", initial=0.7, bijection=Softplus())
    made = scale(SOFT, input_scale=beta, output_scale="1/scale_in", **LABEL)
    assert [p.name for p in made.trainable] == ["scale_in"]
    f = valued(SOFT)
    agree(made, lambda x: f(mpmath.mpf(1.9) * x) / mpmath.mpf(1.9), {"scale_in": 1.9})
    assert made.pieces[0].integral  # the known integral went along


def test_saturate(base: Spec) -> None:
    f = valued(base)
    made = saturate(base, **LABEL)
    agree(made, lambda x: f(x + 1) - f(1) if x <= 0 else f(1) - f(1 - x))
    assert made.continuity == base.continuity


def test_leak(base: Spec) -> None:
    f = valued(base)
    made = leak(base, Parameter(name="slope", initial=0.25, bijection=Identity()), **LABEL)
    agree(made, lambda x: f(x) + min(x, 0) / 4)
    agree(leak(base, 0.125, **LABEL), lambda x: f(x) + min(x, 0) / 8)


def test_clip(base: Spec) -> None:
    f = valued(base)
    made = clip(
        base, low=-1.5, high=Parameter(name="most", initial=2.5, bijection=Fixed()), **LABEL
    )
    agree(made, lambda x: f(min(max(x, mpmath.mpf(-1.5)), mpmath.mpf(2.5))))
    agree(clip(base, high=3, **LABEL), lambda x: f(min(x, 3)))


def test_clip_owns_its_ends() -> None:
    six = clip(catalog.RELU, high=6, **LABEL)
    assert [p.where for p in six.pieces] == ["x <= 0", "0 < x <= 6", "x > 6"]
    assert [p.formula for p in six.pieces] == ["0", "1", "0"]


def test_mix(base: Spec) -> None:
    f, g = valued(base), valued(catalog.XSILU, {"alpha": 0.2})
    share = Parameter(name="share", initial=0.3, bijection=Identity())
    made = mix({base: "1 - share", catalog.XSILU: share}, **LABEL)
    values = {**made.initial_values(), "share": 0.75, "alpha": 0.2}
    agree(made, lambda x: f(x) / 4 + g(x) * 3 / 4, values)


def test_mixing_keeps_parameters_apart() -> None:
    made = mix({catalog.XSILU: 0.5, catalog.XGELU: 0.5}, **LABEL)
    assert [p.name for p in made.parameters] == ["alpha_xsilu", "alpha_xgelu"]
    f, g = valued(catalog.XSILU, {"alpha": 0.1}), valued(catalog.XGELU, {"alpha": 0.4})
    agree(made, lambda x: (f(x) + g(x)) / 2, {"alpha_xsilu": 0.1, "alpha_xgelu": 0.4})


def test_expand_carries_integrals_jumps_and_anchors() -> None:
    made = expand(SOFT, of="self_gated", **LABEL)
    f, alpha = valued(SOFT), mpmath.mpf(0.3)
    agree(made, lambda x: (1 + 2 * alpha) * f(x) - alpha * x, {"alpha": 0.3})
    jumped = expand(FAT, of="gate", **LABEL)
    g = valued(FAT)
    agree(jumped, lambda x: (1 + 2 * alpha) * g(x) - alpha, {"alpha": 0.3, "tau": 0.3})
    with pytest.raises(ConfigError, match="has a parameter 'alpha' already"):
        expand(catalog.XSILU, of="self_gated", **LABEL)


def test_lifting_takes_a_layout_and_an_up_factor() -> None:
    up = Factor(pieces=(Piece(where="all x", formula="1"),), anchor=("0", "1"))
    made = gated(catalog.SILU, order=2, layout="interleaved", up=up, **LABEL)
    assert made.arity == Gated(order=2, layout="interleaved", up=up)
    with pytest.raises(ConfigError, match="two inputs"):
        leak(made, 0.1, **LABEL)


def test_surrogates_go_through_maps_and_mixtures() -> None:
    shifted = (Piece(where="x > -0.05", formula="1"), Piece(where="x <= -0.05", formula="0"))
    helu = surrogate(catalog.RELU, shifted, **LABEL)
    mirrored = reflect(helu, **LABEL)
    assert [p.where for p in mirrored.surrogate] == ["x < 1 / 20", "x >= 1 / 20"]
    assert [p.formula for p in mirrored.surrogate] == ["-1", "0"]
    both = mix({helu: 0.5, catalog.SILU: 0.5}, **LABEL)
    assert len(both.surrogate) == 2
    assert "x" in both.surrogate[0].formula
    with pytest.raises(ConfigError, match="surrogate"):
        power(helu, 2, **LABEL)


def test_powers() -> None:
    for spec in (SOFT, catalog.RELU):
        f = valued(spec)
        agree(power(spec, 2, **LABEL), lambda x, f=f: f(x) ** 2)
        agree(power(spec, 2.5, **LABEL), lambda x, f=f: f(x) ** mpmath.mpf(2.5))
    f = valued(catalog.SILU)
    agree(power(catalog.SILU, 3, **LABEL), lambda x: f(x) ** 3)
    odd = power(catalog.SILU, 2, odd=True, **LABEL)
    agree(odd, lambda x: f(x) * abs(f(x)))
    assert [piece.where for piece in odd.pieces] == ["x <= 0", "x > 0"]
    jumping = power(FAT, 2, **LABEL)
    g = valued(FAT)
    agree(jumping, lambda x: g(x) ** 2)
    with pytest.raises(ConfigError, match="no real power"):
        power(catalog.SILU, 1.5, **LABEL)
    with pytest.raises(ConfigError, match="Use 1 or more"):
        power(SOFT, 0.5, **LABEL)


def test_soft_clamp(base: Spec) -> None:
    f = valued(base)
    limit = Parameter(name="limit", initial=4.0, bijection=Softplus())
    made = soft_clamp(base, limit, **LABEL)
    agree(made, lambda x: 4 * mpmath.tanh(f(x) / 4))


def test_the_output_is_clipped_where_it_crosses() -> None:
    for spec, ceiling in (
        (catalog.SILU, 7),
        (catalog.RELU, 6),
        (SOFT, 1),
        (reflect(SOFT, **LABEL), 1),
    ):
        f = valued(spec)
        made = clip_output(spec, ceiling, **LABEL)
        agree(made, lambda x, f=f, c=ceiling: min(f(x), c))
    assert clip_output(catalog.RELU, 6, **LABEL).pieces == clip(
        catalog.RELU, high=6, **LABEL
    ).pieces or [p.where for p in clip_output(catalog.RELU, 6, **LABEL).pieces] == [
        "x <= 0",
        "0 < x <= 6",
        "x > 6",
    ]
    with pytest.raises(ConfigError, match="trainable"):
        clip_output(catalog.XIELU, 6, **LABEL)


def test_beyond_the_threshold_the_function_returns_to_zero() -> None:
    made = clip_to_zero(catalog.RELU, 6, **LABEL)
    assert made.jumps == (Jump(at="6", by="-6"),)
    agree(made, lambda x: max(x, 0) if x <= 6 else 0)
    high = Parameter(name="high", initial=3.0, bijection=Softplus(above="1"))
    f = valued(catalog.XIELU)
    agree(clip_to_zero(catalog.XIELU, high, **LABEL), lambda x: f(x) if x <= 3 else 0)


def test_a_normalised_function_has_a_unit_second_moment() -> None:
    relu = normalise(catalog.RELU, **LABEL)
    assert relu.initial_values()["gain"] == pytest.approx(2**0.5, rel=1e-15)
    gelu = normalise(catalog.GELU, **LABEL)
    with mpmath.workdps(20):
        f = valued(gelu)
        moment = mpmath.quad(lambda x: f(x) ** 2 * mpmath.npdf(x), [-12, -4, 0, 4, 12])
    assert float(moment) == pytest.approx(1, abs=1e-15)


def test_reanchoring_changes_no_value() -> None:
    made = reanchor(catalog.XIELU, 1, **LABEL)
    assert made.anchor == ("1", "alpha_p + beta")
    agree(made, valued(catalog.XIELU))


def test_results_of_operators_can_be_operated_on() -> None:
    f = valued(catalog.SILU)
    made = clip(leak(saturate(catalog.SILU, **LABEL), 0.1, **LABEL), low=-4, **LABEL)
    agree(
        made,
        lambda x: (
            (f(max(x, -4) + 1) - f(1) if x <= 0 else f(1) - f(1 - x))
            + min(max(x, -4), 0) / mpmath.mpf(10)
        ),
    )


def test_errors_say_what_cannot_be_done() -> None:
    moving = Parameter(name="a", initial=0.1, bijection=Identity())
    with pytest.raises(ConfigError, match="whether tau lies below 1/2 depends on the parameters"):
        clip(FAT, high="1/2", **LABEL)
    with pytest.raises(ConfigError, match="is 0, which leaves a constant"):
        scale(SOFT, input_scale=0, **LABEL)
    with pytest.raises(ConfigError, match="already"):
        leak(FAT, Parameter(name="tau", initial=0.1, bijection=Identity()), **LABEL)
    with pytest.raises(ConfigError, match="empty"):
        clip(SOFT, low=2, high=1, **LABEL)
    with pytest.raises(ConfigError, match="clipped away"):
        clip(SOFT, low=2, high=3, **LABEL)
    with pytest.raises(ConfigError, match="depends on x"):
        leak(SOFT, "x", **LABEL)
    with pytest.raises(ConfigError, match="known at x"):
        mix({SOFT: 1, reanchor(catalog.RELU, 1, **LABEL): moving}, **LABEL)


def test_texts_are_rewritten_as_trees() -> None:
    assert substituted("x**2 + exp(-x)", {"x": "a - 1"}) == "(a - 1) ** 2 + exp(-(a - 1))"
    assert substituted("a - b", {"a": "b", "b": "a"}) == "b - a"
    assert substituted("x*exp(x)", {"x": "0"}) == "0"
    assert plus("0", "x") == "x"
    assert plus("x", "-a") == "x - a"
    assert minus("1/2", "0.25") == "1 / 4"
    assert times("a + b", "c") == "(a + b) * c"
    assert times("-1", "-x") == "x"
    assert over("1", "3") == "1 / 3"
    assert minus("a", "b - c") == "a - (b - c)"


def test_renaming_reaches_bounds_of_parameters() -> None:
    made = renamed(catalog.XIELU, {"beta": "offset"})
    assert made.parameters[1].above_name == "offset"
    f = valued(catalog.XIELU)
    agree(made, f)


def test_formulas_survive_being_written() -> None:
    alpha = sympy.Symbol("alpha", real=True)
    third = sympy.Rational(1, 3)
    elementary = (sympy.exp, sympy.log, sympy.tanh, sympy.erf, sympy.atan, sympy.Abs, sympy.sign)
    forms = [
        made(alpha * X + third)
        for made in PRIMITIVES
        if all(isinstance(f, elementary) for f in made.definition(X).atoms(sympy.Function))
    ]
    forms += [sympy.E * X, sympy.sqrt(2) * X ** sympy.Rational(4, 3), sympy.tan(X / 9)]
    forms += [sympy.Abs(X) - sympy.sign(X) / sympy.pi, X**-2, sympy.acosh(X + 2)]
    for form in forms:
        again = to_sympy(parse(to_text(form)), {"alpha": alpha})
        with mpmath.workdps(40):
            for x in (0.3, 1.7):
                values = {"alpha": 0.9, "x": x}
                assert abs(number(form, values) / number(again, values) - 1) < 1e-36, form
    with pytest.raises(ConfigError, match="has no LambertW"):
        to_text(sympy.LambertW(X))


def test_rewriting_loads_no_sympy() -> None:
    code = (
        "import sys\n"
        "from stamm.activations.transforms import affine, leak, mix, saturate\n"
        "print([m for m in ('sympy', 'mpmath', 'numpy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
