"""Documents from JSON lines: {"text": …} with url, source, licence, language and date if known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stamm.base.json_text import parse_json
from stamm.corpus.limits import FieldNames, ReadLimits
from stamm.corpus.readers.rows import FieldUse, record_of
from stamm.corpus.records import InputRecord, Place, UnreadableRecord, content_id
from stamm.corpus.streams import BoundedStream, Line, StreamError, bounded_lines


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
            for line in bounded_lines(stream, limits.line_bytes):
                number = line.number
                if line.data.strip():
                    place = Place(file=name, position=line.number)
                    yield _record(place, line, limits, names, use)
        except StreamError as stopped:
            yield UnreadableRecord(
                place=Place(file=name, position=number + 1),
                content_id=content_id(name, stopped.detail.encode()),
                reason=stopped.reason,
                detail=f"{stopped.detail}; lines from {number + 1} on are lost",
                size=0,
            )
    use.check(name, names)


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

    if line.size > limits.line_bytes:
        return unread("line_too_long", f"{line.size} bytes, limit {limits.line_bytes}")
    try:
        # A byte order mark may occur at the start of a file, and of concatenated files.
        row: Any = parse_json(line.data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return unread("invalid_utf8", f"byte {error.start} of the line: {error.reason}")
    except (ValueError, RecursionError) as error:
        return unread("invalid_json", str(error) if isinstance(error, ValueError) else "too deep")
    return record_of(place, row, names, line.data, use)
