"""Documents from JSON lines: {"text": …} with url, source, licence, language and date if known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stamm.corpus.limits import FieldNames, ReadLimits
from stamm.corpus.records import (
    LONGEST_FIELD,
    InputRecord,
    Place,
    UnreadableRecord,
    clean_field,
    content_id,
    whole_text,
)
from stamm.corpus.streams import BoundedStream, Line, StreamError, bounded_lines


def read_jsonl(
    name: str, path: Path, limits: ReadLimits, names: FieldNames
) -> Iterator[InputRecord | UnreadableRecord]:
    """The documents of a file, and a reason for each invalid line. Blank lines are skipped.

    name   the file as in the configuration
    """
    number = 0
    with BoundedStream(path, limits.expansion) as stream:
        try:
            for line in bounded_lines(stream, limits.line_bytes):
                number = line.number
                if line.data.strip():
                    yield _record(Place(file=name, position=line.number), line, limits, names)
        except StreamError as stopped:
            yield UnreadableRecord(
                place=Place(file=name, position=number + 1),
                content_id=content_id(name, stopped.detail.encode()),
                reason=stopped.reason,
                detail=f"{stopped.detail}; lines from {number + 1} on are lost",
                size=0,
            )


def record_of(
    place: Place, row: Any, names: FieldNames, line: bytes = b""
) -> InputRecord | UnreadableRecord:
    """The document of an object with named values, or the reason why there is none.

    line   from which it was read; identifies a row that is nested too deep to be written again
    """

    def unread(reason: str, detail: str) -> UnreadableRecord:
        try:
            written = json.dumps(row, ensure_ascii=False, sort_keys=True, default=str)
            data = written.encode("utf-8", "surrogatepass")
        except RecursionError:
            data = line
        return UnreadableRecord(
            place=place,
            content_id=content_id("", data),
            reason=reason,
            detail=detail,
            size=len(data),
        )

    if not isinstance(row, dict) or not isinstance(row.get(names.text), str):
        return unread("no_text", f"not an object with a string under {names.text!r}")
    if not isinstance(row.get(names.url), str | None):
        # Without a URL it would be allowed without a consent check.
        return unread("bad_url", f"{names.url} is a {type(row[names.url]).__name__}, not a string")
    values = {
        key: _text(row, getattr(names, key))
        for key in ("url", "source", "licence", "language", "date")
    }
    if not values["licence"].strip():
        values["licence"] = _text(row, "license")
    for key, value in values.items():
        if len(value) > LONGEST_FIELD:
            return unread("field_too_long", f"{key} has over {LONGEST_FIELD} characters")
    content, url = whole_text(row[names.text]).encode(), clean_field(values["url"])
    return InputRecord(
        place=place,
        content_id=content_id(url, content),
        content=content,
        url=url,
        source=clean_field(values["source"]),
        licence=clean_field(values["licence"]),
        language=clean_field(values["language"]),
        date=clean_field(values["date"]),
    )


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _record(
    place: Place, line: Line, limits: ReadLimits, names: FieldNames
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
        row: Any = json.loads(line.data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return unread("invalid_utf8", f"byte {error.start} of the line: {error.reason}")
    except (ValueError, RecursionError) as error:
        return unread("invalid_json", str(error) if isinstance(error, ValueError) else "too deep")
    return record_of(place, row, names, line.data)
