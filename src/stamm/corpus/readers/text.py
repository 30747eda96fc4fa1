"""Documents from plain text: a file, or its parts where it is long."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

from stamm.corpus.charset import UndecodableError, decode
from stamm.corpus.limits import ReadLimits
from stamm.corpus.records import InputRecord, Place, UnreadableRecord, content_id
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
    """Where the first part of over `2 * PART_BYTES` bytes ends: never inside a character of UTF-8."""
    for end in _ENDS:
        found = held.find(end, PART_BYTES, 2 * PART_BYTES)
        if found >= 0:
            return found + len(end)
    cut = 2 * PART_BYTES
    while cut > PART_BYTES and held[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut
