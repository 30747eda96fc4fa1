"""Values of a derivation's exact formulas, with 120 digits, and one known integral."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import mpmath

from stamm.activations.conformance.reference import evaluate
from stamm.activations.derivation.formulas import Derived


def truth(
    derived: Derived, quantity: str, points: Iterable[float], values: Mapping[str, float]
) -> list[Any]:
    """The "function", "slope" or "curvature" at each point."""
    return evaluate(getattr(derived.exact, quantity), points, values)


def parameter_truth(
    derived: Derived, name: str, points: Iterable[float], values: Mapping[str, float]
) -> list[Any]:
    """df/dp at each point for the trainable parameter called `name`."""
    position = [p.name for p in derived.spec.trainable].index(name)
    return evaluate(derived.exact.parameter_slopes[position], points, values)


def apa_integral(u: Any, shape: Any) -> Any:
    """The integral from minus infinity of the gate (1 + shape exp(-u))**(-1/shape).

    shape * t**(1/shape) * 2F1(1/shape, 1/shape; 1 + 1/shape; -t) with t = exp(u)/shape

    Source   the substitution t turns the gate into t**(1/shape - 1) (1 + t)**(-1/shape); the
             series of the second factor integrates to 2F1. Log-odds are its case shape = 1.
    """
    t, power = mpmath.exp(u) / shape, 1 / mpmath.mpf(shape)
    return shape * t**power * mpmath.hyp2f1(power, power, 1 + power, -t)
