"""The truth to compare with: formulas as integrated, at any precision; and errors in ulp."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import mpmath

from stamm.activations.conformance.ulp import ulps as ulps
from stamm.activations.derivation.derive import Branches, Derived
from stamm.activations.derivation.primitives import X
from stamm.activations.derivation.stable_forms import Branch, bounds
from stamm.activations.derivation.symbolic import number
from stamm.activations.derivation.tables import Table

Quantity = Literal["function", "slope", "curvature"]
DIGITS = 120  # 1 - exp(x) at the smallest float32 loses 45 of them
_FIRST_DIGITS, _LAST_DIGITS = 40, 1300
_AGREED = mpmath.mpf(10) ** -20
_NOTHING = mpmath.mpf(10) ** -1000  # what is left of terms that add up to 0


def truth(
    derived: Derived, quantity: Quantity, points: Iterable[float], values: Mapping[str, float]
) -> list[Any]:
    """f, f' or f'' at each point, as mpmath numbers of 120 digits.

    values   effective value of every parameter
    Raises   KeyError when a parameter has no value.
    """
    return evaluate(getattr(derived.exact, quantity), points, values)


def parameter_truth(
    derived: Derived, name: str, points: Iterable[float], values: Mapping[str, float]
) -> list[Any]:
    """df/dp at each point for the trainable parameter called `name`."""
    position = [p.name for p in derived.spec.trainable].index(name)
    return evaluate(derived.exact.parameter_slopes[position], points, values)


def evaluate(branches: Branches, points: Iterable[float], values: Mapping[str, float]) -> list[Any]:
    """A piecewise formula at each point, as mpmath numbers of 120 digits."""
    with mpmath.workdps(DIGITS):
        return [
            number(branch.formula, {**values, X.name: x})
            for branch, x in _branch_of_each(branches, points, values)
        ]


def settled(branches: Branches, points: Iterable[float], values: Mapping[str, float]) -> list[Any]:
    """A piecewise formula at each finite point, right to 20 digits however much it cancels.

    The number of digits is doubled until two evaluations agree. Terms that add up to exactly 0
    give 0.

    Edge     infinite or NaN where an exponential is beyond every format.
    Raises   ArithmeticError where 1300 digits do not settle a value.
    Checked  tests/unit/activations/test_acceptance.py
    """
    with mpmath.workdps(DIGITS):
        places = list(_branch_of_each(branches, points, values))
    return [_settled(branch, {**values, X.name: x}) for branch, x in places]


def _settled(branch: Branch, at: Mapping[str, Any]) -> Any:
    if branch.formula == 0:
        return mpmath.mpf(0)
    tabled = branch.formula.has(Table)
    digits, before = _first_digits(at[X.name], tabled), None
    while digits <= _LAST_DIGITS:
        with mpmath.workdps(digits):
            value = number(branch.formula, at)
            agreed = before is not None and abs(value - before) <= _AGREED * abs(value)
            if (agreed and (value != 0 or tabled)) or not mpmath.isfinite(
                value
            ):  # an exponential beyond every format
                return value
        digits, before = 2 * digits, value
    if abs(value) < _NOTHING:
        return mpmath.mpf(0)
    raise ArithmeticError(f"{branch.formula} has no value to {_LAST_DIGITS} digits")


def _first_digits(x: Any, tabled: bool) -> int:
    """Enough for cubes of x to cancel against 1; a table is an integral, and cancels nothing."""
    if x == 0 or tabled:
        return _FIRST_DIGITS
    return _FIRST_DIGITS + 3 * abs(int(mpmath.mag(x)) * 3 // 10)


def _branch_of_each(
    branches: Branches, points: Iterable[float], values: Mapping[str, float]
) -> Iterator[tuple[Branch, Any]]:
    ends = [bounds(branch, values) for branch in branches]
    for point in points:
        x = mpmath.mpf(point)
        for branch, (low, high) in zip(branches, ends, strict=True):
            above = x > low or (branch.low_closed and x == low)
            below = x < high or (branch.high_closed and x == high)
            if above and below:
                yield branch, x
                break
