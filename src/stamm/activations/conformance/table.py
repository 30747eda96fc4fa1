"""Verdicts as tables: errors by place, several implementations side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stamm.activations.conformance.intervals import Row
from stamm.activations.conformance.verdict import OfDtype, Verdict


@dataclass(frozen=True, kw_only=True)
class Table:
    """A title, a header and rows of text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(verdicts: Sequence[Verdict], quantities: Sequence[str]) -> list[Table]:
    """One table for each dtype and quantity: a row a place, a column an implementation.

    Cells hold median/p99/max in ulp, then the share of wrong signs and the count of results that
    are not finite, where there are any.

    verdicts     the first one names the dtypes; others may lack some
    quantities   those to show, where the first verdict has them
    """
    first = verdicts[0]
    found = []
    for of in first.dtypes:
        columns = [_of(verdict, of.dtype) for verdict in verdicts]
        for quantity in quantities:
            by_place = [_rows(column, quantity) for column in columns]
            if by_place[0]:
                found.append(
                    Table(
                        title=_title(of, quantity),
                        header=("x", "inputs", *(v.implementation for v in verdicts)),
                        rows=tuple(
                            (
                                place,
                                f"{row.count:,}",
                                *(_cell(rows.get(place)) for rows in by_place),
                            )
                            for place, row in by_place[0].items()
                        ),
                    )
                )
    return found


def summary(verdicts: Sequence[Verdict]) -> Table:
    """One row for each dtype and quantity: the worst judged error of every implementation."""
    rows = []
    for of in verdicts[0].dtypes:
        columns = [_of(verdict, of.dtype) for verdict in verdicts]
        rows += [
            (of.dtype, m.quantity, *(_worst(column, m.quantity) for column in columns))
            for m in of.quantities
        ]
    names = [verdict.implementation for verdict in verdicts]
    return Table(title="largest judged error, ulp", header=("dtype", "", *names), rows=tuple(rows))


def _title(of: OfDtype, quantity: str) -> str:
    values = ", ".join(f"{name} = {value:.6g}" for name, value in of.values)
    limit = of.parameter_budget_ulp if quantity.startswith("slope_in_") else of.budget_ulp
    reason = f" ({of.budget_reason})" if of.budget_reason else ""
    told = f" at {values}" if values else ""
    return f"{of.dtype}, {quantity}{told}: median/p99/max in ulp, budget {limit:g}{reason}"


def _of(verdict: Verdict, dtype: str) -> OfDtype | None:
    return next((of for of in verdict.dtypes if of.dtype == dtype), None)


def _rows(of: OfDtype | None, quantity: str) -> dict[str, Row]:
    if of is None:
        return {}
    rows = next((m.rows for m in of.quantities if m.quantity == quantity), ())
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


def _worst(of: OfDtype | None, quantity: str) -> str:
    measured = (
        None if of is None else next((m for m in of.quantities if m.quantity == quantity), None)
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
