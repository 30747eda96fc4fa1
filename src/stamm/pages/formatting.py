"""Numbers as the page and the terminal write them, and moving averages for curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

MINUS = "\u2212"
ABSENT = "not run"


class HasInterval(Protocol):
    """A mean with the ends of its confidence interval; None where there is none."""

    @property
    def mean(self) -> float:
        """The mean."""

    @property
    def low(self) -> float | None:
        """The lower end."""

    @property
    def high(self) -> float | None:
        """The upper end."""


def fixed(value: float | None, digits: int) -> str:
    """`value` with `digits` decimals, "not run" for None, "not finite" for NaN and infinities."""
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return "not finite"
    return f"{_unsigned_zero(value, digits):,.{digits}f}".replace("-", MINUS)


def signed(value: float | None, digits: int) -> str:
    """`value` with its sign: +0.012, −0.012, 0.000."""
    if value is None or not math.isfinite(value):
        return fixed(value, digits)
    if round(value, digits) == 0:
        return fixed(0.0, digits)
    return f"{value:+,.{digits}f}".replace("-", MINUS)


def percent(share: float | None, digits: int = 1) -> str:
    """A share of 1 as a percentage: 0.5 as "50.0 %"."""
    return fixed(share, digits) if share is None else f"{fixed(100 * share, digits)} %"


def interval_text(estimate: HasInterval, digits: int) -> str:
    """A mean, with its interval where there is one: "1.50 [1.20, 1.80]"."""
    mean = fixed(estimate.mean, digits)
    if estimate.low is None or estimate.high is None:
        return mean
    return f"{mean} [{fixed(estimate.low, digits)}, {fixed(estimate.high, digits)}]"


def table_lines(rows: Sequence[Sequence[str]], words: int) -> list[str]:
    """Rows of equal length as aligned lines for a terminal.

    words   number of text columns, from the left; the others are right-aligned numbers
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """The mean over `window` values around each one; at the ends over those that exist.

    Edge     values that are not finite are left out; where none is finite the mean is NaN.
    """
    half = max(window, 1) // 2
    sums, counts = [0.0], [0]
    for value in values:
        finite = math.isfinite(value)
        sums.append(sums[-1] + (value if finite else 0.0))
        counts.append(counts[-1] + finite)
    means = []
    for i in range(len(values)):
        low, high = max(i - half, 0), min(i + half + 1, len(values))
        count = counts[high] - counts[low]
        means.append((sums[high] - sums[low]) / count if count else math.nan)
    return means


def spaced(count: int, limit: int) -> list[int]:
    """At most `limit` positions of `count`, evenly spaced, with the first and the last."""
    if count <= limit:
        return list(range(count))
    return [round(i * (count - 1) / (limit - 1)) for i in range(limit)]


def _unsigned_zero(value: float, digits: int) -> float:
    return 0.0 if round(value, digits) == 0 else value
