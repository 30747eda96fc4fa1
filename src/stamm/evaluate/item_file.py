"""Finished items of a running task: blocks appended to a file, so that a killed evaluation resumes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError
from stamm.base.files import json_line, read_json, write_json


class ItemFile:
    """Lines of items, block by block. A block that was appended is not scored again.

    path        the JSONL file; hidden until the task is finished
    identity    hash of everything that the lines depend on; a file with another hash is started
                again

    Checked     tests/unit/evaluate/test_file_task.py
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path = path
        self._state = path.with_suffix(".state")
        self._identity = identity
        self.blocks = 0
        self._bytes = 0
        if self._state.is_file() and path.is_file():
            try:
                stored = read_json(self._state)
            except DataError:
                stored = None
            known = isinstance(stored, dict) and stored.get("identity") == identity
            if known and path.stat().st_size >= stored["bytes"]:
                self.blocks, self._bytes = stored["blocks"], stored["bytes"]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as opened:  # what a killed process wrote of another block is cut off
            opened.truncate(self._bytes)

    def append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add a block."""
        with self.path.open("ab") as opened:
            opened.write("".join(json_line(line) for line in lines).encode())
            opened.flush()
            os.fsync(opened.fileno())
            self._bytes = opened.tell()
        self.blocks += 1
        state = {"identity": self._identity, "blocks": self.blocks, "bytes": self._bytes}
        write_json(self._state, state)

    def finish(self, target: Path) -> None:
        """Move the lines to `target`."""
        self.path.replace(target)
        self._state.unlink(missing_ok=True)


def blocks_of(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """The items in lists of `size`, the last one shorter."""
    block: list[Any] = []
    for item in items:
        block.append(item)
        if len(block) == size:
            yield block
            block = []
    if block:
        yield block
