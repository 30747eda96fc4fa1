"""Read files of alignment data: JSONL (.jsonl, .jsonl.gz, .jsonl.zst) and Parquet, row by row.

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

import pyarrow as pa
import pyarrow.parquet as pq

from stamm.align.data.examples import Example, RowOrigin, read_example
from stamm.base.errors import DataError
from stamm.base.receipts import check_file
from stamm.chat.conversation import EmptyAnswerError
from stamm.corpus.limits import ReadLimits
from stamm.corpus.streams import BoundedStream, StreamError, bounded_lines

BAD_ROW, EMPTY_ANSWER = "bad_row", "empty_answer"
_ROWS = 64
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
    empty_answers: bool = False,
) -> Iterator[tuple[Mapping[str, Any], Example | BadRow]]:
    """The rows of a file with their examples; a row that cannot be read has a BadRow instead.

    name            of the file in origins; empty: the last part of its path
    empty_answers   as `examples.read_example`

    Edge     a row that is not an object is {}
    Raises   DataError when the file is missing or its format is not known.
    """
    bounds = ReadLimits() if limits is None else limits
    file = name or path.name
    if path.name.endswith(".parquet"):
        rows = _parquet(path, file)
    elif path.name.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst", ".json")):
        rows = _jsonl(path, file, bounds)
    else:
        raise DataError(
            f"{path} has an unknown format", fix="Use .jsonl, .jsonl.gz, .jsonl.zst or .parquet"
        )
    for number, row in rows:
        if isinstance(row, BadRow):
            yield {}, row
            continue
        try:
            origin = RowOrigin(file=file, row=number)
            example = read_example(row, origin, empty_answers=empty_answers)
        except DataError as error:
            cause = EMPTY_ANSWER if isinstance(error, EmptyAnswerError) else BAD_ROW
            shown = row if isinstance(row, Mapping) else {}
            yield shown, BadRow(file, number, error.line().rstrip("."), cause)
        else:
            yield row, example


def _jsonl(path: Path, file: str, limits: ReadLimits) -> Iterator[tuple[int, Any]]:
    number = 0
    with BoundedStream(path, limits.expansion) as stream:
        try:
            for line in bounded_lines(stream, limits.line_bytes):
                number = line.number
                if not line.data.strip():
                    continue
                if line.size > limits.line_bytes:
                    reason = f"{line.size} bytes, limit {limits.line_bytes}"
                    yield number, BadRow(file, number, reason)
                    continue
                try:
                    row = json.loads(line.data.decode("utf-8-sig"))
                    if _SURROGATE.search(line.data):  # half of a character, or both halves
                        json.dumps(row, ensure_ascii=False).encode()
                    yield number, row
                except UnicodeEncodeError:
                    reason = "a text contains a lone surrogate, half of a character"
                    yield number, BadRow(file, number, reason)
                except RecursionError:
                    yield number, BadRow(file, number, "JSON nested too deeply")
                except ValueError as error:  # also UnicodeDecodeError
                    yield number, BadRow(file, number, f"not JSON: {error}")
        except StreamError as stopped:
            reason = f"{stopped.detail}; rows from {number + 1} on are lost"
            yield number + 1, BadRow(file, number + 1, reason)


def _parquet(path: Path, file: str) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        check_file(path)
        with pq.ParquetFile(path) as opened:
            for batch in opened.iter_batches(_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, _without_nulls(row)
    except FileNotFoundError:
        raise DataError(f"cannot read {path}: no such file") from None
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        detail = str(error).partition("\n")[0][:500]
        reason = f"{detail}; rows from {number + 1} on are lost"
        yield number + 1, BadRow(file, number + 1, reason)


def _without_nulls(value: Any) -> Any:
    """`value` without null fields of nested objects: a column has every field of any of its rows."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
