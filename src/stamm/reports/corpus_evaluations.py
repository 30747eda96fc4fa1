"""Table of the evaluation texts that a contamination screen searches for."""

from __future__ import annotations

from pathlib import Path

from stamm.base.schema import read_record_if_present
from stamm.reports.figure import DataTable
from stamm.reports.text import one_line
from stamm.runs.schemas.corpus import CoverageFile, SetCoverage

_LONGEST_NAME = 60
_MOST_ROWS = 100


def evaluations_table(screened: Path) -> DataTable:
    """A row for each evaluation set; without rows when none was searched for.

    screened   the folder that the screen step wrote
    """
    coverage = read_record_if_present(CoverageFile, screened / "contamination" / "coverage.json")
    sets = list(coverage.sets.items()) if coverage else []
    left = len(sets) - _MOST_ROWS
    return DataTable(
        columns=(
            "evaluation set", "items", "texts, searched by runs", "texts, searched whole",
            "texts, too short", "items, not searchable",
        ),
        rows=tuple(_row(name, one) for name, one in sets[:_MOST_ROWS]),
        note=f"{left:,} more are in screened/contamination/coverage.json." if left > 0 else "",
    )  # fmt: skip


def _row(name: str, one: SetCoverage) -> tuple[str, ...]:
    counts = (one.items, one.runs, one.short, one.unseen, one.blind)
    return (one_line(name, _LONGEST_NAME), *(f"{count:,}" for count in counts))
