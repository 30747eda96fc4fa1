"""Which evaluation texts a screen looked for, and which it could not."""

from __future__ import annotations

from pathlib import Path

from stamm.reports.figure import Table
from stamm.reports.json_reader import Record, record_if_there
from stamm.reports.text import one_line

_LONGEST_NAME = 60
_MOST_ROWS = 100


def evaluations_table(screened: Path) -> Table:
    """A row for each evaluation set; without rows when none was looked for.

    screened   the folder that the screen step wrote
    """
    coverage = record_if_there(screened / "contamination" / "coverage.json", schema=2)
    sets = coverage.items("sets") if coverage else ()
    left = len(sets) - _MOST_ROWS
    return Table(
        columns=(
            "evaluation set", "items", "texts, looked for by runs", "texts, looked for whole",
            "texts, too short", "items, never found",
        ),
        rows=tuple(_row(name, one) for name, one in sets[:_MOST_ROWS]),
        note=f"{left:,} more are in screened/contamination/coverage.json." if left > 0 else "",
    )  # fmt: skip


def _row(name: str, one: Record) -> tuple[str, ...]:
    counts = ("items", "runs", "short", "unseen", "blind")
    return (one_line(name, _LONGEST_NAME), *(f"{one.whole(key):,}" for key in counts))
