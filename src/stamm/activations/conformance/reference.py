"""The truth to compare with: formulas as integrated, at any precision; and errors in ulp."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import mpmath

from stamm.activations.conformance.ulp import ulps as ulps
from stamm.activations.derivation.derive import Branches, Derived
from stamm.activations.derivation.primitives import X
from stamm.activations.derivation.stabilise import bounds
from stamm.activations.derivation.symbolic import number

Quantity = Literal["function", "slope", "curvature"]
DIGITS = 120  # 1 - exp(x) at the smallest float32 loses 45 of them


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
        ends = [bounds(branch, values) for branch in branches]
        results = []
        for point in points:
            x = mpmath.mpf(point)
            for branch, (low, high) in zip(branches, ends, strict=True):
                above = x > low or (branch.low_closed and x == low)
                below = x < high or (branch.high_closed and x == high)
                if above and below:
                    results.append(number(branch.formula, {**values, X.name: x}))
                    break
        return results
