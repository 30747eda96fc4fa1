"""Documents from web archives (WARC): HTML and plain text responses, with their HTTP headers.

An archive may also contain the robots.txt files that its crawler read. They apply to the pages of
that archive, so they are read first.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from stamm.corpus.charset import UndecodableError, decode
from stamm.corpus.consent.robots import RobotsAnswer, is_robots_path
from stamm.corpus.consent.robots_parser import PARSED_BYTES
from stamm.corpus.consent.snapshot import decode_body
from stamm.corpus.documents import (
    LONGEST_FIELD,
    InputRecord,
    Place,
    Signals,
    UnreadableRecord,
    clean_field,
    content_id,
    unread_rest,
)
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.rows import FieldUse
from stamm.corpus.readers.warc_records import (
    LONGEST_HEAD,
    WARC_KEYS,
    WarcRecord,
    header_lines,
    warc_records,
)
from stamm.corpus.streams import BoundedStream, StreamError, UnusableError

# Resource and conversion records (WET) have no HTTP headers: consent is checked by address alone.
_PAGES = ("response", "resource", "conversion")
_HTML = ("text/html", "application/xhtml+xml")
_PLAIN = ("text/plain",)
_STATUS_LINE = re.compile(rb"HTTP/[0-9](?:\.[0-9])?[ \t]+([0-9]{3})(?![0-9])")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?([^\s;,\"']{1,100})", re.IGNORECASE)
# 32 lets zlib recognise its own frame and gzip's by their heads.
_ANY_ZLIB = zlib.MAX_WBITS + 32
_GZIP_MAGIC = b"\x1f\x8b"
_PIECE_BYTES = 4096
_STREAMED = {"br": "brotli", "zstd": "zstd"}
_HTML_START = re.compile(rb"\s*<(?:!doctype html|html)\b", re.IGNORECASE)
_CHUNK_HEAD = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]{0,256})?\r?\n")
# Bytes that no text has, in the encodings that the web uses without a byte order mark.
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\f\r\x1b"))
_SAMPLE_BYTES = 1024
_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_NO_ENCODING = ("", "chunked", "identity", "none", "utf-8", "utf8")


class BodyError(UnusableError):
    """A response body that cannot be used: a ledger reason and its detail."""


def archived_robots(path: Path, limits: ReadLimits) -> Iterator[RobotsAnswer]:
    """The robots.txt answers in an archive, in file order, as far as the parser reads them.

    Edge   records that cannot be read are skipped here; `read_archive` reports them.
    """
    with BoundedStream(path, limits.expansion) as stream:
        try:
            for record in warc_records(stream, limits.record_bytes):
                if record.kind not in _PAGES or not is_robots_path(_url(record)):
                    continue
                try:
                    answer = _answer(record)
                    status, text = answer.status, decode_body(_body(answer, limits))
                except BodyError as bad:
                    # A robots.txt that cannot be read must not count as missing.
                    status, text = 0, f"# {bad.reason}: {bad.detail}"
                yield RobotsAnswer(
                    url=_url(record),
                    status=status,
                    read=_date(record),
                    text=text[: PARSED_BYTES + 1],
                )
        except StreamError:
            pass  # read_archive reports the same defect in the ledger


def read_archive(
    name: str, path: Path, limits: ReadLimits, use: FieldUse | None = None
) -> Iterator[InputRecord | UnreadableRecord]:
    """The pages of an archive, and a reason for each unusable record of a page.

    Requests, metadata, revisits and robots.txt files are skipped.

    use   counts the fields of record heads that are not known
    """
    use = use or FieldUse()
    position = 0
    with BoundedStream(path, limits.expansion) as stream:
        try:
            for record in warc_records(stream, limits.record_bytes):
                position += 1
                use.unknown.add(WARC_KEYS.unknown(record.headers))
                is_page = record.kind in _PAGES and not is_robots_path(_url(record))
                if is_page or (record.reason and record.kind in ("", *_PAGES)):
                    yield _page(Place(file=name, position=position), record, limits)
        except StreamError as stopped:
            yield unread_rest(name, position + 1, stopped.reason, stopped.detail, "records")


def _url(record: WarcRecord) -> str:
    return record.headers.get("warc-target-uri", "").removeprefix("<").removesuffix(">")


def _date(record: WarcRecord) -> str:
    return clean_field(record.headers.get("warc-date", "")[:10])


def _page(place: Place, record: WarcRecord, limits: ReadLimits) -> InputRecord | UnreadableRecord:
    url = _url(record)
    try:
        if len(url) > LONGEST_FIELD:
            raise BodyError("field_too_long", f"url has over {LONGEST_FIELD} characters")
        if not record.reason and not clean_field(url).strip():
            # Without a URL it would be allowed without a consent check.
            raise BodyError("bad_url", "a record of a page without WARC-Target-URI")
        answer = _answer(record)
        if answer.status != 200:
            raise BodyError("http_status", str(answer.status))
        if answer.media_type not in _HTML + _PLAIN:
            raise BodyError("content_type", clean_field(answer.media_type)[:200] or "none given")
        body = _body(answer, limits)
        is_html = answer.media_type in _HTML
        content = body if is_html else _decoded(body, answer.charset)
    except BodyError as bad:
        return UnreadableRecord(
            place=place,
            content_id=content_id(url, f"{place.file}#{place.position}".encode()),
            reason=bad.reason,
            detail=bad.detail,
            size=record.size,
            url=clean_field(url),
        )
    return InputRecord(
        place=place,
        content_id=content_id(url, body),
        content=content,
        url=clean_field(url),
        source=place.file,
        date=_date(record),
        is_html=is_html,
        charset=answer.charset if is_html else None,
        signals=Signals(headers=answer.headers),
    )


def _decoded(body: bytes, charset: str | None) -> bytes:
    try:
        return decode(body, charset).encode()
    except UndecodableError as error:
        raise BodyError("undecodable", str(error)) from None


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """An HTTP response, or the content of a record without one.

    headers   lower-case names and values, in order
    cut       whether the body is longer than limits.record_bytes
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes
    cut: bool

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    @property
    def media_type(self) -> str:
        first = next(iter(self.values("content-type")), "")
        named = re.split("[;,]", first)[0].strip().lower()
        return _HTML[0] if not named and _HTML_START.match(self.body) else named

    @property
    def charset(self) -> str | None:
        match = _CHARSET.search(next(iter(self.values("content-type")), ""))
        return match[1] if match else None

    def encodings(self, name: str) -> list[str]:
        listed = ",".join(self.values(name)).lower().split(",")
        return [encoding.strip() for encoding in listed]


