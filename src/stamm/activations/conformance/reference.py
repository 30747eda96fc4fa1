"""Reference values of 120 digits, and the error of the float64 kernel against them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import mpmath
import torch

from stamm.activations.conformance.exact import (
    FUNCTION,
    ILL_CONDITIONED,
    SLOPE,
    exact_quantities,
    parameter_slope,
)
from stamm.activations.conformance.inputs import exponents, knots, log_uniform_inputs, zeros
from stamm.activations.conformance.ulp import neighbours, unit
from stamm.activations.conformance.verdict import CheckResult, finding
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.formulas import Branch, Branches, Derived, Formulas, bounds
from stamm.activations.derivation.primitives import X
from stamm.activations.derivation.symbolic import number
from stamm.activations.derivation.tables import TabulatedIntegral
from stamm.activations.spec import Spec

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
    tabled = branch.formula.has(TabulatedIntegral)
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


POINTS = 600
ALLOWED_ULP = 1024.0  # of float64: one millionth of an ulp of float32


@dataclass(frozen=True, kw_only=True)
class TruthError:
    """Distance of the float64 values of one quantity from the integral at many digits.

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
        """The error as one line of text."""
        described = (
            f"{self.ulp:.3g} float64 ulp off" if math.isfinite(self.ulp) else "NaN or infinite"
        )
        return f"{self.quantity} is {described} at x = {self.at:.9g}, allowed {ALLOWED_ULP:g} ulp"


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


def truth_finding(spec: Spec, values: Mapping[str, float], *, points: int = POINTS) -> CheckResult:
    """Whether the float64 truth is good enough to judge float32 with."""

    def work() -> tuple[bool, str]:
        errors = truth_errors(spec, values, points=points)
        worst = max(errors, key=lambda error: error.ulp)
        ill = max(errors, key=lambda error: error.ill_ulp)
        described = f"{worst.points} points, at most {worst.ulp:.3g} float64 ulp from the integral"
        if ill.ill_count:
            described += f" ({ill.ill_ulp:.3g} where it is ill-conditioned, which no verdict uses)"
        return all(error.good for error in errors), described

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
    wide = log_uniform_inputs(24 * count).double()
    # The middle magnitudes, where formulas bend, get half of the points.
    bending = wide[(wide.abs() > 1e-3) & (wide.abs() < 30)]
    # A knot that float32 does not hold is rounded in float64: beside it either piece may be taken.
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
