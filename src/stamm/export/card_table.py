"""Tables of the model card, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stamm.base.markdown import escape_markdown

LONGEST_TABLE = 40
LONGEST_CELL = 120


def card_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with the first 40 rows, cells escaped, and the number of rows left out."""
    listed = list(rows)
    lines = [
        head,
        ["---"] * len(head),
        *([escape_markdown(c, LONGEST_CELL) for c in r] for r in listed[:LONGEST_TABLE]),
    ]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    more = len(listed) - LONGEST_TABLE
    return text + (f"\n\n{more} more rows are omitted." if more > 0 else "")
