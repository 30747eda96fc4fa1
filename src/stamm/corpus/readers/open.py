"""Open an input by the ending of its name and yield its records."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

from stamm.base.errors import DataError
from stamm.corpus.charset import UndecodableError, decode
from stamm.corpus.documents import InputRecord, Place, UnreadableRecord, content_id
from stamm.corpus.inputs import check_kind, is_archive, is_repository, is_table, is_text
from stamm.corpus.limits import FieldNames, ReadLimits
from stamm.corpus.readers.jsonl import read_jsonl
from stamm.corpus.readers.repository import read_repository
from stamm.corpus.readers.rows import FieldUse
from stamm.corpus.readers.table import read_table_rows
from stamm.corpus.readers.warc import read_archive
from stamm.corpus.streams import BoundedStream, StreamError

PART_BYTES = 16 * 1024
"""A file of over twice as many is cut into parts of at least this size, at blank lines."""
_ENDS = (b"\n\n", b"\r\n\r\n", b"\n", b" ")
_BINARY_WITHIN = 8000


def read_text(
    name: str, path: Path, limits: ReadLimits
) -> Iterator[InputRecord | UnreadableRecord]:
    """The text of a file, or its parts, and a reason for each part that is not text.

    A part ends at the first blank line after `PART_BYTES`; without one within as many bytes again, at
    a line end or blank. So a single long text gives held-out documents, too. Positions count parts.
    Line ends of Windows and of old Macs become newlines.

    Edge     UTF-16 needs a byte order mark; other encodings are detected for each part
    """
    number = 0

    def unread(reason: str, detail: str, data: bytes) -> UnreadableRecord:
        return UnreadableRecord(
            place=Place(file=name, position=number),
            content_id=content_id(name, data or detail.encode()),
            reason=reason,
            detail=detail,
            size=len(data),
        )

    with BoundedStream(path, limits.expansion) as stream:
        try:
            for number, part in enumerate(_parts(_utf8_if_wide(stream)), 1):
                if b"\0" in part[:_BINARY_WITHIN]:
                    yield unread("binary", "a zero byte", part)
                    continue
                try:
                    text = decode(part, None).replace("\r\n", "\n").replace("\r", "\n")
                    content = text.strip().encode()
                except UndecodableError as error:
                    yield unread("undecodable", str(error), part)
                    continue
                if content:
                    yield InputRecord(
                        place=Place(file=name, position=number),
                        content_id=content_id("", content),
                        content=content,
                        source=name,
                    )
        except StreamError as stopped:
            number += 1
            yield unread(stopped.reason, f"{stopped.detail}; the rest of the file is lost", b"")


def _utf8_if_wide(stream: BoundedStream) -> Iterator[bytes]:
    """The bytes of a stream; UTF-16 with a byte order mark as UTF-8."""
    first = stream.read()
    if not first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield first.removeprefix(codecs.BOM_UTF8)
        while piece := stream.read():
            yield piece
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    yield decoder.decode(first).encode("utf-8", "replace")
    while piece := stream.read():
        yield decoder.decode(piece).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode()


def _parts(pieces: Iterator[bytes]) -> Iterator[bytes]:
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) > 2 * PART_BYTES:
            cut = _cut(held)
            yield bytes(held[:cut])
            del held[:cut]
    yield bytes(held)


def _cut(held: bytearray) -> int:
    """End of the first part of over `2 * PART_BYTES` bytes, never inside a UTF-8 character."""
    for end in _ENDS:
        start = held.find(end, PART_BYTES, 2 * PART_BYTES)
        if start >= 0:
            return start + len(end)
    cut = 2 * PART_BYTES
    while cut > PART_BYTES and held[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut


# A reason that stops a file: when nothing was read before it, the file as a whole is unreadable.
_STOPPING = ("broken_compression", "broken_archive", "broken_table")


def read_input(
    name: str,
    path: Path,
    limits: ReadLimits,
    names: FieldNames | None = None,
    url: str = "",
    use: FieldUse | None = None,
) -> Iterator[InputRecord | UnreadableRecord]:
    """The records of one input, in file order; defects come as UnreadableRecord, never silently.

    names    names of its fields; None: detected
    url      of a repository, "" if unknown
    use      counts the fields that are read, and those that are not
    Raises   DataError when nothing can be read: the file is not in the compression or format of its
             ending, or no row has a configured field.
    """
    check_kind(name)
    use = use or FieldUse()
    if is_archive(name):
        records = read_archive(name, path, limits, use)
    elif is_repository(name):
        records = read_repository(name, path, limits, url)
    elif is_text(name):
        records = read_text(name, path, limits)
    else:
        read = read_table_rows if is_table(name) else read_jsonl
        records = read(name, path, limits, names or FieldNames(), use)
    for count, record in enumerate(records):
        if count == 0 and isinstance(record, UnreadableRecord) and record.reason in _STOPPING:
            raise DataError(
                f"{name} cannot be read: {record.detail}",
                where=f"record {record.place.position}",
                fix="Check that the file has the format of its ending, or fetch it again",
            )
        yield record