def _answer(record: WarcRecord) -> _Answer:
    if record.reason:
        raise BodyError(record.reason, record.detail)
    cut = len(record.content) < record.size
    media_type = record.headers.get("content-type", "")
    is_http = media_type.lower().startswith("application/http") or (
        # Some crawlers omit the Content-Type of the record, or write that of the body.
        record.kind == "response" and record.content.startswith(b"HTTP/")
    )
    if not is_http:
        if record.kind == "response":
            raise BodyError("not_http", "a response without HTTP headers")
        return _Answer(headers=(("content-type", media_type),), body=record.content, cut=cut)
    start = 0
    while True:
        status = _STATUS_LINE.match(record.content, start)
        end = _HEAD_END.search(record.content, start, LONGEST_HEAD)
        if status is None or end is None:
            raise BodyError("not_http", "its HTTP headers cannot be read")
        if not status[1].startswith(b"1"):
            break
        start = end.end()  # of "100 Continue" before the answer
    return _Answer(
        status=int(status[1]),
        headers=tuple(header_lines(record.content[start : end.start()])),
        body=record.content[end.end() :],
        cut=cut,
    )


def _body(answer: _Answer, limits: ReadLimits) -> bytes:
    """The body without its transfer and content encodings.

    Archives often keep the header of an encoding that they have undone, and servers send names of no
    encoding: a body whose first bytes are not in the encoding, and are text, is taken as it is.
    """
    body = answer.body
    if answer.cut or len(body) > limits.record_bytes:
        raise BodyError("record_too_long", f"over {limits.record_bytes} bytes")
    encodings = answer.encodings("transfer-encoding")
    if encodings[-1] == "chunked":
        body = _unchunk(body)
        encodings.pop()
    for encoding in reversed(answer.encodings("content-encoding") + encodings):
        if encoding in _NO_ENCODING:
            continue
        if encoding in _STREAMED and (plain := _streamed(body, encoding, limits.record_bytes)):
            body = plain
        elif encoding in ("gzip", "x-gzip") and body.startswith(_GZIP_MAGIC):
            body = _inflate(body, encoding, limits.record_bytes)
        elif encoding == "deflate" and (inflated := _deflated(body, limits.record_bytes)):
            body = inflated
        elif not _is_text(body):
            raise BodyError("content_encoding", clean_field(encoding)[:200])
    if body.startswith(_GZIP_MAGIC):  # some servers send it without a header
        body = _inflate(body, "gzip", limits.record_bytes)
    return body


def _is_text(body: bytes) -> bool:
    sample = body[:_SAMPLE_BYTES]
    return body.startswith(_MARKS) or len(sample.translate(None, _CONTROLS)) == len(sample)


def _deflated(body: bytes, limit: int) -> bytes:
    """The content of a deflate body, in zlib's frame (RFC 9110, 8.4.1.2) or, as some servers send
    it, without; empty where it is neither."""
    if len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0:
        return _inflate(body, "deflate", limit)
    try:
        return _inflate(body, "deflate", limit, window=-zlib.MAX_WBITS)
    except BodyError as bad:
        if bad.reason == "record_too_long":
            raise
        return b""


def _streamed(body: bytes, encoding: str, limit: int) -> bytes:
    """The content of a brotli or Zstandard body; empty where it is not one."""
    plain = bytearray()
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), _STREAMED[encoding]) as source:
            while piece := source.read(_PIECE_BYTES):
                plain += piece
                if len(plain) > limit:
                    raise BodyError("record_too_long", f"over {limit} bytes when decompressed")
    except OSError as error:
        if plain:
            raise BodyError(
                "content_encoding", f"{encoding}: {clean_field(str(error))[:200]}"
            ) from None
        return b""
    return bytes(plain)


def _inflate(body: bytes, encoding: str, limit: int, window: int = _ANY_ZLIB) -> bytes:
    """The content of all members: concatenated gzip files are one (RFC 1952, 2.2)."""
    plain = bytearray()
    inflate, start = zlib.decompressobj(window), 0
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
    """The content of the chunks; the body as it is where it does not begin with a chunk."""
    parts: list[bytes] = []
    start = 0
    while head := _CHUNK_HEAD.match(body, start):
        size, begin = int(head[1], 16), head.end()
        if size == 0:
            return b"".join(parts)
        after = body[begin + size : begin + size + 2]
        if not parts and after != b"\r\n" and (after or not head[0].endswith(b"\r\n")):
            return body
        parts.append(body[begin : begin + size])
        start = begin + size + 2 * (after == b"\r\n")
    if not parts:
        return body
    raise BodyError("truncated_record", "chunked transfer ends early")
