"""Read files of alignment data: JSON lines or an array, Parquet and Arrow, row by row.

A row that cannot be read is a `BadRow` with its file, line and reason; the rows after it are read.

Checked  tests/unit/align/test_examples.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.align.data.examples import (
    Example,
    Kind,
    RowOrigin,
    read_example,
    renamed,
    unread_columns,
)
from stamm.base.errors import DataError
from stamm.base.json_text import parse_json
from stamm.base.known_keys import UnknownKeys
from stamm.chat.conversation import EmptyAnswerError
from stamm.corpus.formats import JSONL, TABLE
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.jsonl import json_lines
from stamm.corpus.readers.table import TABLE_ERRORS, table_rows
from stamm.corpus.streams import BoundedStream, StreamError

BAD_ROW, EMPTY_ANSWER = "bad_row", "empty_answer"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be read as an example: its place and the reason.

    cause   "bad_row", or "empty_answer" where an answer has no content
    """

    file: str
    row: int
    reason: str
    cause: str = BAD_ROW

    def line(self) -> str:
        """The file, the row and the reason, in one line."""
        return f"{self.file}, row {self.row}: {self.reason}"


def read_examples(path: Path, limits: ReadLimits | None = None) -> Iterator[Example | BadRow]:
    """The examples of a file, in order, and a BadRow for each invalid row.

    Raises   as `read_rows`
    """
    return (example for _, example in read_rows(path, limits))


def read_rows(
    path: Path,
    limits: ReadLimits | None = None,
    name: str = "",
    *,
    kind: Kind = "auto",
    fields: Mapping[str, str] | None = None,
    empty_answers: bool = False,
    unread: UnknownKeys | None = None,
) -> Iterator[tuple[Mapping[str, Any], Example | BadRow]]:
    """The rows of a file with their examples; a row that cannot be read has a BadRow instead.

    name                  of the file in origins; empty: the last part of its path
    kind, empty_answers   as `examples.read_example`
    fields                name in the file by field, where it is configured; it may be a path
    unread                counts the columns that configured fields replace

    Edge     a row that is not an object is {}
    Raises   DataError when the file is missing or its format is not known.
    """
    file = name or path.name
    for number, row in _read(path, ReadLimits() if limits is None else limits, file):
        if isinstance(row, BadRow):
            yield {}, row
            continue
        try:
            if fields and isinstance(row, Mapping):
                if unread is not None:
                    unread.add(unread_columns(row, fields))
                row = renamed(row, fields)
            origin = RowOrigin(file=file, row=number)
            example = read_example(row, origin, kind=kind, empty_answers=empty_answers)
        except DataError as error:
            cause = EMPTY_ANSWER if isinstance(error, EmptyAnswerError) else BAD_ROW
            shown = row if isinstance(row, Mapping) else {}
            yield shown, BadRow(file, number, error.line().rstrip("."), cause)
        else:
            yield row, example


def count_rows(path: Path, limits: ReadLimits) -> int:
    """The number of rows that `read_rows` gives of a file."""
    return sum(1 for _ in _read(path, limits, path.name))


def _read(path: Path, bounds: ReadLimits, file: str) -> Iterator[tuple[int, Any]]:
    """The rows of a file with their numbers, from 1."""
    if path.name.endswith(TABLE):
        return _table(path, file)
    if path.name.endswith(JSONL):
        return _json(path, file, bounds)
    raise DataError(f"{path} has an unknown format", fix=f"Use {', '.join((*JSONL, *TABLE))}")


def _json(path: Path, file: str, limits: ReadLimits) -> Iterator[tuple[int, Any]]:
    number = 0
    with BoundedStream(path, limits.expansion) as stream:
        try:
            for line in json_lines(path, stream, limits):
                number = line.number
                if not line.data.strip():
                    continue
                if line.size > limits.line_bytes:
                    reason = f"{line.size} bytes, limit {limits.line_bytes}"
                    yield number, BadRow(file, number, reason)
                    continue
                try:
                    row = parse_json(line.data.decode("utf-8-sig"))
                except RecursionError:
                    yield number, BadRow(file, number, "JSON nested too deeply")
                except ValueError as error:  # also UnicodeDecodeError
                    yield number, BadRow(file, number, f"not JSON: {error}")
                else:
                    yield number, _whole_characters(row, line.data, file, number)
        except StreamError as stopped:
            reason = f"{stopped.detail}; rows from {number + 1} on are lost"
            yield number + 1, BadRow(file, number + 1, reason)


def _whole_characters(row: Any, written: bytes, file: str, number: int) -> Any:
    """The row, or a BadRow where a text of it has half of a character."""
    try:
        if _SURROGATE.search(written):  # half of a character, or both halves
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return BadRow(file, number, "a text contains a lone surrogate, half of a character")
    return row


def _table(path: Path, file: str) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        for number, row in enumerate(table_rows(path), 1):
            yield number, _without_nulls(row)
    except FileNotFoundError:
        raise DataError(f"cannot read {path}: no such file") from None
    except TABLE_ERRORS as error:
        detail = str(error).partition("\n")[0][:500]
        reason = f"{detail}; rows from {number + 1} on are lost"
        yield number + 1, BadRow(file, number + 1, reason)


def _without_nulls(value: Any) -> Any:
    """`value` without null fields of nested objects: a column has every field of any of its rows."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
