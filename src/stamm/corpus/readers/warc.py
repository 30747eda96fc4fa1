"""Documents from web archives (WARC): HTML and plain text responses, with their HTTP headers.

An archive may also contain the robots.txt files that its crawler read. They apply to the pages of
that archive, so they are read first.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from stamm.base.receipts import check_file
from stamm.corpus.consent.robots import RobotsAnswer, is_robots_path
from stamm.corpus.consent.robots_parser import PARSED_BYTES
from stamm.corpus.consent.snapshot_entry import decode_body
from stamm.corpus.extract import decode
from stamm.corpus.limits import ReadLimits
from stamm.corpus.records import (
    LONGEST_FIELD,
    InputRecord,
    Place,
    Signals,
    UnreadableRecord,
    clean_field,
    content_id,
)
from stamm.corpus.streams import BoundedStream, StreamError

# Records of pages. Resource and conversion records have no HTTP headers, so no opt-out signals.
_PAGES = (WarcRecordType.response, WarcRecordType.resource, WarcRecordType.conversion)
_LONGEST_HEAD = 2**20
_HTML = ("text/html", "application/xhtml+xml")
_PLAIN = ("text/plain",)
# 15 is the window of zlib, 32 lets it recognise gzip and zlib by their heads.
_ANY_ZLIB = 15 + 32
_GZIP_MAGIC = b"\x1f\x8b"
_PIECE_BYTES = 4096
_CHUNK_HEAD = re.compile(rb"([0-9A-Fa-f]{1,8})[^\r\n]{0,256}\r?\n")


class BodyError(Exception):
    """A response body that cannot be used: a ledger reason and its detail."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail}")


def archived_robots(path: Path, limits: ReadLimits) -> Iterator[RobotsAnswer]:
    """The robots.txt answers in an archive, in file order, as far as the parser reads them.

    Edge   records that cannot be read are skipped here; `read_archive` reports them.
    """
    with BoundedStream(path, limits.expansion) as stream:
        try:
            for record in _records(stream):
                if record.record_type not in _PAGES or not _is_robots(record):
                    continue
                try:
                    _read_http(record)
                    status = record.http_headers.status_code or 0
                    text = decode_body(_body(record, limits))
                except BodyError as bad:
                    # A robots.txt that cannot be read must not count as missing.
                    status, text = 0, f"# {bad.reason}: {bad.detail}"
                yield RobotsAnswer(
                    url=_url(record),
                    status=status,
                    read=_date(record),
                    text=text[: PARSED_BYTES + 1],
                )
        except (StreamError, OSError):
            pass  # read_archive reports the same defect in the ledger


def read_archive(
    name: str, path: Path, limits: ReadLimits
) -> Iterator[InputRecord | UnreadableRecord]:
    """The pages of an archive, and a reason for each unusable record of a page.

    Requests, metadata, revisits and robots.txt files are skipped.
    """
    position, start, length = 1, 0, ""
    with BoundedStream(path, limits.expansion) as stream:
        try:
            for record in _records(stream):
                start, length = record.stream_pos, record.headers.get("Content-Length") or ""
                if not length.isdecimal():
                    raise StreamError("truncated_record", "a record head without Content-Length")
                if record.record_type in _PAGES and not _is_robots(record):
                    yield _page(Place(file=name, position=position), record, limits)
                position += 1
            if path.suffix == ".warc" and _leaves_rest(path, start, length):
                raise StreamError("truncated_record", "the file ends inside the head of a record")
        except (StreamError, OSError) as error:
            stopped = error if isinstance(error, StreamError) else _broken(stream, error)
            yield UnreadableRecord(
                place=Place(file=name, position=position),
                content_id=content_id(name, stopped.detail.encode()),
                reason=stopped.reason,
                detail=f"{stopped.detail}; records from {position} on are lost",
                size=0,
            )


def _leaves_rest(path: Path, start: int, length: str) -> bool:
    """Whether bytes follow the last whole record, which begins at `start`.

    fastwarc ends without an error where the head of a record is cut.
    """
    check_file(path)
    with path.open("rb") as opened:
        opened.seek(start)
        if length.isdecimal():
            head = opened.read(_LONGEST_HEAD).find(b"\r\n\r\n")
            if head < 0:
                return False
            opened.seek(start + head + 4 + int(length))
        return bool(opened.read(64).strip())


def _broken(stream: BoundedStream, error: OSError) -> StreamError:
    return StreamError("broken_archive", f"after {stream.tell()} bytes: {error}")


def _is_robots(record: WarcRecord) -> bool:
    return is_robots_path(_url(record))


