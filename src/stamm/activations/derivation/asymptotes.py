"""Asymptotes: the polynomial that a gradient approaches for large |x|.

A gate and similar functions approach a polynomial so fast that the difference soon falls below any
precision: beyond that point the integral is a polynomial too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath

Gradient = Callable[[Any], Any]
_NEAREST, _FARTHEST = 64, 16384  # where a polynomial is searched for, in doublings
_CHECKED = (1.25, 1.75, 3)
_FAST = 100  # an algebraic approach never agrees to so many digits within _FARTHEST
_MARCH = 256


@dataclass(frozen=True)
class Asymptote:
    """The polynomial that a gradient approaches on one side, lowest power first.

    reach   beyond this distance from 0 they agree to the digits that were asked for, relative to
            1 + |polynomial|
    """

    coefficients: tuple[Any, ...]
    reach: Any

    def at(self, u: Any) -> Any:
        """The polynomial's value."""
        return mpmath.polyval(self.coefficients[::-1], u) if self.coefficients else mpmath.mpf(0)

    def integral(self, u: Any) -> Any:
        """The polynomial's integral from 0."""
        powers = [c / (k + 1) for k, c in enumerate(self.coefficients)]
        return mpmath.polyval([*powers[::-1], 0], u)


def asymptote(gradient: Gradient, side: int, digits: int) -> Asymptote | None:
    """The polynomial of degree 2 or less that the gradient approaches exponentially, or None.

    side   -1 for the left, 1 for the right
    Edge   an approach like 1/x, which never reaches many digits, counts as none.
    """
    fast = _fitted(gradient, side, max(digits, _FAST))
    if fast is None:
        return None
    coefficients, far = fast
    if digits < _FAST:
        near = _fitted(gradient, side, digits + 5)
        far = near[1] if near is not None else far
    found = Asymptote(coefficients, mpmath.mpf(far))
    step = found.reach / _MARCH
    with mpmath.workdps(digits + 20):
        at = found.reach
        while at > step and _agree(gradient, found, side * (at - step), digits):
            at -= step
    return Asymptote(coefficients, at)


def _fitted(gradient: Gradient, side: int, digits: int) -> tuple[tuple[Any, ...], Any] | None:
    """Coefficients, and the distance from which on the polynomial holds to the digits."""
    far = _NEAREST
    with mpmath.workdps(digits + 30):
        while far <= _FARTHEST:
            found = _through(gradient, side * mpmath.mpf(far), digits)
            if found is not None and all(
                _agree(gradient, found, side * far * mpmath.mpf(k), digits) for k in _CHECKED
            ):
                return found.coefficients, far
            far *= 2
    return None


def _through(gradient: Gradient, far: Any, digits: int) -> Asymptote | None:
    """The parabola through the gradient at far, 3/2 far and 2 far, without rounding noise."""
    points = [far, far * 3 / 2, far * 2]
    values = [_finite(gradient, point) for point in points]
    if None in values:
        return None
    first = (values[1] - values[0]) / (points[1] - points[0])
    second = (values[2] - values[1]) / (points[2] - points[1])
    c2 = (second - first) / (points[2] - points[0])
    c1 = first - c2 * (points[0] + points[1])
    c0 = values[0] - points[0] * (c1 + c2 * points[0])
    size = max(1, *map(abs, values)) * mpmath.mpf(10) ** -digits
    terms = [c if abs(c * far**k) > size else mpmath.mpf(0) for k, c in enumerate((c0, c1, c2))]
    while terms and terms[-1] == 0:  # a leading zero times infinity would be NaN
        terms.pop()
    return Asymptote(tuple(terms), far)


def _agree(gradient: Gradient, found: Asymptote, u: Any, digits: int) -> bool:
    value, polynomial = _finite(gradient, u), found.at(u)
    if value is None:
        return False
    return bool(abs(value - polynomial) <= mpmath.mpf(10) ** -digits * (1 + abs(polynomial)))


def _finite(gradient: Gradient, u: Any) -> Any:
    try:
        value = gradient(u)
    except (ArithmeticError, ValueError, MemoryError):
        return None
    return value if isinstance(value, mpmath.mpf) and mpmath.isfinite(value) else None
