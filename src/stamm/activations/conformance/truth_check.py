"""The float64 truth held against many digits: how many of its own digits it has lost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mpmath
import torch

from stamm.activations.conformance.exact import (
    FUNCTION,
    ILL_CONDITIONED,
    SLOPE,
    exact_quantities,
    parameter_slope,
)
from stamm.activations.conformance.findings import Finding, finding
from stamm.activations.conformance.inputs import exponents, knots, spread, zeros
from stamm.activations.conformance.reference import settled
from stamm.activations.conformance.ulp import neighbours, unit
from stamm.activations.derivation.derive import Branches, Formulas, derive
from stamm.activations.spec import Spec

POINTS = 600
ALLOWED_ULP = 1024.0  # of float64: one millionth of an ulp of float32


@dataclass(frozen=True, kw_only=True)
class TruthError:
    """How far the float64 truth of one quantity is from the integral at many digits.

    ulp           largest error where the value is well conditioned, in float64 ulp; infinite where
                  a NaN or an infinity comes back for a value that float64 holds
    at            where
    ill_ulp       largest error elsewhere: near zeros float64 loses digits, and no verdict uses it
    ill_count     how many of the points lie there
    """

    quantity: str
    points: int
    ulp: float
    at: float
    ill_ulp: float
    ill_count: int

    @property
    def good(self) -> bool:
        """Whether the value may be judged with."""
        return self.ulp <= ALLOWED_ULP

    def line(self) -> str:
        """What is wrong, in words."""
        told = f"{self.ulp:.3g} float64 ulp off" if math.isfinite(self.ulp) else "NaN or infinite"
        return f"{self.quantity} is {told} at x = {self.at:.9g}, allowed {ALLOWED_ULP:g} ulp"


def truth_errors(
    spec: Spec, values: Mapping[str, float], *, points: int = POINTS
) -> tuple[TruthError, ...]:
    """The errors of every quantity at points of all magnitudes, knots, zeros and their neighbours.

    One point of every exponent of float32 is among them, of both signs, from the smallest subnormal
    number to the largest finite one: the float64 kernel is the truth that float32 is judged by.

    values   effective values of all parameters
    """
    derived = derive(spec)
    x = _points(spec, values, points)
    exact = exact_quantities(spec, values, x)
    changes = _changes(derived.exact, spec)
    found = []
    for name, branches in _branches(derived.exact, spec).items():
        if name == SLOPE and spec.surrogate:
            continue
        errors = _errors(exact[name].values, settled(branches, x.tolist(), values))
        good = exact[name].well_conditioned | torch.isinf(errors)
        # A wrong value has a wrong condition number too.
        for i in torch.nonzero((errors > ALLOWED_ULP) & torch.isfinite(errors)).flatten().tolist():
            good[i] = _condition(branches, changes[name], x[i].item(), values) < ILL_CONDITIONED
        worst = int(torch.where(good, errors, -1.0).argmax())
        found.append(
            TruthError(
                quantity=name,
                points=len(x),
                ulp=errors[worst].item() if good.any() else 0.0,
                at=x[worst].item(),
                ill_ulp=errors[~good].max().item() if (~good).any() else 0.0,
                ill_count=int((~good).sum()),
            )
        )
    return tuple(found)


def truth_finding(spec: Spec, values: Mapping[str, float], *, points: int = POINTS) -> Finding:
    """Whether the float64 truth is good enough to judge float32 with."""

    def work() -> tuple[bool, str]:
        errors = truth_errors(spec, values, points=points)
        worst = max(errors, key=lambda error: error.ulp)
        ill = max(errors, key=lambda error: error.ill_ulp)
        told = f"{worst.points} points, at most {worst.ulp:.3g} float64 ulp from the integral"
        if ill.ill_count:
            told += f" ({ill.ill_ulp:.3g} where it is ill-conditioned, which no verdict uses)"
        return all(error.good for error in errors), told

    return finding("float64 truth", work)


def _branches(formulas: Formulas, spec: Spec) -> dict[str, Branches]:
    names = [parameter_slope(p.name) for p in spec.trainable]
    slopes = dict(zip(names, formulas.parameter_slopes, strict=True))
    return {FUNCTION: formulas.function, SLOPE: formulas.slope, **slopes}


def _changes(formulas: Formulas, spec: Spec) -> dict[str, Branches]:
    """The derivatives in x of what `_branches` gives."""
    names = [parameter_slope(p.name) for p in spec.trainable]
    mixed = dict(zip(names, formulas.mixed, strict=True))
    return {FUNCTION: formulas.slope, SLOPE: formulas.curvature, **mixed}


def _condition(branches: Branches, change: Branches, x: float, values: Mapping[str, float]) -> Any:
    (value,), (slope,) = (settled(of, [x], values) for of in (branches, change))
    return abs(x * slope / value) if value else mpmath.inf


def _points(spec: Spec, values: Mapping[str, float], count: int) -> torch.Tensor:
    wide = spread(24 * count).double()
    # The middle magnitudes, where formulas bend, get half of the points.
    bending = wide[(wide.abs() > 1e-3) & (wide.abs() < 30)]
    # A knot that is no short number is rounded in float64: beside it either piece may be taken.
    ends = [knot for knot in knots(spec, values) if knot == torch.tensor(knot).item()]
    near = torch.tensor([*ends, *zeros(spec, values)], dtype=torch.float64)
    every = exponents(torch.float32).double()
    parts = [torch.zeros(1).double(), every, wide[: count // 2], bending[: count // 2]]
    points: torch.Tensor = torch.unique(torch.cat([*parts, neighbours(near)]))
    smallest = every.abs().min()
    return points[(points == 0) | (points.abs() >= smallest)]


def _errors(found: torch.Tensor, true: list[Any]) -> torch.Tensor:
    """In float64 ulp; infinite where no finite number came back; 0 where float64 holds no value."""
    with mpmath.workdps(40):
        rounded = torch.tensor([_double(value) for value in true], dtype=torch.float64)
        remainder = torch.tensor(
            [
                _double(value - mpmath.mpf(near))
                for value, near in zip(true, rounded.tolist(), strict=True)
            ],
            dtype=torch.float64,
        )
    held = torch.isfinite(rounded)
    gap = (found - rounded) - torch.where(held, remainder, 0.0)
    errors = torch.where(torch.isfinite(found), gap.abs() / unit(rounded, torch.float64), torch.inf)
    return torch.where(held, errors, 0.0)


def _double(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # an mpmath number
    except OverflowError:
        return float("inf")