def _records(stream: BoundedStream) -> Iterator[WarcRecord]:
    # The stream is decompressed already; detection would decompress a body that looks like gzip.
    # HTTP headers are parsed for each record: a defect in them ends one record, not the
    # archive. Of a stream only read and tell are called.
    return iter(ArchiveIterator(stream, parse_http=False, stream_detect=False))  # type: ignore[arg-type]


def _url(record: WarcRecord) -> str:
    raw = record.headers.get("WARC-Target-URI") or ""
    return raw.removeprefix("<").removesuffix(">")


def _date(record: WarcRecord) -> str:
    return clean_field((record.headers.get("WARC-Date") or "")[:10])


def _page(place: Place, record: WarcRecord, limits: ReadLimits) -> InputRecord | UnreadableRecord:
    url = _url(record)
    try:
        if len(url) > LONGEST_FIELD:
            raise BodyError("field_too_long", f"url has over {LONGEST_FIELD} characters")
        if not clean_field(url).strip():
            # Without a URL it would be allowed without a consent check.
            raise BodyError("bad_url", "a record of a page without WARC-Target-URI")
        _read_http(record)
        status = record.http_headers.status_code
        if status != 200:
            raise BodyError("http_status", str(status))
        kind = (record.http_content_type or "").lower()
        if kind not in _HTML + _PLAIN:
            raise BodyError("content_type", clean_field(kind)[:200] or "none given")
        body = _body(record, limits)
    except BodyError as bad:
        return UnreadableRecord(
            place=place,
            content_id=content_id(url, f"{place.file}#{place.position}".encode()),
            reason=bad.reason,
            detail=bad.detail,
            size=record.content_length,
            url=clean_field(url),
        )
    headers = tuple((k.lower(), v) for k, v in record.http_headers.to_tuples())
    is_html = kind in _HTML
    return InputRecord(
        place=place,
        content_id=content_id(url, body),
        content=body if is_html else decode(body, record.http_charset).encode(),
        url=clean_field(url),
        source=place.file,
        date=_date(record),
        is_html=is_html,
        charset=record.http_charset if is_html else None,
        signals=Signals(headers=headers),
    )


def _read_http(record: WarcRecord) -> None:
    if record.is_http:
        try:
            record.parse_http()
        except OSError as error:
            raise BodyError("not_http", f"its HTTP headers cannot be read: {error}") from None
    if not record.is_http_parsed:
        raise BodyError("not_http", "a record of a page without HTTP headers")


def _body(record: WarcRecord, limits: ReadLimits) -> bytes:
    body = record.reader.read(limits.record_bytes + 1)
    if len(body) > limits.record_bytes:
        raise BodyError("record_too_long", f"over {limits.record_bytes} bytes")
    if len(body) < record.content_length:
        raise BodyError("truncated_record", f"{len(body)} of {record.content_length} bytes")
    headers = record.http_headers
    if (headers.get("Transfer-Encoding") or "").lower().split(",")[-1].strip() == "chunked":
        body = _unchunk(body)
    encoding = (headers.get("Content-Encoding") or "identity").lower().strip()
    if encoding == "identity":
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BodyError("content_encoding", clean_field(encoding)[:200])
    return _inflate(body, encoding, limits.record_bytes)


def _inflate(body: bytes, encoding: str, limit: int) -> bytes:
    """The content of all members: concatenated gzip files are one (RFC 1952, 2.2)."""
    plain = bytearray()
    inflate, start = zlib.decompressobj(_ANY_ZLIB), 0
    # In pieces, because zlib copies the bytes after a member: for all members together, the square
    # of their number.
    while start < len(body):
        piece = body[start : start + _PIECE_BYTES]
        start += len(piece)
        while piece:
            if inflate.eof:
                # Other bytes after a member are padding, which readers skip.
                if not (piece + body[start : start + 1]).startswith(_GZIP_MAGIC):
                    return bytes(plain)
                inflate = zlib.decompressobj(_ANY_ZLIB)
            try:
                plain += inflate.decompress(piece, limit + 1 - len(plain))
            except zlib.error as error:
                raise BodyError("content_encoding", f"{encoding}: {error}") from None
            if len(plain) > limit:
                raise BodyError("record_too_long", f"over {limit} bytes when decompressed")
            piece = inflate.unused_data
    if not inflate.eof:
        raise BodyError("truncated_record", f"{encoding} ends early")
    return bytes(plain)


def _unchunk(body: bytes) -> bytes:
    parts: list[bytes] = []
    start = 0
    while head := _CHUNK_HEAD.match(body, start):
        size, begin = int(head[1], 16), head.end()
        if size == 0:
            return b"".join(parts)
        parts.append(body[begin : begin + size])
        start = begin + size
        if body[start : start + 2] == b"\r\n":
            start += 2
    if not parts:
        return body  # archives often keep the header of an encoding that they have decoded
    raise BodyError("truncated_record", "chunked transfer ends early")
