"""The far expansion of every function a formula may hold, by definition or by a proved series."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy
from sympy import Expr, Integer, Rational, Symbol

from stamm.activations.certificates.intervals import (
    Enclosure,
    NotEnclosed,
    function_range,
    hull,
)
from stamm.activations.certificates.tails import CONSTANT, Monomial, Tail
from stamm.activations.derivation import primitives as named
from stamm.activations.derivation import special
from stamm.activations.derivation.primitives import Primitive, X
from stamm.activations.derivation.symbolic import elementary

_HALF = Rational(1, 2)
_ROOT = Symbol("t", positive=True)


def expansion(formula: Expr, side: int, start: float) -> Tail:
    """The formula in x on all of x >= start (side 1) or x <= -start (side -1), in t = |x|.

    start    above 1
    Raises   NotEnclosed when a part has no expansion that is valid from `start` on.
    Checked  tests/unit/activations/test_certificate_intervals.py
    """
    line = Tail(start, {})
    moved = line.plus(
        Tail(start, {Monomial(power=Integer(1)): line.number(Integer(side)).terms[CONSTANT]})
    )
    return _of(formula, moved, {})


def _of(formula: Expr, x: Tail, known: dict[Expr, Tail]) -> Tail:
    if formula not in known:
        known[formula] = _new(formula, x, known)
    return known[formula]


def _new(formula: Expr, x: Tail, known: dict[Expr, Tail]) -> Tail:
    if formula == X:
        return x
    if not formula.free_symbols:
        return x.number(formula)
    if formula.is_Add or formula.is_Mul:
        first, *others = [_of(part, x, known) for part in formula.args]
        for part in others:
            first = first.plus(part) if formula.is_Add else first.times(part)
        return first
    if formula.is_Pow:
        if formula.exp.free_symbols:
            raise NotEnclosed("a variable exponent")
        return _of(formula.base, x, known).raised(formula.exp)
    if len(formula.args) != 1:
        raise NotEnclosed(f"{type(formula).__name__} has no expansion")
    return applied_far(type(formula), _of(formula.args[0], x, known))


def applied_far(kind: Any, u: Tail) -> Tail:
    """A function of one argument, of an expansion.

    Raises   NotEnclosed when no expansion is known.
    """
    if kind in (named.absolute, sympy.Abs):
        return u.scaled(Integer(u.sign()))
    if kind in (named.signum, sympy.sign):
        return u.number(Integer(u.sign()))
    growing = bool(u.terms) and u.ordered[0][0].trend > 0
    if not growing:
        return _near_a_limit(kind, u)
    if kind in (sympy.sin, sympy.cos):
        return u.number((-1.0, 1.0))
    if kind in _FAR:
        return _FAR[kind](u, u.sign())
    if isinstance(kind, type) and issubclass(kind, Primitive):
        defined = kind.definition(X)
        if not defined.has(kind):
            return _of(defined, u, {})
    raise NotEnclosed(f"{getattr(kind, '__name__', kind)} has no expansion")


def _near_a_limit(kind: Any, u: Tail) -> Tail:
    """F(c + d) = F(c) + F'(c) d + F''(xi) d**2/2, where d vanishes."""
    constant = u.terms.get(CONSTANT)
    rest = Tail(u.start, {m: c for m, c in u.terms.items() if m != CONSTANT})
    if constant is not None and constant.exact is None:
        return u.number(function_range(kind)(u.range()))
    at = Integer(0) if constant is None or constant.exact is None else constant.exact
    function = kind(X)
    value = elementary(function).subs(X, at)
    if not rest.terms:
        return u.number(value)
    low, high = hull(u.range(), u.number(at).range())
    slope = sympy.diff(function, X)
    bend = Enclosure(sympy.diff(slope, X) / 2)(low, high)
    linear = rest.scaled(elementary(slope).subs(X, at))
    return linear.plus(rest.times(rest).scaled(bend)).shifted(value)


def _mirrored(u: Tail) -> Tail:
    return u.scaled(Integer(-1))


def _logistic(u: Tail, sign: int) -> Tail:
    small = u.scaled(Integer(-sign)).exp()
    share = small.shifted(Integer(1)).raised(Integer(-1))
    return share if sign > 0 else small.times(share)


def _softplus(u: Tail, sign: int) -> Tail:
    folded = u.scaled(Integer(-sign)).exp().shifted(Integer(1)).log()
    return u.plus(folded) if sign > 0 else folded


def _normal_pdf(u: Tail, _: int) -> Tail:
    return u.times(u).scaled(-_HALF).exp().scaled(1 / sympy.sqrt(2 * sympy.pi))


def _normal_cdf(u: Tail, sign: int) -> Tail:
    """The lower tail at -v is pdf(v) (1/v - 1/v**3 + theta 3/v**5), theta in [0, 1]."""
    inverse = u.scaled(Integer(sign)).raised(Integer(-1))
    cube = inverse.times(inverse).times(inverse)
    ratio = inverse.plus(_mirrored(cube)).plus(
        cube.times(inverse).times(inverse).scaled((0.0, 3.0))
    )
    lower = _normal_pdf(u, sign).times(ratio)
    return lower if sign < 0 else _mirrored(lower).shifted(Integer(1))


def _atan(u: Tail, sign: int) -> Tail:
    """pi/2 - (v - v**3/3 + theta v**5/5) for v = 1/u > 0, theta in [0, 1]; odd."""
    inverse = u.scaled(Integer(sign)).raised(Integer(-1))
    cube = inverse.times(inverse).times(inverse)
    fifth = cube.times(inverse).times(inverse).scaled((0.0, 0.2000001))
    angle = inverse.plus(cube.scaled(Rational(-1, 3))).plus(fifth)
    return _mirrored(angle).shifted(sympy.pi / 2).scaled(Integer(sign))


