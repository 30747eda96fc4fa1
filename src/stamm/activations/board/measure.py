"""Errors of values and slopes against the float64 kernel: one line of numbers for each quantity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stamm.activations.board.records import Errors, ShortRow
from stamm.activations.conformance.exact import (
    FUNCTION,
    SLOPE,
    UP_SLOPE,
    ExactValues,
    exact_quantities,
    mixed_ups,
)
from stamm.activations.conformance.judge import judged_inputs, near_knots
from stamm.activations.conformance.ulp import budget
from stamm.activations.conformance.verdict import errors_of
from stamm.activations.spec import Gated, Spec

WHERE = (
    "where input and true value are normal numbers above 2^-100, the condition number |x v'(x)/v(x)| is below 32,"
    " and no slope jumps"
)
_ROOM = 2.0**8  # a slope in a parameter is one term of a sum: it may overflow that much earlier


@dataclass(frozen=True)
class Inputs:
    """Inputs of a measurement, and the true values there.

    x, up      in the dtype that is measured; up only for a gated spec
    judged     by quantity, where the largest error is taken
    """

    x: Tensor
    up: Tensor | None
    exact: Mapping[str, ExactValues]
    judged: Mapping[str, Tensor]

    @property
    def given(self) -> tuple[Tensor, ...]:
        """x, or gate and up."""
        return (self.x,) if self.up is None else (self.x, self.up)


def inputs_of(
    spec: Spec, dtype: torch.dtype, values: Mapping[str, float] | None = None, *, count: int
) -> Inputs:
    """The inputs that the judge uses, with the true values.

    values   effective values of all parameters; the initial ones by default
    """
    values = spec.initial_values() if values is None else values
    x = judged_inputs(spec, values, dtype, count)
    up = mixed_ups(len(x), dtype) if isinstance(spec.arity, Gated) else None
    exact = exact_quantities(spec, values, x.double(), None if up is None else up.double())
    beside, ambiguous = near_knots(spec, values, x)
    smallest = _smallest(dtype)
    jumps = spec.continuity != "continuous" or bool(spec.jumps)
    judged = {}
    for name, true in exact.items():
        kept = true.well_conditioned & ~ambiguous & (x.abs() >= smallest)
        kept &= (true.values == 0) | (true.values.abs() >= smallest)
        if name not in (FUNCTION, UP_SLOPE) and jumps:
            kept &= ~beside
        if name not in (FUNCTION, SLOPE, UP_SLOPE):
            kept &= true.size * _ROOM < torch.finfo(dtype).max
        judged[name] = kept
    return Inputs(x, up, exact, judged)


def _smallest(dtype: torch.dtype) -> float:
    """Below it products with a number of moderate size may be subnormal, which some processors flush to 0."""
    return max(2.0**-100, torch.finfo(dtype).tiny)


def beyond(measured: Inputs, quantity: str, result: Tensor, allowed: Tensor, step: int) -> float:
    """By how many ulp a result errs more than an allowed one, at most, at every `step`-th input."""
    true, kept = (
        all_[::step] for all_ in (measured.exact[quantity].values, measured.judged[quantity])
    )
    errors, finite = errors_of(result[: len(measured.x)][::step], true)
    allowed_errors, held = errors_of(allowed.float(), true)
    more = torch.where(kept & finite & held, errors - allowed_errors, 0.0)
    return max(more.max().item(), 0.0)


def short_row(row: ShortRow, measured: Inputs, results: Sequence[Tensor]) -> ShortRow:
    """The row with the errors of f and of its gradients in the inputs against the entry's budget."""
    limit = budget(row.entry, row.dtype)
    row = replace(row, budget=limit.ulp)
    for quantity, result in zip((FUNCTION, SLOPE, UP_SLOPE), results, strict=False):
        if quantity not in measured.exact:
            break
        errors, finite = errors_of(result, measured.exact[quantity].values, room=limit.room)
        kept = measured.judged[quantity] & (measured.x.abs() <= limit.reach)
        errors = torch.where(kept & finite, errors, 0.0)
        worst = int(errors.argmax())
        row = replace(row, beyond=row.beyond + int((kept & (~finite | (errors > limit.ulp))).sum()))
        if errors[worst] > row.ulp:
            row = replace(row, ulp=errors[worst].item(), at=measured.x[worst].item())
    return row


def errors_at(measured: Inputs, quantity: str, result: Tensor) -> Errors:
    """The errors of one quantity."""
    true, kept = measured.exact[quantity].values, measured.judged[quantity]
    errors, finite = errors_of(result, true)
    wrong = (result.double().sign() * true.sign()) < 0
    usable = torch.where(kept & finite, errors, -1.0)
    worst = int(usable.argmax())
    scaled = usable / (1 + measured.exact[quantity].condition)
    stable = int(scaled.argmax())
    parameter = quantity not in (FUNCTION, SLOPE, UP_SLOPE)
    broken = ~finite & (kept if parameter else torch.ones_like(kept))
    limit = torch.finfo(result.dtype)
    held = (
        true.abs() > limit.tiny * limit.eps / 2
    )  # half of the smallest number and less rounds to 0
    count = int(kept.sum())
    return Errors(
        quantity=quantity,
        inputs=count,
        ulp=max(usable[worst].item(), 0.0),
        at=measured.x[worst].item(),
        stable=max(scaled[stable].item(), 0.0),
        stable_at=measured.x[stable].item(),
        wrong_sign=int((wrong & kept).sum()) / max(count, 1),
        not_finite=int(broken.sum()),
        lost=int((held & (result == 0)).sum()),
    )
