"""Read files of alignment data: JSONL (.jsonl, .jsonl.gz, .jsonl.zst), JSON and Parquet, row by row.

A .json file is one array of rows, or JSONL.

A row that cannot be read is a `BadRow` with its file, line and reason; the rows after it are read.

Checked  tests/unit/align/test_examples.py
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stamm.align.data.examples import (
    Example,
    Kind,
    RowOrigin,
    read_example,
    renamed,
    unread_columns,
)
from stamm.base.errors import DataError
from stamm.base.json_text import once_each, parse_json
from stamm.base.known_keys import UnknownKeys
from stamm.base.receipts import check_file
from stamm.chat.conversation import EmptyAnswerError
from stamm.corpus.limits import ReadLimits
from stamm.corpus.streams import BoundedStream, StreamError, bounded_lines

BAD_ROW, EMPTY_ANSWER = "bad_row", "empty_answer"
_ROWS = 64
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_READ_CHARACTERS = 1 << 16
_NOT_BLANK = re.compile(r"\S")


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
    if path.name.endswith(".parquet"):
        return _parquet(path, file)
    if path.name.endswith(".json") and _begins_array(path, bounds):
        return _array(path, file, bounds)
    if path.name.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst", ".json")):
        return _jsonl(path, file, bounds)
    raise DataError(
        f"{path} has an unknown format",
        fix="Use .jsonl, .jsonl.gz, .jsonl.zst, .json or .parquet",
    )


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


def _begins_array(path: Path, limits: ReadLimits) -> bool:
    with BoundedStream(path, limits.expansion) as stream:
        return stream.read().removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def _array(path: Path, file: str, limits: ReadLimits) -> Iterator[tuple[int, Any]]:
    """The elements of a JSON array."""
    number = 0
    with BoundedStream(path, limits.expansion) as stream:
        try:
            array = _ArrayText(stream, limits.line_bytes)
            for row, written in array.elements():
                number += 1
                if array.wrong:
                    yield number, BadRow(file, number, f"not JSON: {array.wrong}")
                else:
                    yield number, _whole_characters(row, written.encode(), file, number)
        except (StreamError, RecursionError, ValueError) as error:  # also UnicodeDecodeError
            detail = error.detail if isinstance(error, StreamError) else f"not JSON: {error}"
            reason = f"{detail}; rows from {number + 1} on are lost"
            yield number + 1, BadRow(file, number + 1, reason)


class _ArrayText:
    """The text of a JSON array, read forward: one element is in memory at a time.

    longest   characters of an element
    wrong     what is wrong with the last element, which could be read all the same; "": nothing
    """

    def __init__(self, stream: BoundedStream, longest: int) -> None:
        self._stream, self._longest = stream, longest
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._position, self._ended = "", 0, False
        self._decoder, self.wrong = json.JSONDecoder(object_pairs_hook=self._object), ""

    def elements(self) -> Iterator[tuple[Any, str]]:
        """Each element and its text; raises ValueError where the array is not JSON."""
        self._take("[")
        if self._next() == "]":
            return
        while True:
            yield self._element()
            if self._next() == "]":
                return
            self._take(",")

    def _next(self) -> str:
        """The next character other than white space; "" at the end."""
        while True:
            character = _NOT_BLANK.search(self._text, self._position)
            if character:
                self._position = character.start()
                return character.group()
            self._position = len(self._text)
            if self._ended:
                return ""
            self._read_on()

    def _take(self, character: str) -> None:
        if (found := self._next()) != character:
            raise ValueError(f"{found!r} where {character!r} is needed")
        self._position += 1

    def _element(self) -> tuple[Any, str]:
        self._next()
        while True:
            start, self.wrong = self._position, ""
            try:
                element, end = self._decoder.raw_decode(self._text, start)
            except ValueError:
                if self._ended or len(self._text) - start > self._longest:
                    raise
            else:
                if end < len(self._text) or self._ended:  # a number may continue
                    self._position = end
                    return element, self._text[start:end]
            self._read_on()

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        try:
            return once_each(pairs)
        except ValueError as error:
            self.wrong = str(error)
            return dict(pairs)

    def _read_on(self) -> None:
        """Drop what is read, and read as much again as is left, so that few attempts are in vain."""
        pieces = [self._text[self._position :]]
        wanted = max(_READ_CHARACTERS, 2 * len(pieces[0]))
        while not self._ended and sum(map(len, pieces)) < wanted:
            piece = self._stream.read()
            self._ended = not piece
            pieces.append(self._decode.decode(piece, final=self._ended))
        self._text, self._position = "".join(pieces), 0


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
