"""Verdicts of the judge: errors by input interval, findings of single checks, and their tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stamm.activations.conformance.exact import (
    FUNCTION,
    ILL_CONDITIONED,
    SLOPE,
    UP_SLOPE,
    ExactValues,
)
from stamm.activations.conformance.ulp import overflows, ulps
from stamm.base.errors import StammError

KNOTS = "at the knots"
ILL = f"condition number >= {ILL_CONDITIONED:g}"
_EDGES = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, math.inf)
MIXED = " (mixed up)"  # suffix of quantities at up inputs of both signs


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Result of one check: its name, whether it holds, and the numbers measured."""

    name: str
    passed: bool
    numbers: str

    def line(self) -> str:
        """ok or FAILED, the name, the numbers."""
        return f"{'ok' if self.passed else 'FAILED':<6} {self.name}: {self.numbers}"


def finding(name: str, work: Callable[[], tuple[bool, str]]) -> CheckResult:
    """The finding of `work`; a StammError that it raises is a failure with its message."""
    try:
        passed, numbers = work()
    except StammError as error:
        passed, numbers = False, error.line()
    return CheckResult(name=name, passed=passed, numbers=numbers)


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
    x: Tensor, result: Tensor, exact: ExactValues, *, at_knots: Tensor, room: float = 1.0
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
    for region, part in zip((*_NAMES, KNOTS, ILL), torch.split(order, counts), strict=True):
        if len(part):
            rows.append(
                _row(region, region != ILL, x[part], errors[part], finite[part], wrong[part])
            )
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


