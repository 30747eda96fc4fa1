"""Markdown from untrusted text: all markup is escaped, invisible characters are shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stamm.base.errors import visible
from stamm.base.markdown import escape_markdown

_LONGEST_CELL = 200
LONGEST_TEXT = 10_000
_TICKS = re.compile(r"`+")


@dataclass(frozen=True, kw_only=True)
class MarkdownTable:
    """Rows of plain values under trusted headings.

    quoted   number of columns from the left with untrusted text, which is shown as code
    rest     a sentence about omitted rows, or ""
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float, ...], ...]
    quoted: int = 1
    rest: str = ""


def code_span(text: str) -> str:
    """`text` as a code span, shown literally; "" stays "".

    Edge     bars are escaped for tables, and so are control and invisible characters.
    """
    shown = visible(" ".join(text.split()), _LONGEST_CELL).replace("|", "\\|")
    if not shown:
        return ""
    longest = max((len(run) for run in _TICKS.findall(shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def counted(number: int, one: str) -> str:
    """A number with its noun: "1 document", "2 documents"."""
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def table(rows: MarkdownTable) -> str:
    """A Markdown table, with `rest` below it."""
    body = [_line([_cell(x, i < rows.quoted) for i, x in enumerate(row)]) for row in rows.rows]
    rest = ["", rows.rest] if rows.rest else []
    return "\n".join([_line(rows.columns), _line(_sides(rows)), *body, *rest])


def _sides(rows: MarkdownTable) -> list[str]:
    """Alignment: numbers right, text left."""
    return [
        "---" if all(isinstance(row[i], str) for row in rows.rows) else "---:"
        for i in range(len(rows.columns))
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: str | int | float, quoted: bool) -> str:
    if isinstance(value, str):
        return code_span(value) if quoted else escape_markdown(value, LONGEST_TEXT)
    return f"{value:,}"
