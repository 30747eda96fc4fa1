"""Interpolation at Chebyshev points with mpmath numbers, and integrals of the interpolant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mpmath

NODES = 28
_SETTLED = 4  # the last coefficients show whether the interpolant has converged
_PROBES = 12, 14  # decimal orders of magnitude at which an order at 0 is read off
_STEEPEST = 64


class NotResolvedError(ArithmeticError):
    """28 Chebyshev points do not resolve a function on an interval to the requested precision."""


@dataclass(frozen=True)
class Interpolant:
    """sum of coefficients[k] T_k((u - middle)/half), T_k a Chebyshev polynomial.

    tails   tails[k]: the sum of the magnitudes of the coefficients from k on
    """

    middle: Any
    half: Any
    coefficients: tuple[Any, ...]
    tails: tuple[Any, ...]

    def powers(self, count: int, about: Any) -> list[Any]:
        """The first `count` terms as coefficients of powers of (u - about)."""
        rows = _shifted((about - self.middle) / self.half, count, mpmath.mp.prec)
        return [
            mpmath.fdot(zip(self.coefficients[i:count], row, strict=True)) / self.half**i
            for i, row in enumerate(rows)
        ]


@lru_cache(maxsize=64)
def _shifted(shift: Any, count: int, precision: int) -> tuple[tuple[Any, ...], ...]:
    """Row i: the coefficient of v**i in T_k(shift + v), for k from i to count - 1."""
    zero, one = mpmath.mpf(0), mpmath.mpf(1)
    found = [[one], [shift, one]]
    for _ in range(2, count):
        before, current = found[-2:]
        after = [2 * shift * c for c in current] + [zero]
        for i, c in enumerate(current):
            after[i + 1] += 2 * c
        for i, c in enumerate(before):
            after[i] -= c
        found.append(after)
    return tuple(tuple(found[k][i] for k in range(i, count)) for i in range(count))


def interpolant(
    function: Callable[[Any], Any], low: Any, high: Any, tolerance: float
) -> Interpolant:
    """The interpolant of a function at 28 Chebyshev points of an interval.

    tolerance   of its last coefficients, relative to the largest
    Raises      NotResolvedError where they are larger, or a value is not finite.
    Checked     tests/unit/activations/test_chebyshev.py
    """
    middle, half = (low + high) / 2, (high - low) / 2
    cosines = _cosines(NODES, mpmath.mp.prec)
    values = [function(middle + half * cosines[2 * i + 1]) for i in range(NODES)]
    if not all(isinstance(v, mpmath.mpf) and mpmath.isfinite(v) for v in values):
        raise NotResolvedError
    coefficients = [
        2 * mpmath.fdot((values[i], _cosine(k * (2 * i + 1))) for i in range(NODES)) / NODES
        for k in range(NODES)
    ]
    coefficients[0] /= 2
    tails = [mpmath.mpf(0)]
    for c in reversed(coefficients):
        tails.append(tails[-1] + abs(c))
    tails.reverse()
    if not tails[NODES - _SETTLED] <= tolerance * tails[0]:
        raise NotResolvedError
    return Interpolant(middle, half, tuple(coefficients), tuple(tails))


def order_at_zero(function: Callable[[Any], Any], side: int) -> int:
    """The power of u like which a function goes to 0 at 0 from one side; 0 where it does not.

    Raises   NotResolvedError where it vanishes faster than u**64, or has no value.
    """
    near, nearer = (abs(function(side * mpmath.mpf(10) ** -digits)) for digits in _PROBES)
    if not (mpmath.isfinite(near) and mpmath.isfinite(nearer) and nearer > 0):
        raise NotResolvedError
    order = int(mpmath.nint(mpmath.log10(near / nearer) / (_PROBES[1] - _PROBES[0])))
    if not 0 <= order <= _STEEPEST:
        raise NotResolvedError
    return order


def _cosine(turns: int) -> Any:
    """cos(pi turns/(2 NODES))."""
    turns %= 4 * NODES
    return _cosines(NODES, mpmath.mp.prec)[min(turns, 4 * NODES - turns)]


@lru_cache(maxsize=8)
def _cosines(nodes: int, precision: int) -> tuple[Any, ...]:
    """cos(pi k/(2 nodes)) for k = 0 .. 2 nodes, to the working precision."""
    with mpmath.workprec(precision + 10):
        return tuple(mpmath.cos(mpmath.pi * k / (2 * nodes)) for k in range(2 * nodes + 1))
