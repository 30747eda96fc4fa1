"""Integrals of a gradient of x to any precision, where there is no formula for them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import mpmath

from stamm.activations.derivation.asymptotes import Asymptote, Gradient, asymptote

_CLASS = 20  # precisions are rounded up to multiples of it, so that integrals can be kept


class Integral:
    """The integral of a gradient from `origin`, to the working precision; results are kept.

    segment   the length over which one quadrature is well-behaved
    low       where the gradient ends on the left, or None when it has an asymptote there
    high      the same on the right
    """

    def __init__(
        self, gradient: Gradient, *, origin: Any, segment: Any, low: Any | None, high: Any | None
    ) -> None:
        self._gradient, self._origin, self._segment = gradient, origin, segment
        self._ends = {-1: low, 1: high}
        self._knots: dict[tuple[int, int], Any] = {}
        self._tails: dict[tuple[int, int], tuple[Asymptote, Any]] = {}

    def __call__(self, u: Any) -> Any:
        """The integral from `origin` to u."""
        digits = _CLASS * math.ceil((mpmath.mp.dps + 2) / _CLASS)
        with mpmath.workdps(digits + 10):
            side = 1 if u > self._origin else -1
            if self._ends[side] is None:
                found, height = self._tail(side, digits)
                if abs(u) > found.reach:
                    return +(height + found.integral(u))
            result = self._to(u, digits)
        return +result

    def _tail(self, side: int, digits: int) -> tuple[Asymptote, Any]:
        """The asymptote on a side and the constant that its integral is above it by."""
        key = (side, digits)
        if key not in self._tails:
            found = asymptote(self._gradient, side, digits)
            if found is None:
                raise ArithmeticError(f"the gradient has no asymptote to {digits} digits")
            end = side * found.reach
            self._tails[key] = found, self._to(end, digits) - found.integral(end)
        return self._tails[key]

    def _to(self, u: Any, digits: int) -> Any:
        knot = int(mpmath.nint((u - self._origin) / self._segment))
        start = self._origin + knot * self._segment
        for side, end in self._ends.items():  # a knot beyond an end is none
            if end is not None and (start - end) * side > 0:
                knot, start = knot - side, start - side * self._segment
        return self._knot(knot, digits) + self._quadrature(start, u)

    def _knot(self, knot: int, digits: int) -> Any:
        if knot == 0:
            return mpmath.mpf(0)
        step = 1 if knot > 0 else -1
        done = knot
        while done != 0 and (done, digits) not in self._knots:
            done -= step
        total = self._knots.get((done, digits), mpmath.mpf(0))
        while done != knot:
            ends = (self._origin + k * self._segment for k in (done, done + step))
            total += self._quadrature(*ends)
            done += step
            self._knots[done, digits] = total
        return total

    def _quadrature(self, low: Any, high: Any) -> Any:
        if low == high:
            return mpmath.mpf(0)
        return mpmath.quad(self._gradient, [low, high], method="gauss-legendre")


@lru_cache(maxsize=8)
def legendre(order: int, digits: int) -> tuple[tuple[Any, Any], ...]:
    """Points and weights of Gauss-Legendre quadrature on [-1, 1]."""
    found = []
    with mpmath.workdps(digits + 10):
        for i in range(order):
            t = mpmath.cos(mpmath.pi * (i + mpmath.mpf(3) / 4) / (order + mpmath.mpf(1) / 2))
            for _ in range(3 + digits.bit_length()):  # Newton doubles the digits
                before, value = mpmath.mpf(1), t
                for n in range(2, order + 1):
                    before, value = value, ((2 * n - 1) * t * value - (n - 1) * before) / n
                slope = order * (t * value - before) / (t * t - 1)
                t -= value / slope
            found.append((t, 2 / ((1 - t * t) * slope**2)))
    return tuple(found)
