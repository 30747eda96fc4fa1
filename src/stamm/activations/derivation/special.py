"""Primitives that are integrals of other primitives, such as that of softplus.

Two of them have no elementary form (a dilogarithm and an exponential integral); those are their
own definition. The constant of each integral makes it 0 or nearly 0 at a point or in a tail, so
that the values keep their digits there.
"""

from __future__ import annotations

from typing import Any

import mpmath
import sympy
from sympy import Rational

from stamm.activations.derivation.primitives import (
    GOMPERTZ_VANISHED,
    Primitive,
    bounded_exp,
    expm1,
    gompertz,
    logistic,
    primitive,
    softplus,
    with_digits,
)

_HALF = Rational(1, 2)


def dilogarithm_series(s: Any) -> Any:
    """-Li2(1 - exp(s)) for 0 <= s < 2 pi, to the working precision.

    s + s**2/4 + sum over even n of B_n s**(n + 1)/(n + 1)!, with the Bernoulli numbers B_n
    """
    total, power, n = s + s * s / 4, s, 0
    while True:
        n += 2
        power *= s * s / (n * (n + 1))
        term = mpmath.bernoulli(n) * power
        total += term
        if abs(term) <= abs(total) * mpmath.eps:
            return total


def _left_of_zero(u: Any) -> tuple[Any, Any]:
    """softplus and its integral at -|u|."""
    s = mpmath.log1p(mpmath.exp(-abs(u)))
    return s, dilogarithm_series(s)


def _softplus_integral(u: Any) -> Any:
    if u <= 0:
        return with_digits(0, lambda: _left_of_zero(u)[1])
    return with_digits(0, lambda: mpmath.pi**2 / 6 + u * u / 2 - _left_of_zero(u)[1])


def _logistic_moment(u: Any) -> Any:
    def value() -> Any:
        s, integral = _left_of_zero(u)
        if u <= 0:
            return (u * s if s else s) - integral
        tail = u * s if s else s  # at infinity there is none
        return u * u / 2 + (tail + integral - mpmath.pi**2 / 6)

    return with_digits(30, value)  # it crosses 0 between 1 and 2


def _gompertz_integral(u: Any) -> Any:
    if u < GOMPERTZ_VANISHED:
        return mpmath.mpf(0)
    return with_digits(0, lambda: mpmath.e1(mpmath.exp(-u)))


def _gompertz_upper_integral(u: Any) -> Any:
    if u <= 0:
        return _gompertz_integral(u) - u + mpmath.euler
    z = bounded_exp(-u)
    total, power, k = z, z, 1
    while abs(power) > mpmath.eps * z:
        k += 1
        power *= -z / k
        total += power / k
    return total


def _log_cosh(u: Any) -> Any:
    size = abs(u)
    if size > 1:
        return with_digits(0, lambda: size + mpmath.log1p(mpmath.exp(-2 * size)) - mpmath.log(2))
    return with_digits(0, lambda: mpmath.log1p(2 * mpmath.sinh(u / 2) ** 2))


def _mish_gate_integral(u: Any) -> Any:
    small = mpmath.exp(-abs(u))
    if u <= 0:
        return mpmath.log1p(small + small**2 / 2) / 2 + mpmath.atan(small / (2 + small))
    rest = mpmath.log1p(2 * small + 2 * small**2) / 2 - mpmath.log(2) / 2
    return u + rest + mpmath.atan(1 / (1 + 2 * small))


softplus_integral: type[Primitive] = primitive(
    "softplus_integral",
    "the integral of softplus from minus infinity, -Li2(-exp(u)); it is pi**2/12 at 0, and"
    " F(u) + F(-u) = pi**2/6 + u**2/2",
    slope=lambda u: softplus(u),
    definition=lambda u: sympy.pi**2 / 12 if u == 0 else softplus_integral(u),
    value=_softplus_integral,
)
logistic_moment = primitive(
    "logistic_moment",
    "the integral of u logistic(u) from minus infinity, u softplus(u) - softplus_integral(u):"
    " two terms that overflow against each other; it is -pi**2/12 at 0",
    slope=lambda u: u * logistic(u),
    definition=lambda u: -(sympy.pi**2) / 12 if u == 0 else u * softplus(u) - softplus_integral(u),
    value=_logistic_moment,
)
gompertz_integral: type[Primitive] = primitive(
    "gompertz_integral",
    "the integral of exp(-exp(-u)) from minus infinity, the exponential integral E1(exp(-u))",
    slope=lambda u: gompertz(u),
    definition=lambda u: gompertz_integral(u),
    value=_gompertz_integral,
)
gompertz_upper_integral: type[Primitive] = primitive(
    "gompertz_upper_integral",
    "the integral of 1 - exp(-exp(-u)) to infinity: gompertz_integral(u) - u + Euler's constant",
    slope=lambda u: expm1(-sympy.exp(-u)),
    definition=lambda u: gompertz_integral(u) - u + sympy.EulerGamma,
    value=lambda u: with_digits(0, lambda: _gompertz_upper_integral(u)),
)
log_cosh = primitive(
    "log_cosh",
    "log(cosh(u)), the integral of tanh from 0",
    slope=lambda u: sympy.tanh(u),
    definition=lambda u: sympy.log(sympy.cosh(u)),
    value=_log_cosh,
)
mish_gate_integral = primitive(
    "mish_gate_integral",
    "the integral of tanh(softplus(u)) from minus infinity:"
    " log(1 + t + t**2/2)/2 + atan(t/(2 + t)) with t = exp(u)",
    slope=lambda u: sympy.tanh(softplus(u)),
    definition=lambda u: (
        _HALF * sympy.log(1 + sympy.exp(u) + sympy.exp(2 * u) / 2)
        + sympy.atan(sympy.exp(u) / (2 + sympy.exp(u)))
    ),
    value=_mish_gate_integral,
)
