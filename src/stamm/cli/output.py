"""Print results on stdout, as tables or JSON."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from stamm.base.errors import visible


def print_json(value: Any) -> None:
    """Print indented JSON, with \\u escapes when the encoding of stdout is not UTF-8."""
    escaped = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=escaped) + "\n")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with a header; columns are as wide as their longest cell."""
    cells = [list(header), *([visible(cell, 200) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair per line; on a terminal long values are wrapped at spaces."""
    width = max((len(name) for name, _ in pairs), default=0)
    columns = _columns() if sys.stdout.isatty() else sys.maxsize
    for name, value in pairs:
        _print_wrapped(name.ljust(width), visible(value, 4000), columns)


def print_groups(groups: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Print names and descriptions under a heading for each group, within the terminal's width or 80 columns."""
    width = max((len(name) for rows in groups.values() for name, _ in rows), default=0)
    for number, (heading, rows) in enumerate(groups.items()):
        sys.stdout.write("\n" * (number > 0) + f"{visible(heading)}\n")
        for name, description in rows:
            _print_wrapped(f"  {visible(name, 200).ljust(width)}", visible(description), _columns())


def _columns() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def _print_wrapped(name: str, text: str, columns: int) -> None:
    """Print `name` and beside it `text`, wrapped into a column of its own of at least 30 characters."""
    room = max(columns - len(name) - 2, 30)
    lines = (
        textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
        if len(text) > room
        else [text]
    )
    indent = "\n" + " " * (len(name) + 2)
    sys.stdout.write(f"{name}  {indent.join(lines)}".rstrip() + "\n")
