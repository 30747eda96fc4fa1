"""Read files of alignment data: JSON lines or an array, Parquet and Arrow, row by row.

A row that cannot be read is a `BadRow` with its file, line and reason; the rows after it are read.

Checked  tests/unit/align/test_examples.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stamm.align.data.config import RowFields
from stamm.align.data.examples import (
    Example,
    Kind,
    RowOrigin,
    read_example,
    renamed,
    unread_columns,
)
from stamm.align.records import BadRow
from stamm.base.errors import DataError
from stamm.base.files import has_ending
from stamm.base.json_text import parse_json
from stamm.chat.conversation import EmptyAnswerError
from stamm.corpus.inputs import JSONL, TABLE
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.jsonl import json_lines
from stamm.corpus.readers.rows import FieldUse
from stamm.corpus.readers.table import TABLE_ERRORS, table_rows
from stamm.corpus.streams import BoundedStream, StreamError

BAD_ROW, EMPTY_ANSWER, TRUNCATED = "bad_row", "empty_answer", "truncated_file"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_examples(path: Path) -> Iterator[Example | BadRow]:
    """The examples of a file, in order, and a BadRow for each invalid row."""
    return (example for _, example in read_rows(path))


def read_rows(
    path: Path,
    limits: ReadLimits | None = None,
    name: str = "",
    *,
    kind: Kind = "auto",
    fields: RowFields | None = None,
    empty_answers: bool = False,
    use: FieldUse | None = None,
) -> Iterator[tuple[Mapping[str, Any], Example | BadRow]]:
    """The rows of a file with their examples; a row that cannot be read has a BadRow instead.

    name                  of the file in origins; empty: the last part of its path
    kind, empty_answers   as `examples.read_example`
    fields                names of fields that are configured
    use                   counts the fields that are configured, and the columns that they replace

    Edge     a row that is not an object is {}
    Raises   DataError when the file is missing or its format is not known.
    """
    file = name or path.name
    named = fields.named() if fields is not None else {}
    use = FieldUse(RowFields.names()) if use is None else use
    for number, row in _read(path, ReadLimits() if limits is None else limits, file):
        if isinstance(row, BadRow):
            yield {}, row
            continue
        try:
            if named and isinstance(row, Mapping):
                use.unknown.add(unread_columns(row, named))
                row = renamed(row, named)
                for field in row.keys() & named.keys():
                    use.read[field][named[field]] += 1
            use.rows += isinstance(row, Mapping) and bool(row)
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
    if has_ending(path.name, TABLE):
        return _table(path, file)
    if has_ending(path.name, JSONL):
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
                    cut = _truncated(file, number, str(error)) if line.is_cut else None
                    yield number, cut or BadRow(file, number, f"not JSON: {error}")
                else:
                    yield number, _whole_characters(row, line.data, file, number)
        except StreamError as stopped:
            number += 1
            reason = f"{stopped.detail}; rows from {number} on are lost"
            cut = _truncated(file, number, stopped.detail) if stopped.is_cut else None
            yield number, cut or BadRow(file, number, reason)


def _truncated(file: str, number: int, detail: str) -> BadRow:
    reason = f"the file ends in the middle: rows from {number} on are lost ({detail})"
    return BadRow(file, number, reason, TRUNCATED)


def truncated_files(rows: Iterable[BadRow]) -> dict[str, int]:
    """The row at which each file ends that ends in the middle, by file, for `truncation_sentence`."""
    return {row.file: row.row for row in rows if row.cause == TRUNCATED}


def _whole_characters(row: Any, written: bytes, file: str, number: int) -> Any:
    """The row, or a BadRow where one of its texts contains a lone surrogate."""
    try:
        if _SURROGATE.search(written):  # a lone surrogate, or both of a pair
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
        return {name: _without_nulls(field) for name, field in value.items() if field is not None}
    return [_without_nulls(element) for element in value] if isinstance(value, list) else value
