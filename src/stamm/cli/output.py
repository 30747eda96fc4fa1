"""Print results on stdout, as tables or JSON."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from stamm.base.errors import visible

_INDENT, _LEAST = 4, 30  # characters before a value below its name, and least beside it


def print_json(value: Any) -> None:
    """Print indented JSON, with \\u escapes when the encoding of stdout is not UTF-8."""
    escaped = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=escaped) + "\n")


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, wrap: bool = False
) -> None:
    """Print a table with a header.

    wrap   cells of text at spaces, to fit the terminal's width or 80 columns; else columns are as wide
           as their longest cell
    """
    cells = [list(header), *([visible(cell, 200) for cell in row] for row in rows)]
    widths = _fitted(cells, _columns() if wrap else sys.maxsize)
    for row in cells:
        wrapped = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
        for parts in itertools.zip_longest(*wrapped, fillvalue=""):
            line = "  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True))
            sys.stdout.write(line.rstrip() + "\n")


def _fitted(cells: Sequence[Sequence[str]], columns: int) -> list[int]:
    """Widths of the columns: of the longest cells, the widest reduced, but not below its longest word."""
    by_column = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in by_column]
    least = [
        max((len(w) for cell in column for w in cell.split()), default=0) for column in by_column
    ]
    while sum(widths) + 2 * (len(widths) - 1) > columns:
        slack = [index for index, width in enumerate(widths) if width > least[index]]
        if not slack:
            break
        widths[max(slack, key=lambda index: widths[index])] -= 1
    return widths


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair per line, wrapped to the terminal's width or 80 columns."""
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        _print_wrapped(name.ljust(width), visible(value, 4000), _columns())


def print_text(*lines: str) -> None:
    """Print sentences, each line wrapped to the terminal's width or 80 columns, below its own indent."""
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()))
        sys.stdout.write(f"\n{indent}".join(_wrapped(line, _columns() - len(indent))) + "\n")


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
    """Print `name` and beside it `text`, wrapped into a column of its own of at least 30 characters.

    Edge     below `name`, indented, where it fits there only: a hash, or text beside a long name
    """
    room = columns - len(name) - 2
    longest = max(map(len, text.split()), default=0)
    if len(text) > room and max(longest, _LEAST) > room and longest <= columns - _INDENT:
        lines = [" " * _INDENT + line for line in _wrapped(text, columns - _INDENT)]
        sys.stdout.write("\n".join([name.rstrip(), *lines]) + "\n")
        return
    indent = "\n" + " " * (len(name) + 2)
    lines = _wrapped(text, max(room, _LEAST))
    sys.stdout.write(f"{name}  {indent.join(lines)}".rstrip() + "\n")


def _wrapped(text: str, width: int) -> list[str]:
    """The lines of `text`, broken at spaces only; a longer word stays whole."""
    if len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
