"""Ranges hold every value: of formulas on boxes, and of formulas on half lines."""

from __future__ import annotations

import math

import mpmath
import pytest
import sympy
from sympy import Expr, Rational, exp, log, sqrt

from stamm.activations.certificates.intervals import Enclosure, NotEnclosed
from stamm.activations.certificates.tails import Monomial, expansion
from stamm.activations.derivation import primitives as named
from stamm.activations.derivation.formulas import number
from stamm.activations.derivation.primitives import PRIMITIVES, X

ELEMENTARY = (
    exp,
    sympy.sin,
    sympy.cos,
    sympy.sinh,
    sympy.cosh,
    sympy.tanh,
    sympy.atan,
    sympy.asinh,
    sympy.erf,
    sympy.erfc,
    sympy.Abs,
)
FORMULAS = (
    X * named.logistic(X),
    (X * named.logistic(-X) - X * named.logistic(X) + 2) * named.logistic(-X) * named.logistic(X),
    named.phi2(X) - X**3 / 7 + Rational(1, 3),
    X**2 / (1 + X**2) - sqrt(X**2 + 1),
    named.gompertz(X) + X * named.gompertz_pdf(X),
    log(1 + X**2) * sympy.cos(3 * X) + X ** Rational(4) - 2,
)
BOXES = ((-40.0, -3.0), (-3.0, -0.5), (-0.5, 0.25), (0.0, 1.0), (0.3, 0.3), (1.0, 6.0), (6.0, 90.0))


def _value(formula: Expr, x: float, digits: int = 40) -> float:
    with mpmath.workdps(digits):
        return number(formula, {X.name: mpmath.mpf(x)})


@pytest.mark.parametrize(
    "formula", [*(f(X) for f in (*PRIMITIVES, *ELEMENTARY)), *FORMULAS], ids=str
)
def test_a_box_holds_every_value(formula: Expr) -> None:
    if formula == named.log1p(X):
        formula = named.log1p(X**2)
    enclosure = Enclosure(formula)
    for low, high in BOXES:
        least, most = enclosure(low, high)
        for i in range(8):
            value = _value(formula, low + (high - low) * i / 7)
            assert least <= value <= most, (low, high, i)


def test_a_point_is_enclosed_to_the_last_digits() -> None:
    for x in (-7.3, -0.4, 0.3, 2.5):
        low, high = Enclosure(FORMULAS[1])(x, x)
        assert high - low < 1e-14


def test_ends_may_be_infinite() -> None:
    assert Enclosure(named.logistic(X))(-math.inf, math.inf) == (0.0, 1.0)
    low, high = Enclosure(named.normal_pdf(X))(1.0, math.inf)
    assert low == 0.0 and high == pytest.approx(0.24197072451914337)
    assert Enclosure(X**2)(-math.inf, 1.0) == (0.0, math.inf)


def test_an_exact_sum_is_not_widened() -> None:
    assert Enclosure(1 + sympy.sin(X))(-10.0, 10.0) == (0.0, 2.0)


def test_unknown_functions_and_domains_are_refused() -> None:
    with pytest.raises(NotEnclosed, match="gamma has no known range"):
        Enclosure(sympy.gamma(X))
    with pytest.raises(NotEnclosed, match="outside its domain"):
        Enclosure(log(X))(-1.0, 1.0)
    with pytest.raises(NotEnclosed, match="real power of a negative number"):
        Enclosure(X ** Rational(1, 3))(-1.0, 1.0)


FAR = (
    *FORMULAS[:5],
    X * named.normal_cdf(X),
    named.normal_cdf(X) + X * named.normal_pdf(X),
    named.cauchy_slope(X),
    named.softplus(X) - X,
    X * sympy.tanh(named.softplus(X)),
    sympy.erfc(X / 2) + sympy.erf(X) * sympy.atan(3 * X),
    sympy.asinh(X) * exp(-X / 5),
    (1 + X / sqrt(4 + X**2)) / 2,
    X + sympy.sin(2 * X) / 2,
    log(1 + exp(Rational(17, 10) * X)) / (2 + X**2),
    sympy.sinh(X) / sympy.cosh(X) - 1,
)


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("formula", FAR, ids=str)
def test_an_expansion_holds_every_value(formula: Expr, side: int) -> None:
    tail = expansion(formula, side, 16.0)
    for t in (16.0, 17.3, 40.0, 133.0):
        value = _value(formula, side * t, 200)  # 1 - tanh(t) loses more than a hundred digits
        low = high = mpmath.mpf(0)
        with mpmath.workdps(200):
            for monomial, coefficient in tail.terms.items():
                size = _monomial(monomial, t)
                low += size * coefficient.box[0]
                high += size * coefficient.box[1]
            slack = (abs(low) + abs(high)) * mpmath.mpf(10) ** -13
            assert low - slack <= value <= high + slack, t


def _monomial(m: Monomial, t: float) -> float:
    def exact(value: Expr) -> float:
        return mpmath.mpf(int(value.p)) / int(value.q)

    x = mpmath.mpf(t)
    exponent = -sum(exact(w) * mpmath.exp(exact(c) * x) for c, w in m.towers)
    exponent -= exact(m.square) * x**2 + exact(m.linear) * x
    return mpmath.exp(exponent) * x ** exact(m.power) * mpmath.log(x) ** exact(m.logs)


def test_signs_and_limits_far_out() -> None:
    silu = X * named.logistic(X)
    assert [expansion(silu, side, 8.0).sign() for side in (-1, 1)] == [-1, 1]
    assert expansion(silu, -1, 8.0).limit() == (0.0, 0.0)
    golu_slope = FORMULAS[4]
    left = expansion(golu_slope, -1, 8.0)
    assert left.sign() == -1 and left.ordered[0][0].towers == ((1, 1),)
    atlu = X * named.cauchy_cdf(X)
    assert expansion(atlu, -1, 8.0).exact_limit() == -1 / sympy.pi


def test_what_has_no_expansion_is_refused() -> None:
    for formula in (sympy.gamma(X), sympy.exp(X**3), sympy.tan(X)):
        with pytest.raises(NotEnclosed):
            expansion(formula, 1, 8.0)
    with pytest.raises(NotEnclosed):
        expansion(sympy.sin(X), 1, 8.0).sign()
