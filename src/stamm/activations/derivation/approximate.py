"""Polynomials for functions that cancel, with coefficients computed at high precision.

A polynomial interpolates the function at Chebyshev points and is written in powers of the
variable; its degree is the smallest whose measured relative error meets the target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mpmath

from stamm.activations.derivation.special import dilogarithm_series
from stamm.base.errors import ConfigError

SINGLE = 2.0**-27  # an eighth of a float32 ulp
DOUBLE = 2.0**-56
_DIGITS = 60
_MAX_DEGREE = 40
_GRID = 400


@dataclass(frozen=True, kw_only=True)
class Polynomial:
    """sum of coefficients[k] u**k.

    relative_error   measured on its interval, before the coefficients are rounded to doubles
    """

    coefficients: tuple[float, ...]
    relative_error: float


def exponential_remainder(u: Any) -> Any:
    """2 (exp(u) - 1 - u - u**2/2)/u**3, which is 1/3 at 0."""
    if u == 0:
        return mpmath.mpf(1) / 3
    with mpmath.workdps(3 * _DIGITS):
        return 2 * (mpmath.expm1(u) - u - u**2 / 2) / u**3


def arctan_remainder(square: Any) -> Any:
    """(atan(t) - t/(1 + t**2))/t**3 as a function of t**2, which is 2/3 at 0."""
    if square == 0:
        return mpmath.mpf(2) / 3
    with mpmath.workdps(2 * _DIGITS):
        t = mpmath.sqrt(square)
        return (mpmath.atan(t) - t / (1 + square)) / t**3


def dilogarithm_remainder(square: Any) -> Any:
    """(-Li2(1 - exp(s)) - s - s**2/4)/s**3 as a function of s**2, which is 1/36 at 0."""
    if square == 0:
        return mpmath.mpf(1) / 36
    with mpmath.workdps(2 * _DIGITS):
        s = mpmath.sqrt(square)
        return (dilogarithm_series(s) - s - square / 4) / s**3


def log_cosh_quotient(square: Any) -> Any:
    """log(cosh(u))/u**2 as a function of u**2, which is 1/2 at 0."""
    if square == 0:
        return mpmath.mpf(1) / 2
    with mpmath.workdps(2 * _DIGITS):
        return mpmath.log1p(2 * mpmath.sinh(mpmath.sqrt(square) / 2) ** 2) / square


def exponential_integral_near(z: Any) -> Any:
    """(E1(z) + log(z) + Euler's constant)/z, which is 1 at 0."""
    if z == 0:
        return mpmath.mpf(1)
    with mpmath.workdps(2 * _DIGITS):
        return (mpmath.e1(z) + mpmath.log(z) + mpmath.euler) / z


def exponential_integral_middle(u: Any) -> Any:
    """exp(z) E1(z) with z = exp(-u)."""
    z = mpmath.exp(-u)
    return mpmath.exp(z) * mpmath.e1(z)


def exponential_integral_far(w: Any) -> Any:
    """z exp(z) E1(z) with z = 1/w, which is 1 at 0."""
    if w == 0:
        return mpmath.mpf(1)
    return mpmath.exp(1 / w) * mpmath.e1(1 / w) / w


def error_complement(t: Any) -> Any:
    """(1 + 2 x) exp(x**2) erfc(x) with x = 3 (1 + t)/(1 - t), which is 2/sqrt(pi) at 1."""
    if t == 1:
        return 2 / mpmath.sqrt(mpmath.pi)
    with mpmath.workdps(2 * _DIGITS):
        x = 3 * (1 + t) / (1 - t)
        return (1 + 2 * x) * mpmath.exp(x**2) * mpmath.erfc(x)


@lru_cache(maxsize=32)
def fit(function: Callable[[Any], Any], low: float, high: float, target: float) -> Polynomial:
    """The polynomial of least degree within `target` relative error of `function` on an interval.

    Raises   ConfigError when degree 40 does not reach it.
    Checked  tests/unit/activations/test_approximate.py
    """
    with mpmath.workdps(_DIGITS):
        ends = mpmath.mpf(low), mpmath.mpf(high)
        grid = [ends[0] + (ends[1] - ends[0]) * i / _GRID for i in range(_GRID + 1)]
        truth = [function(point) for point in grid]
        error = mpmath.inf
        for degree in range(1, _MAX_DEGREE + 1):
            coefficients = _interpolate(function, *ends, degree)
            error = max(
                abs(mpmath.polyval(coefficients[::-1], point) / value - 1)
                for point, value in zip(grid, truth, strict=True)
            )
            if error <= target:
                rounded = tuple(float(c) for c in coefficients)
                return Polynomial(coefficients=rounded, relative_error=float(error))
    raise ConfigError(
        f"no polynomial of degree {_MAX_DEGREE} is within {target:g} of the function on"
        f" [{low:g}, {high:g}]: {float(error):g} remains",
        fix="Approximate it on a shorter interval",
    )


def _interpolate(function: Callable[[Any], Any], low: Any, high: Any, degree: int) -> list[Any]:
    """Power coefficients of the interpolant at degree + 1 Chebyshev points of [low, high]."""
    count = degree + 1
    middle, half = (low + high) / 2, (high - low) / 2
    nodes = [mpmath.cos(mpmath.pi * (2 * i + 1) / (2 * count)) for i in range(count)]
    points = [middle + half * node for node in nodes]
    differences = [function(point) for point in points]
    for order in range(1, count):  # Newton's divided differences, in place
        for i in range(count - 1, order - 1, -1):
            step = points[i] - points[i - order]
            differences[i] = (differences[i] - differences[i - 1]) / step
    coefficients = [differences[-1]]
    for i in range(count - 2, -1, -1):  # multiply by (u - points[i]) and add
        shifted = [mpmath.mpf(0), *coefficients]
        for k, c in enumerate(coefficients):
            shifted[k] -= points[i] * c
        shifted[0] += differences[i]
        coefficients = shifted
    return coefficients
