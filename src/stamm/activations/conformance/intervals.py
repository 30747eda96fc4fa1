"""Errors gathered by where they occur: decades of the input, knots, and ill-conditioned places."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stamm.activations.conformance.exact import ILL_CONDITIONED, Exact
from stamm.activations.conformance.ulp import overflows, ulps

KNOTS = "at the knots"
ILL = f"condition number >= {ILL_CONDITIONED:g}"
_EDGES = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, math.inf)


@dataclass(frozen=True, kw_only=True)
class Row:
    """The errors of one quantity at the inputs of one place.

    place        an interval of the input, KNOTS or ILL
    judged       whether the budget holds here
    count        inputs
    median, p99, largest   of the error, in ulp of the dtype, where the result is finite
    worst_at     the input with the largest error
    wrong_sign   share of results whose sign is that of the exact value reversed
    not_finite   results that are NaN, or infinite where the exact value rounds to a finite one or
                 to the other infinity
    """

    place: str
    judged: bool
    count: int
    median: float
    p99: float
    largest: float
    worst_at: float
    wrong_sign: float
    not_finite: int


def gather(
    x: Tensor, result: Tensor, exact: Exact, *, at_knots: Tensor, room: float = 1.0
) -> tuple[Row, ...]:
    """One row for each place that holds inputs, from left to right, then KNOTS and ILL.

    at_knots   which inputs lie on or beside a knot: they are rows of their own, and held to the
               budget where the gradient is continuous there
    room       as in `Budget`
    """
    errors, finite = errors_of(result, exact.values, room=room)
    wrong = (result.double().sign() * exact.values.sign()) < 0
    label = _decades(x)
    label[at_knots] = len(_NAMES)
    label[~exact.well_conditioned] = len(_NAMES) + 1
    order = torch.argsort(label, stable=True)
    counts = torch.bincount(label, minlength=len(_NAMES) + 2).tolist()
    rows = []
    for place, part in zip((*_NAMES, KNOTS, ILL), torch.split(order, counts), strict=True):
        if len(part):
            rows.append(_row(place, place != ILL, x[part], errors[part], finite[part], wrong[part]))
    return tuple(rows)


def errors_of(result: Tensor, exact: Tensor, *, room: float = 1.0) -> tuple[Tensor, Tensor]:
    """The error of each result in ulp, and whether it is finite as it should be.

    room     as in `Budget`
    Edge     an infinity one step too early counts as one unit, not as a failure; where the exact
             value is infinite or overflows, an infinity of its sign is right.
    """
    limit = torch.finfo(result.dtype)
    same = result.double().sign() == exact.sign()
    infinite = torch.isinf(result) & same
    right = infinite & (overflows(exact, result.dtype) | (exact.abs() * room > limit.max))
    early = infinite & ~right & (exact.abs() >= limit.max * (1 - 2 * limit.eps))
    usable = torch.where(early, torch.full_like(result, limit.max), result)
    bounded = torch.where(torch.isinf(exact), exact.sign() * limit.max, exact)
    errors = ulps(usable, bounded) + early.double()
    flushed = (result == 0) & (exact.abs() < limit.tiny) & (room > 1)
    errors = torch.where(right | flushed, torch.zeros_like(errors), errors)
    return errors, torch.isfinite(errors)


def _row(place: str, judged: bool, x: Tensor, errors: Tensor, finite: Tensor, wrong: Tensor) -> Row:
    known, where = errors[finite], x[finite]
    median = p99 = largest = worst = 0.0
    if len(known):
        ordered, order = torch.sort(known)
        median = ordered[(len(known) - 1) // 2].item()
        p99 = ordered[math.ceil(0.99 * len(known)) - 1].item()
        largest, worst = ordered[-1].item(), where[order[-1]].item()
    return Row(
        place=place,
        judged=judged,
        count=len(x),
        median=median,
        p99=p99,
        largest=largest,
        worst_at=worst,
        wrong_sign=wrong.double().mean().item(),
        not_finite=int((~finite).sum()),
    )


def _decades(x: Tensor) -> Tensor:
    """The position in _NAMES of the interval that holds each input."""
    edges = torch.tensor(_EDGES[1:-1], dtype=torch.float64)
    decade = torch.bucketize(x.double().abs(), edges, right=True)
    count = len(_EDGES) - 1
    return torch.where(torch.signbit(x), count - 1 - decade, count + decade)


def _names() -> tuple[str, ...]:
    """Intervals from left to right: "-0.01 .. -0.001", ..., "0.001 .. 0.01"."""
    ends = ["0", *(f"{edge:g}" for edge in _EDGES[1:-1]), "max"]
    positive = [f"{low} .. {high}" for low, high in itertools.pairwise(ends)]
    negative = [f"-{high} .. -{low}" for low, high in itertools.pairwise(ends)]
    return (*reversed(negative), *positive)


_NAMES = _names()
