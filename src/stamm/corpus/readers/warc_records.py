"""Records of a web archive: head and content, where lengths may be wrong and bytes damaged.

A wrong Content-Length, a head that is too long, or bytes between records cost one record: reading
resumes at the next line that begins a record.

Source   ISO 28500:2017 (WARC 1.1), 4 and 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stamm.base.files import read_json
from stamm.base.known_keys import KnownKeys, RefusedKey
from stamm.corpus.streams import FREE_BYTES, PIECE_BYTES, BoundedStream, StreamError

LONGEST_HEAD = 2**20
_LONGEST_LENGTH = 18  # digits
_START = b"WARC/"
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_NEXT_HEAD = re.compile(rb"(?:\A|\n)(?=WARC/[0-9]\.[0-9]{1,2}\r?\n[A-Za-z-]{1,64}:)")
_OVERLAP = 96  # bytes: longest match of _NEXT_HEAD
_MOST_REREAD = 8  # times the bytes read

WARC_KEYS = KnownKeys(
    reader="WARC records",
    read=frozenset(["warc-type", "warc-target-uri", "warc-date", "content-type", "content-length"]),
    harmless=frozenset(read_json(Path(__file__).with_name("known_keys.json"))["warc_harmless"]),
    refused={
        "warc-truncated": RefusedKey(meaning="marks a cut content"),
        "warc-segment-number": RefusedKey(meaning="continues the content in another record"),
    },
)


@dataclass(frozen=True, kw_only=True)
class WarcRecord:
    """A record, or bytes where one was expected.

    kind      "response", "warcinfo" …; "" for bytes outside any record
    headers   by name in lower case
    content   at most `most` + 1 bytes
    size      Content-Length
    reason    ledger reason of a record that cannot be used, "" otherwise
    detail    description of the defect
    """

    kind: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""
    size: int = 0
    reason: str = ""
    detail: str = ""


def warc_records(stream: BoundedStream, most: int) -> Iterator[WarcRecord]:
    """The records of an archive, in order.

    most     bytes of a content that are held; of a longer one the rest is skipped
    Raises   StreamError where the stream ends inside a head, cannot be read, begins with no record,
             or has so many wrong lengths that reading it takes too long.
    """
    reader = _Reader(stream)
    first = True
    while reader.has_more():
        if reader.starts_record():
            yield _record(reader, most)
        elif first:
            raise StreamError("broken_archive", f"it does not begin with {_START.decode()}")
        else:
            skipped = reader.skip_to_record()
            yield WarcRecord(
                size=skipped,
                reason="broken_archive",
                detail=f"{skipped} bytes where a record was expected",
            )
        first = False


class _Reader:
    """A stream with read-ahead. An error is raised only after the bytes before it are consumed."""

    def __init__(self, stream: BoundedStream) -> None:
        self._stream = stream
        self._ahead = b""
        self._ended = False
        self._stopped: StreamError | None = None
        self._reread = 0

    def peek(self, size: int) -> bytes:
        """The next `size` bytes without consuming them; fewer at the end."""
        if len(self._ahead) < size and not self._ended:
            pieces = [self._ahead]
            length = len(self._ahead)
            while length < size:
                try:
                    piece = self._stream.read()
                except StreamError as error:
                    self._stopped, piece = error, b""
                if not piece:
                    self._ended = True
                    break
                pieces.append(piece)
                length += len(piece)
            self._ahead = b"".join(pieces)
        return self._ahead[:size]

    def consume(self, size: int, most: int) -> tuple[bytes, int]:
        """Consume `size` bytes: the first `most` of them, and how many there were."""
        content = self.peek(min(size, most))
        self._ahead = self._ahead[len(content) :]
        num_consumed = len(content)
        while num_consumed < size and (piece := self.peek(min(PIECE_BYTES, size - num_consumed))):
            self._ahead = self._ahead[len(piece) :]
            num_consumed += len(piece)
        return content, num_consumed

    def put_back(self, content: bytes) -> None:
        """Read `content` again.

        Raises   StreamError where wrong lengths would make this cost more than the file.
        """
        self._reread += len(content)
        if self._reread > FREE_BYTES + _MOST_REREAD * self._stream.tell():
            raise StreamError("broken_archive", "too many records with a wrong Content-Length")
        self._ahead = content + self._ahead

    def has_more(self) -> bool:
        """Skip blank lines; whether anything follows."""
        while ahead := self.peek(PIECE_BYTES):
            self._ahead = self._ahead[len(ahead) - len(ahead.lstrip(b"\r\n")) :]
            if ahead.strip(b"\r\n"):
                return True
        self.check_end()
        return False

    def check_end(self) -> None:
        """Raise the StreamError that ended the stream, if any."""
        if self._stopped is not None:
            raise self._stopped

    def starts_record(self) -> bool:
        return self.peek(len(_START)) == _START

    def head(self) -> bytes:
        """Consume a head up to its blank line; empty for one that is too long.

        Raises   StreamError where the stream ends inside it.
        """
        size = PIECE_BYTES
        while True:
            ahead = self.peek(size)
            end = _HEAD_END.search(ahead)
            if end is not None:
                self._ahead = self._ahead[end.end() :]
                return ahead[: end.start()]
            if len(ahead) < size:
                self.check_end()
                raise StreamError("truncated_record", "the file ends inside the head of a record")
            if size >= LONGEST_HEAD:
                return b""
            size *= 4

    def skip_to_record(self) -> int:
        """Skip to the next line that begins a record; returns the bytes skipped."""
        skipped = 0
        while ahead := self.peek(2**16):
            match = _NEXT_HEAD.search(ahead)
            step = match.end() if match else max(1, len(ahead) - _OVERLAP)
            self.consume(step, 0)
            skipped += step
            if match:
                break
        return skipped


def _record(reader: _Reader, most: int) -> WarcRecord:
    raw = reader.head()
    if not raw:
        reader.consume(len(_START), 0)
        skipped = len(_START) + reader.skip_to_record()
        return WarcRecord(
            size=skipped, reason="record_too_long", detail=f"a head of over {LONGEST_HEAD} bytes"
        )
    headers, defect = _headers(raw)
    kind = headers.get("warc-type", "").lower()
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) <= _LONGEST_LENGTH):
        return WarcRecord(
            kind=kind,
            headers=headers,
            size=reader.skip_to_record(),
            reason="truncated_record",
            detail=f"Content-Length = {length[:40]!r} is not a number of bytes",
        )
    size = int(length)
    content, num_consumed = reader.consume(size, most + 1)
    reason = "bad_value" if defect else ""
    length_fault = _wrong_length(reader, content, size, num_consumed)
    if length_fault:
        reason, defect = "truncated_record", length_fault
    for name, refusal in WARC_KEYS.refused.items():
        if headers.get(name):
            reason = "truncated_record"
            defect = f"{name} = {headers[name]:.80} {refusal.meaning}"
    return WarcRecord(
        kind=kind, headers=headers, content=content, size=size, reason=reason, detail=defect
    )


def _wrong_length(reader: _Reader, content: bytes, size: int, taken: int) -> str:
    """Why a Content-Length cannot be right, "" where a record or the end of the file follows."""
    after = reader.peek(PIECE_BYTES)
    rest = after.lstrip(b"\r\n")
    if taken == size and (not rest or rest.startswith(_START) or after.startswith(b"\r\n\r\n")):
        return ""
    inside = _NEXT_HEAD.search(content, 1)
    if inside is not None:
        reader.put_back(content[inside.end() :])
        return f"Content-Length: {size} reaches into the next record"
    if taken < size:
        reader.check_end()
        return f"{taken} of {size} bytes"
    skipped = reader.skip_to_record()
    return f"Content-Length: {size}, but {skipped} more bytes follow"


def _headers(raw: bytes) -> tuple[dict[str, str], str]:
    """The named fields of a head, and which of them has two values, if any."""
    headers: dict[str, str] = {}
    defect = ""
    for name, value in header_lines(raw):
        if name in WARC_KEYS.read and headers.get(name, value) != value:
            defect = f"two values for {name}"
        headers.setdefault(name, value)
    return headers, defect


def header_lines(raw: bytes) -> Iterator[tuple[str, str]]:
    """Names in lower case and values of a WARC or HTTP head after its first line; lines may be
    folded, and end with LF alone."""
    lines: list[bytes] = []
    for line in raw.split(b"\n")[1:]:
        if line[:1] in (b" ", b"\t") and lines:
            lines[-1] += b" " + line.strip()
        else:
            lines.append(line)
    for line in lines:
        name, colon, value = line.partition(b":")
        if colon:
            yield _text(name.strip()).lower(), _text(value.strip())


def _text(octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return octets.decode("latin-1")
