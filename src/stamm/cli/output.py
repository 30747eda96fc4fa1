"""Print results on stdout, as tables or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
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
    """Print names and values, one pair per line."""
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        sys.stdout.write(f"{name.ljust(width)}  {visible(value, 4000)}\n")
