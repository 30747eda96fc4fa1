"""Documents from JSON lines or an array: {"text": …} with url, source, licence, language and date."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stamm.base.json_text import parse_json
from stamm.corpus.documents import InputRecord, Place, UnreadableRecord, content_id, unread_rest
from stamm.corpus.limits import FieldNames, ReadLimits
from stamm.corpus.readers.rows import FieldUse, record_of
from stamm.corpus.streams import BoundedStream, Line, StreamError, bounded_items, bounded_lines


def read_jsonl(
    name: str, path: Path, limits: ReadLimits, names: FieldNames, use: FieldUse
) -> Iterator[InputRecord | UnreadableRecord]:
    """The documents of a file, and a reason for each invalid line. Blank lines are skipped.

    name     the file as in the configuration
    use      counts the fields
    Raises   DataError at the end of the file for a configured field that no row has.
    """
    number = 0
    with BoundedStream(path, limits.expansion) as stream:
        try:
            for line in json_lines(path, stream, limits):
                number = line.number
                if line.data.strip():
                    location = Place(file=name, position=line.number)
                    yield _record(location, line, limits, names, use)
        except StreamError as stopped:
            yield unread_rest(name, number + 1, stopped.reason, stopped.detail, "lines")
    use.check(name, names)


def json_lines(path: Path, stream: BoundedStream, limits: ReadLimits) -> Iterator[Line]:
    """The lines of a file; a .json file may be an array, whose elements count as lines, or an object."""
    if ".jsonl" not in path.name.lower():
        with BoundedStream(path, limits.expansion) as beginning:
            first = beginning.read().removeprefix(codecs.BOM_UTF8).lstrip()
        if first.startswith(b"["):
            return bounded_items(stream, limits.line_bytes)
        if first.partition(b"\n")[0].strip() == b"{":  # an object over several lines
            data, size = bytearray(), 0
            while piece := stream.read():
                data += piece[: max(0, limits.line_bytes - len(data))]
                size += len(piece)
            return iter([Line(1, bytes(data), size, ended=False)])
    return bounded_lines(stream, limits.line_bytes)


def _record(
    place: Place, line: Line, limits: ReadLimits, names: FieldNames, use: FieldUse
) -> InputRecord | UnreadableRecord:
    def unread(reason: str, detail: str) -> UnreadableRecord:
        return UnreadableRecord(
            place=place,
            content_id=content_id("", line.data),
            reason=reason,
            detail=detail,
            size=line.size,
        )

    row, reason, detail = _parsed(line, limits)
    return unread(reason, detail) if reason else record_of(place, row, names, line.data, use)


def _parsed(line: Line, limits: ReadLimits) -> tuple[Any, str, str]:
    """The value of a line; or the reason why there is none, and its detail."""
    if line.size > limits.line_bytes:
        return None, "line_too_long", f"{line.size} bytes, limit {limits.line_bytes}"
    try:
        # A byte order mark may occur at the start of a file, and of concatenated files.
        return parse_json(line.data.decode("utf-8-sig")), "", ""
    except ValueError as error:
        if line.is_cut:
            return None, "invalid_json", "the file ends in the middle of this line"
        if isinstance(error, UnicodeDecodeError):
            return None, "invalid_utf8", f"byte {error.start} of the line: {error.reason}"
        return None, "invalid_json", str(error)
    except RecursionError:
        return None, "invalid_json", "too deep"


def first_objects(path: Path, limits: ReadLimits, count: int) -> tuple[list[Any], list[str]]:
    """The values of the first `count` rows of a file, and the reasons against lines between them."""
    rows: list[Any] = []
    unread: list[str] = []
    with BoundedStream(path, limits.expansion) as stream:
        try:
            for line in json_lines(path, stream, limits):
                if len(rows) == count:
                    break
                if line.data.strip():
                    row, reason, detail = _parsed(line, limits)
                    if reason:
                        unread.append(f"line {line.number}: {reason}: {detail}")
                    else:
                        rows.append(row)
        except StreamError as stopped:
            unread.append(f"{stopped.reason}: {stopped.detail}")
    return rows, unread
