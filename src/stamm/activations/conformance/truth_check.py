"""The float64 truth held against 120 digits: how many of its own digits it has lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mpmath
import torch

from stamm.activations.conformance.exact import FUNCTION, SLOPE, exact_quantities, parameter_slope
from stamm.activations.conformance.findings import Finding, finding
from stamm.activations.conformance.inputs import knots, spread, zeros
from stamm.activations.conformance.reference import DIGITS, evaluate
from stamm.activations.conformance.tabulated import table_bound
from stamm.activations.conformance.ulp import neighbours, unit
from stamm.activations.derivation.derive import Branches, Formulas, derive
from stamm.activations.spec import Spec

POINTS = 600
ALLOWED_ULP = 1024.0  # of float64: one millionth of an ulp of float32
_RESIDUE = mpmath.mpf(10) ** (20 - DIGITS)
_SMALLEST, _LARGEST = 1e-20, 1e4  # beyond, formulas as integrated cancel more than 120 digits hold


@dataclass(frozen=True, kw_only=True)
class TruthError:
    """How far the float64 truth of one quantity is from 120 digits.

    ulp           largest error where the value is well conditioned, in float64 ulp
    at            where
    ill_ulp       largest error elsewhere: near zeros float64 loses digits, and no verdict uses it
    ill_count     how many of the points lie there
    bound         how far a table may put the value from the integral; 0 where none is read
    gap           how far it does, with what `ALLOWED_ULP` allows taken off
    """

    quantity: str
    points: int
    ulp: float
    at: float
    ill_ulp: float
    ill_count: int
    bound: float = 0.0
    gap: float = 0.0

    @property
    def good(self) -> bool:
        """Whether the value may be judged with: within ulps, or within the bound of its tables."""
        return self.gap <= self.bound if self.bound else self.ulp <= ALLOWED_ULP


def truth_errors(
    spec: Spec, values: Mapping[str, float], *, points: int = POINTS
) -> tuple[TruthError, ...]:
    """The errors of every quantity at points of all magnitudes, knots, zeros and their neighbours.

    values   effective values of all parameters
    """
    derived = derive(spec)
    x = _points(spec, values, points)
    exact = exact_quantities(spec, values, x)
    found = []
    emitted = _branches(derived.stable, spec)
    for name, branches in _branches(derived.exact, spec).items():
        if name == SLOPE and spec.surrogate:
            continue
        true = _without_residue(x.tolist(), evaluate(branches, x.tolist(), values))
        errors, sizes = _errors(exact[name].values, true)
        good = exact[name].well_conditioned
        worst = int(torch.where(good, errors, -1.0).argmax())
        found.append(
            TruthError(
                quantity=name,
                points=len(x),
                ulp=errors[worst].item() if good.any() else 0.0,
                at=x[worst].item(),
                ill_ulp=errors[~good].max().item() if (~good).any() else 0.0,
                ill_count=int((~good).sum()),
                bound=table_bound(emitted[name], values),
                gap=((errors - ALLOWED_ULP) * sizes).max().clamp(min=0.0).item(),
            )
        )
    return tuple(found)


def truth_finding(spec: Spec, values: Mapping[str, float], *, points: int = POINTS) -> Finding:
    """Whether the float64 truth is good enough to judge float32 with."""

    def work() -> tuple[bool, str]:
        found = truth_errors(spec, values, points=points)
        errors = [error for error in found if not error.bound]
        worst = max(errors, key=lambda error: error.ulp)
        ill = max(errors, key=lambda error: error.ill_ulp)
        told = f"{worst.points} points, at most {worst.ulp:.3g} float64 ulp from 120 digits"
        if ill.ill_count:
            told += f" ({ill.ill_ulp:.3g} where it is ill-conditioned, which no verdict uses)"
        for error in found:
            if error.bound:
                told += (
                    f"; {error.quantity} rests on a table, {error.gap:.2g} from the integral,"
                    f" {error.bound:.2g} allowed"
                )
        return all(error.good for error in found), told

    return finding("float64 truth", work)


def _branches(formulas: Formulas, spec: Spec) -> dict[str, Branches]:
    names = [parameter_slope(p.name) for p in spec.trainable]
    slopes = dict(zip(names, formulas.parameter_slopes, strict=True))
    return {FUNCTION: formulas.function, SLOPE: formulas.slope, **slopes}


def _without_residue(points: list[float], true: list[Any]) -> list[Any]:
    """Values with 0 for what is left at x = 0 of terms that add up to 0, such as 1e-121."""
    return [
        mpmath.mpf(0) if point == 0 and abs(value) < _RESIDUE else value
        for point, value in zip(points, true, strict=True)
    ]


def _points(spec: Spec, values: Mapping[str, float], count: int) -> torch.Tensor:
    everywhere = spread(24 * count).double()
    inside = everywhere[(everywhere.abs() > _SMALLEST) & (everywhere.abs() < _LARGEST)]
    # The middle magnitudes, where formulas bend, get half of the points.
    bending = inside[(inside.abs() > 1e-3) & (inside.abs() < 30)]
    wide = inside[: count // 2]
    # A knot that is no short number is rounded in float64: beside it either piece may be taken.
    ends = [knot for knot in knots(spec, values) if knot == torch.tensor(knot).item()]
    near = torch.tensor([*ends, *zeros(spec, values), 0.0], dtype=torch.float64)
    chosen = torch.unique(torch.cat([wide, bending[: count // 2], neighbours(near)]))
    points: torch.Tensor = chosen[(chosen == 0) | (chosen.abs() > _SMALLEST)]
    return points


def _errors(found: torch.Tensor, true: list[object]) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64 ulp, and what an ulp is; values that float64 cannot hold are not compared."""
    with mpmath.workdps(40):
        rounded = torch.tensor([_double(value) for value in true], dtype=torch.float64)
        remainder = torch.tensor(
            [
                _double(value - mpmath.mpf(near))
                for value, near in zip(true, rounded.tolist(), strict=True)
            ],
            dtype=torch.float64,
        )
    usable = torch.isfinite(rounded) & torch.isfinite(found)
    gap = (found - rounded) - torch.where(usable, remainder, 0.0)
    sizes = unit(rounded, torch.float64)
    nothing = torch.zeros_like(sizes)
    return torch.where(usable, gap.abs() / sizes, nothing), torch.where(usable, sizes, nothing)


def _double(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # an mpmath number
    except OverflowError:
        return float("inf")
