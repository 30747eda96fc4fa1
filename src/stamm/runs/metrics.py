"""metrics.jsonl: one JSON object per line, in the order of the steps."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from stamm.base.errors import DataError
from stamm.base.files import write_bytes
from stamm.base.receipts import is_present
from stamm.base.schema import read_objects


class MetricsFile:
    """Appends lines; a resumed run first drops the lines of steps that it repeats.

    path         the file; created when it is missing
    after_step   lines of later steps, and an incomplete last line, are dropped
    """

    def __init__(self, path: Path, after_step: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = lines_up_to(path, after_step)
        write_bytes(path, kept)
        self._hash = hashlib.sha256(kept)
        self._file = path.open("ab")

    def write(self, values: dict[str, Any]) -> None:
        """Append one line. `values` has "step"."""
        line = json.dumps(values, separators=(",", ":")).encode() + b"\n"
        self._file.write(line)
        self._file.flush()
        self._hash.update(line)

    def sync(self) -> str:
        """Flush every line to disk (fsync) before a checkpoint; returns the SHA-256 of the file."""
        os.fsync(self._file.fileno())
        return self._hash.hexdigest()

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
    """Every complete line of a metrics file; none where there is no file.

    Raises   DataError for a line that is not a JSON object.
    """
    if not is_present(path):
        return []
    rows = []
    for where, line in read_objects(path):
        if not isinstance(line, dict):
            raise DataError(f"{where} is not an object", fix="Restore the file")
        rows.append(line)
    return rows


def metrics_hash(path: Path, after_step: int) -> str:
    """SHA-256 of the lines up to a step, as `MetricsFile.sync` returned it at that step."""
    return hashlib.sha256(lines_up_to(path, after_step)).hexdigest()


def lines_up_to(path: Path, step: int) -> bytes:
    """The lines of a metrics file up to a step, without an incomplete last one."""
    kept = []
    for line in _whole_lines(path):
        try:
            if json.loads(line)["step"] > step:
                break
        except (ValueError, TypeError, KeyError):
            break  # lines after a damaged one are not used
        kept.append(line)
    return b"".join(kept)


def _whole_lines(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
