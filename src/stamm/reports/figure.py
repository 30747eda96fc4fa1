"""What a figure on the page is: a drawing, a sentence to read it by, and the numbers in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stamm.reports.formatting import spaced


@dataclass(frozen=True, kw_only=True)
class Table:
    """Numbers and words in rows.

    columns   headings, with units
    rows      cells as they are shown; the first cell of a row is its heading
    words     how many columns from the left hold words (the others are numbers, set right)
    note      what was left out, if anything
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the page.

    key       its anchor ("loss")
    title     what it shows
    caption   what to look for, in plain sentences
    alt       the same for a reader who cannot see the drawing
    svg       the drawing or drawings as markup; trusted, for it was drawn here
    data      the numbers drawn
    source    the files they come from, relative to the run folder
    command   what makes those files
    """

    key: str
    title: str
    caption: str
    alt: str
    svg: str
    data: Table
    source: str
    command: str

    @property
    def is_stacked(self) -> bool:
        """Whether its panels are drawings of their own, put below each other on a narrow screen."""
        return not self.svg.startswith("<svg")


def thinned(
    columns: Sequence[str], rows: Sequence[Sequence[str]], limit: int, whole: str, words: int = 1
) -> Table:
    """A table of at most `limit` rows, evenly chosen, with the first and the last.

    whole   where all rows stand ("metrics.jsonl")
    """
    count = len(rows)
    chosen = list(rows)
    note = ""
    if count > limit:
        chosen = [rows[i] for i in spaced(count, limit)]
        note = f"{limit} of {count} rows, evenly spaced; all of them are in {whole}."
    return Table(
        columns=tuple(columns), rows=tuple(tuple(row) for row in chosen), words=words, note=note
    )