def _tanh(u: Tail, sign: int) -> Tail:
    twice = u.scaled(Integer(2))
    return _logistic(twice, sign).scaled(Integer(2)).shifted(Integer(-1))


def _erf(u: Tail, sign: int) -> Tail:
    return _normal_cdf(u.scaled(sympy.sqrt(2)), sign).scaled(Integer(2)).shifted(Integer(-1))


def _erfc(u: Tail, sign: int) -> Tail:
    return _normal_cdf(u.scaled(-sympy.sqrt(2)), -sign).scaled(Integer(2))


def _cauchy_cdf(u: Tail, sign: int) -> Tail:
    return _atan(u, sign).scaled(1 / sympy.pi).shifted(_HALF)


def _cauchy_pdf(u: Tail, _: int) -> Tail:
    return u.times(u).shifted(Integer(1)).raised(Integer(-1)).scaled(1 / sympy.pi)


def _exponentials(u: Tail, other: int) -> Tail:
    return u.exp().plus(_mirrored(u).exp().scaled(Integer(other))).scaled(_HALF)


def _asinh(u: Tail, sign: int) -> Tail:
    size = u.scaled(Integer(sign))
    root = size.times(size).shifted(Integer(1)).raised(_HALF)
    return size.plus(root).log().scaled(Integer(sign))


def _positive_log(u: Tail, sign: int) -> Tail:
    if sign < 0:
        raise NotEnclosed("a logarithm of a negative number")
    return u.log()


def _softplus_integral(u: Tail, sign: int) -> Tail:
    """v - v**2/4 + theta v**3/9 for v = exp(u) < 1, theta in [0, 1]; F(u) + F(-u) is known."""
    small = u.scaled(Integer(-sign)).exp()
    square = small.times(small)
    left = small.plus(square.scaled(Rational(-1, 4)))
    left = left.plus(square.times(small).scaled((0.0, 0.1111112)))
    if sign < 0:
        return left
    return _mirrored(left).plus(u.times(u).scaled(_HALF)).shifted(sympy.pi**2 / 6)


def _logistic_moment(u: Tail, sign: int) -> Tail:
    return u.times(_softplus(u, sign)).plus(_mirrored(_softplus_integral(u, sign)))


def _gompertz_integral(u: Tail, sign: int) -> Tail:
    """E1(z) for z = exp(-u).

    Right   u - gamma + z - z**2/4 + theta z**3/18, z < 1, theta in [0, 1]
    Left    exp(-z)/z (1 - 1/z + theta 2/z**2)
    """
    z = _mirrored(u).exp()
    if sign > 0:
        return u.plus(_gompertz_upper_integral(u, sign)).shifted(-sympy.EulerGamma)
    inverse = z.raised(Integer(-1))
    square = inverse.times(inverse)
    series = _mirrored(inverse).plus(square.scaled((0.0, 2.0))).shifted(Integer(1))
    return _mirrored(z).exp().times(inverse).times(series)


def _gompertz_upper_integral(u: Tail, sign: int) -> Tail:
    if sign < 0:
        return _gompertz_integral(u, sign).plus(_mirrored(u)).shifted(sympy.EulerGamma)
    z = _mirrored(u).exp()
    square = z.times(z)
    series = z.plus(square.scaled(Rational(-1, 4)))
    return series.plus(square.times(z).scaled((0.0, 0.0555556)))


def _log_cosh(u: Tail, sign: int) -> Tail:
    folded = u.scaled(Integer(-2 * sign)).exp().shifted(Integer(1)).log()
    return u.scaled(Integer(sign)).plus(folded).shifted(-sympy.log(2))


_FAR: Mapping[Any, Callable[[Tail, int], Tail]] = {
    sympy.exp: lambda u, _: u.exp(),
    sympy.log: _positive_log,
    sympy.sinh: lambda u, _: _exponentials(u, -1),
    sympy.cosh: lambda u, _: _exponentials(u, 1),
    sympy.tanh: _tanh,
    sympy.atan: _atan,
    sympy.asinh: _asinh,
    sympy.erf: _erf,
    sympy.erfc: _erfc,
    named.expm1: lambda u, _: u.exp().shifted(Integer(-1)),
    named.phi2: lambda u, _: u.exp().shifted(Integer(-1)).plus(_mirrored(u)),
    named.log1p: lambda u, sign: _positive_log(u.shifted(Integer(1)), sign),
    named.softplus: _softplus,
    named.logistic: _logistic,
    named.logistic_odd: lambda u, sign: _logistic(u, sign).shifted(-_HALF),
    named.normal_pdf: _normal_pdf,
    named.normal_cdf: _normal_cdf,
    named.normal_odd: lambda u, sign: _normal_cdf(u, sign).shifted(-_HALF),
    named.cauchy_pdf: _cauchy_pdf,
    named.cauchy_cdf: _cauchy_cdf,
    named.cauchy_odd: lambda u, sign: _cauchy_cdf(u, sign).shifted(-_HALF),
    named.cauchy_slope: lambda u, sign: _cauchy_cdf(u, sign).plus(u.times(_cauchy_pdf(u, sign))),
    special.softplus_integral: _softplus_integral,
    special.logistic_moment: _logistic_moment,
    special.gompertz_integral: _gompertz_integral,
    special.gompertz_upper_integral: _gompertz_upper_integral,
    special.log_cosh: _log_cosh,
    named.gompertz: lambda u, _: _mirrored(_mirrored(u).exp()).exp(),
    named.gompertz_pdf: lambda u, _: _mirrored(u.plus(_mirrored(u).exp())).exp(),
}
