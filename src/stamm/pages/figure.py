"""A figure of the page: drawing, caption, and the data that it shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stamm.pages.formatting import spaced


@dataclass(frozen=True, kw_only=True)
class DataTable:
    """Rows of text and numbers.

    columns   headings, with units
    rows      cells as they are shown; the first cell of a row is its heading
    words     number of text columns, from the left; the others are right-aligned numbers
    note      rows left out, if any
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
    caption   how to read it
    alt       the same for a reader who cannot see the drawing
    svg       the drawing or drawings as markup; trusted, since it was drawn here
    data      the numbers drawn
    source    the files they come from, relative to the run folder
    command   command that writes those files
    """

    key: str
    title: str
    caption: str
    alt: str
    svg: str
    data: DataTable
    source: str
    command: str

    @property
    def is_stacked(self) -> bool:
        """Whether its panels are drawings of their own, put below each other on a narrow screen."""
        return not self.svg.startswith("<svg")


def thinned(
    columns: Sequence[str], rows: Sequence[Sequence[str]], limit: int, whole: str, words: int = 1
) -> DataTable:
    """A table of at most `limit` rows, evenly chosen, with the first and the last.

    whole   file with all rows ("metrics.jsonl")
    """
    count = len(rows)
    chosen = list(rows)
    note = ""
    if count > limit:
        chosen = [rows[i] for i in spaced(count, limit)]
        note = f"{limit} of {count} rows, evenly spaced; all of them are in {whole}."
    return DataTable(
        columns=tuple(columns), rows=tuple(tuple(row) for row in chosen), words=words, note=note
    )
