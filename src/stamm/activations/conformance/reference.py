"""Reference values of 120 digits, and the error of the float64 kernel against them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import mpmath
import torch

from stamm.activations.conformance.exact import (
    FUNCTION,
    ILL_CONDITIONED,
    SLOPE,
    exact_quantities,
    exponents,
    knots,
    log_uniform_inputs,
    parameter_slope,
    slope_size,
    zeros,
)
from stamm.activations.conformance.ulp import neighbours, unit
from stamm.activations.conformance.verdict import CheckResult, finding
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.formulas import (
    Branch,
    Branches,
    Formulas,
    bounds,
    number,
)
from stamm.activations.derivation.primitives import X
from stamm.activations.derivation.tables import NumericalIntegral
from stamm.activations.spec import Spec
from stamm.base.errors import DataError

DIGITS = 120  # 1 - exp(x) at the smallest float32 loses 45 of them
_FIRST_DIGITS, _LAST_DIGITS = 40, 2600
_AGREED = mpmath.mpf(10) ** -20
_BELOW = mpmath.mpf(10) ** -360  # below every format, above the error of 500 digits
_ENOUGH_DIGITS = 500


def evaluate(branches: Branches, points: Iterable[float], values: Mapping[str, float]) -> list[Any]:
    """A piecewise formula at each point, as mpmath numbers of 120 digits."""
    with mpmath.workdps(DIGITS):
        return [
            number(branch.formula, {**values, X.name: x})
            for branch, x in _branch_of_each(branches, points, values)
        ]


def settled(branches: Branches, points: Iterable[float], values: Mapping[str, float]) -> list[Any]:
    """A piecewise formula at each finite point, right to 20 digits however much it cancels.

    The number of digits is doubled until two evaluations agree. What is below 1e-360 in both, far
    below every format, is 0.

    Edge     infinite or NaN where an exponential is beyond every format.
    Raises   DataError where 2600 digits do not settle a value.
    Checked  tests/unit/activations/test_acceptance.py
    """
    with mpmath.workdps(DIGITS):
        places = list(_branch_of_each(branches, points, values))
    return [_settled(branch, {**values, X.name: x}) for branch, x in places]


def _settled(branch: Branch, at: Mapping[str, Any]) -> Any:
    if branch.formula == 0:
        return mpmath.mpf(0)
    tabled = branch.formula.has(NumericalIntegral)
    digits, before, used = _first_digits(at[X.name], tabled), None, 0
    while digits <= _LAST_DIGITS:
        with mpmath.workdps(digits):
            try:
                value = number(branch.formula, at)
            except (ArithmeticError, ValueError):
                raise DataError(
                    f"{branch.formula} has no value at x = {float(at[X.name]):g}",
                    fix="Bound the parameter that makes a divisor 0 there",
                ) from None
            if not mpmath.isfinite(value):  # an exponential beyond every format
                return value
            if before is not None:
                agreed = abs(value - before) <= _AGREED * abs(value)
                if agreed and (value != 0 or tabled):
                    return value
                if used >= _ENOUGH_DIGITS and max(abs(value), abs(before)) < _BELOW:
                    return mpmath.mpf(0)
        digits, before, used = 2 * digits, value, digits
    raise DataError(
        f"{branch.formula} cancels at x = {float(at[X.name]):g}: {used} digits do not give its value",
        where="compared with the integral",
        fix="State the gradient without a difference of exponentials, or on two pieces",
    )


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
    spec: Spec,
    values: Mapping[str, float],
    *,
    points: int = POINTS,
    every: int = 1,
    ends: bool = False,
) -> tuple[TruthError, ...]:
    """The errors of every quantity at points of all magnitudes, knots, zeros and their neighbours.

    One point of every exponent of float32 is among them, of both signs, from the smallest subnormal
    number to the largest finite one: the float64 kernel is the truth that float32 is judged by.

    values   effective values of all parameters
    every    take one exponent in so many
    ends     as for `judge`
    """
    derived = derive(spec)
    x = _points(spec, values, points, every)
    exact = exact_quantities(spec, values, x)
    least = slope_size(exact, x) / 256 if ends else torch.zeros_like(x)
    changes = _changes(derived.exact, spec)
    largest_errors = []
    for name, branches in _branches(derived.exact, spec).items():
        if name == SLOPE and spec.surrogate:
            continue
        true = settled(branches, x.tolist(), values)
        errors = _errors(exact[name].values, true)
        good = exact[name].well_conditioned | torch.isinf(errors)
        # A wrong value has a wrong condition number too.
        for i in torch.nonzero((errors > ALLOWED_ULP) & torch.isfinite(errors)).flatten().tolist():
            good[i] = _condition(branches, changes[name], x[i].item(), values) < ILL_CONDITIONED
        if name not in (FUNCTION, SLOPE):
            held = [abs(value) >= limit for value, limit in zip(true, least.tolist(), strict=True)]
            good &= torch.tensor(held) | torch.isinf(errors)
        worst = int(torch.where(good, errors, -1.0).argmax())
        largest_errors.append(
            TruthError(
                quantity=name,
                points=len(x),
                ulp=errors[worst].item() if good.any() else 0.0,
                at=x[worst].item(),
                ill_ulp=errors[~good].max().item() if (~good).any() else 0.0,
                ill_count=int((~good).sum()),
            )
        )
    return tuple(largest_errors)


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
    (value,), (slope,) = (settled(pieces, [x], values) for pieces in (branches, change))
    return abs(x * slope / value) if value else mpmath.inf


def _points(spec: Spec, values: Mapping[str, float], count: int, step: int) -> torch.Tensor:
    wide = log_uniform_inputs(24 * count).double()
    # The middle magnitudes, where formulas bend, get half of the points.
    bending = wide[(wide.abs() > 1e-3) & (wide.abs() < 30)]
    # A knot that float32 does not hold is rounded in float64: beside it either piece may be taken.
    ends = [knot for knot in knots(spec, values) if knot == torch.tensor(knot).item()]
    near = torch.tensor([*ends, *zeros(spec, values)], dtype=torch.float64)
    every = exponents(torch.float32).double()
    smallest = every.abs().min()
    parts = [torch.zeros(1).double(), every[::step], wide[: count // 2], bending[: count // 2]]
    points: torch.Tensor = torch.unique(torch.cat([*parts, neighbours(near)]))
    return points[(points == 0) | (points.abs() >= smallest)]


def _errors(given: torch.Tensor, true: list[Any]) -> torch.Tensor:
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
    gap = (given - rounded) - torch.where(held, remainder, 0.0)
    errors = torch.where(torch.isfinite(given), gap.abs() / unit(rounded, torch.float64), torch.inf)
    return torch.where(held, errors, 0.0)


def _double(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # an mpmath number
    except OverflowError:
        return float("inf")