def _row(
    region: str, judged: bool, x: Tensor, errors: Tensor, finite: Tensor, wrong: Tensor
) -> Row:
    known, where = errors[finite], x[finite]
    median = p99 = largest = worst = 0.0
    if len(known):
        ordered, order = torch.sort(known)
        median = ordered[(len(known) - 1) // 2].item()
        p99 = ordered[math.ceil(0.99 * len(known)) - 1].item()
        largest, worst = ordered[-1].item(), where[order[-1]].item()
    return Row(
        place=region,
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


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One exact value that must come out: f at the anchor, the slope at a knot or at 0."""

    claim: str
    expected: float
    found: float
    holds: bool


@dataclass(frozen=True, kw_only=True)
class QuantityErrors:
    """The rows of one quantity."""

    quantity: str
    rows: tuple[Row, ...]

    @property
    def judged(self) -> tuple[Row, ...]:
        """The rows in which the budget holds."""
        return tuple(row for row in self.rows if row.judged)

    @property
    def worst(self) -> Row | None:
        """The judged row with the largest error, or None where nothing is judged."""
        return max(self.judged, key=lambda row: row.largest, default=None)


@dataclass(frozen=True, kw_only=True)
class DtypeVerdict:
    """Results in one dtype; `problems` lists what broke the budget.

    not_judged   slopes in parameters that the implementation does not give; no budget holds them
    """

    dtype: str
    budget_ulp: float
    budget_reason: str
    parameter_budget_ulp: float
    inputs: int
    values: tuple[tuple[str, float], ...]
    quantities: tuple[QuantityErrors, ...]
    facts: tuple[Fact, ...]
    problems: tuple[str, ...]
    not_judged: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ConformanceVerdict:
    """Verdict of the judge; plain data, for `base.config.to_plain`.

    implementation   as it was named
    judged_where     which inputs are held to the budget, as text
    tables           what f is read from, a sentence for each table
    dtypes           one entry a dtype
    """

    spec: str
    content_hash: str
    implementation: str
    judged_where: str
    dtypes: tuple[DtypeVerdict, ...]
    tables: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every budget and every fact held."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """The budgets and facts that did not hold, with the dtype in front."""
        return tuple(f"{dtype.dtype}: {text}" for dtype in self.dtypes for text in dtype.problems)

    @property
    def not_judged(self) -> tuple[str, ...]:
        """The quantities that are not judged in at least one dtype, in order."""
        return tuple(dict.fromkeys(name for dtype in self.dtypes for name in dtype.not_judged))


def missing_slopes(absent: Sequence[str]) -> tuple[list[str], list[str]]:
    """Problems, and what is not judged, of the quantities that an implementation does not give.

    An output without a gradient in x or up trains nothing below it: that is a problem.
    """
    own = [name for name in absent if name in (SLOPE, UP_SLOPE)]
    inputs = {SLOPE: "the input", UP_SLOPE: "up"}
    problems = [f"{name} is missing: the output has no gradient in {inputs[name]}" for name in own]
    return problems, [name for name in absent if name not in own]


def problems_of(
    measured: Sequence[QuantityErrors], facts: Sequence[Fact], budget_ulp: float, wider_ulp: float
) -> list[str]:
    """Describe what broke a budget or a fact.

    wider_ulp   the budget of slopes in parameters
    """
    problems = []
    for errors in measured:
        worst = errors.worst
        own = errors.quantity.removesuffix(MIXED) in (FUNCTION, SLOPE, UP_SLOPE)
        allowed = budget_ulp if own else wider_ulp
        if worst is not None and worst.largest > allowed:
            problems.append(
                f"{errors.quantity} is {worst.largest:.3g} ulp off at x = {worst.worst_at:.9g}"
                f" ({worst.place}), budget {allowed:g}"
            )
        broken = sum(row.not_finite for row in errors.rows)
        if broken:
            region = next(row.place for row in errors.rows if row.not_finite)
            problems.append(f"{errors.quantity} is NaN or infinite at {broken} inputs ({region})")
        reversed_rows = [row for row in errors.judged if row.wrong_sign]
        if reversed_rows:
            worst = max(reversed_rows, key=lambda row: row.wrong_sign)
            problems.append(
                f"{errors.quantity} has the wrong sign at {worst.wrong_sign:.1%} of the inputs in"
                f" {worst.place}"
            )
    problems += [f"{f.claim}, but {f.found:.6g} came back" for f in facts if not f.holds]
    return problems


@dataclass(frozen=True, kw_only=True)
class VerdictTable:
    """A title, a header and rows of text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(verdicts: Sequence[ConformanceVerdict], quantities: Sequence[str]) -> list[VerdictTable]:
    """One table for each dtype and quantity: a row a place, a column an implementation.

    Cells hold median/p99/max in ulp, then the share of wrong signs and the count of results that
    are not finite, where there are any.

    verdicts     the first one names the dtypes; others may lack some
    quantities   those to show, where the first verdict has them
    """
    first = verdicts[0]
    verdict_tables = []
    for dtype_verdict in first.dtypes:
        columns = [_in_dtype(verdict, dtype_verdict.dtype) for verdict in verdicts]
        for quantity in quantities:
            by_place = [_rows(column, quantity) for column in columns]
            if by_place[0]:
                verdict_tables.append(
                    VerdictTable(
                        title=_title(dtype_verdict, quantity),
                        header=("x", "inputs", *(v.implementation for v in verdicts)),
                        rows=tuple(
                            (
                                region,
                                f"{row.count:,}",
                                *(_cell(rows.get(region)) for rows in by_place),
                            )
                            for region, row in by_place[0].items()
                        ),
                    )
                )
    return verdict_tables


def summary(verdicts: Sequence[ConformanceVerdict]) -> VerdictTable:
    """One row for each dtype and quantity: the worst judged error of every implementation."""
    rows = []
    for dtype_verdict in verdicts[0].dtypes:
        columns = [_in_dtype(verdict, dtype_verdict.dtype) for verdict in verdicts]
        rows += [
            (dtype_verdict.dtype, m.quantity, *(_worst(column, m.quantity) for column in columns))
            for m in dtype_verdict.quantities
        ]
    names = [verdict.implementation for verdict in verdicts]
    return VerdictTable(
        title="largest judged error, ulp", header=("dtype", "", *names), rows=tuple(rows)
    )


def _title(verdict: DtypeVerdict, quantity: str) -> str:
    values = ", ".join(f"{name} = {value:.6g}" for name, value in verdict.values)
    limit = verdict.parameter_budget_ulp if quantity.startswith("slope_in_") else verdict.budget_ulp
    reason = f" ({verdict.budget_reason})" if verdict.budget_reason else ""
    described = f" at {values}" if values else ""
    return (
        f"{verdict.dtype}, {quantity}{described}: median/p99/max in ulp, budget {limit:g}{reason}"
    )


def _in_dtype(verdict: ConformanceVerdict, dtype: str) -> DtypeVerdict | None:
    return next((judged for judged in verdict.dtypes if judged.dtype == dtype), None)


def _rows(verdict: DtypeVerdict | None, quantity: str) -> dict[str, Row]:
    if verdict is None:
        return {}
    rows = next((m.rows for m in verdict.quantities if m.quantity == quantity), ())
    return {row.place: row for row in rows}


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    text = "/".join(_ulp(error) for error in (row.median, row.p99, row.largest))
    if row.wrong_sign:
        text += f" {row.wrong_sign:.0%} wrong sign"
    if row.not_finite:
        text += f" {row.not_finite:,} not finite"
    return text


def _worst(verdict: DtypeVerdict | None, quantity: str) -> str:
    measured = (
        None
        if verdict is None
        else next((m for m in verdict.quantities if m.quantity == quantity), None)
    )
    if measured is None:
        return "-"
    worst = measured.worst
    broken = sum(row.not_finite for row in measured.rows)
    text = "-" if worst is None else _ulp(worst.largest)
    return text + (f" {broken:,} not finite" if broken else "")


def _ulp(error: float) -> str:
    if error < 0.005:
        return "0"
    if error < 10:
        return f"{error:.2f}".removeprefix("0")
    return f"{error:.0f}" if error < 1e5 else f"{error:.1e}".replace("e+", "e")
