"""metrics.jsonl: one JSON object a line, in the order of the steps."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from stamm.base.files import write_bytes


class MetricsFile:
    """Appends lines; a resumed run first drops those of steps it will do again.

    path         the file; made when it is missing
    after_step   lines of later steps, and a last line cut short by a kill, are dropped
    """

    def __init__(self, path: Path, after_step: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = b"".join(
            line for line in _whole_lines(path) if json.loads(line)["step"] <= after_step
        )
        write_bytes(path, kept)
        self._file = path.open("ab")

    def write(self, values: dict[str, Any]) -> None:
        """Append one line. `values` has "step"."""
        self._file.write(json.dumps(values, separators=(",", ":")).encode() + b"\n")
        self._file.flush()

    def sync(self) -> None:
        """Put every line on the disk, before a checkpoint that counts on them takes its name."""
        os.fsync(self._file.fileno())

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every whole line of a metrics file."""
    return [json.loads(line) for line in _whole_lines(path)]


def _whole_lines(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
