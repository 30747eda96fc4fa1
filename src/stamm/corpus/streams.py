"""Bytes of an untrusted file: decompressed in bounded pieces, cut into bounded lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from stamm.base.errors import DataError
from stamm.base.receipts import check_file
from stamm.base.units import bytes_text

PIECE_BYTES = 4096
_STRING = rb"""[^"\\]*(?:\\.[^"\\]*)*("?)"""
_STRING_REST = re.compile(_STRING, re.DOTALL)
_MARKS = re.compile(rb'"' + _STRING + rb"|[\[\]{},]", re.DOTALL)
"""A string as far as it goes, group 1 its end; or a mark outside of strings."""
FREE_BYTES = 64 * 2**20
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
}
_CODECS = {".gz": "gzip", ".tgz": "gzip", ".zst": "zstd"}


class UnusableError(Exception):
    """Raised for what cannot be used, with a reason of the ledger and its detail."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail}")


class StreamError(UnusableError):
    """The rest of a stream cannot be read.

    reason   a ledger reason: "broken_compression" or "decompression_limit"
    detail   position and cause
    is_cut   whether the file is sound as far as it goes, and ends in the middle
    """

    def __init__(self, reason: str, detail: str, *, is_cut: bool = False) -> None:
        super().__init__(reason, detail)
        self.is_cut = is_cut


class BoundedStream:
    """The decompressed bytes of one file, read forward only.

    Raises StreamError from `read` when the compressed data is cut or damaged, or when more than
    `expansion` bytes come out per byte put in (the first 64 MiB are free).
    """

    def __init__(self, path: Path, expansion: int) -> None:
        self._path = path
        self._expansion = expansion
        self._delivered = 0
        self._broken: StreamError | None = None
        try:
            check_file(path)
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise DataError(
                f"cannot read {path}: {error.strerror}", fix="Check the path in corpus.inputs"
            ) from None
        self._codec = _CODECS.get(path.suffix.lower())
        self._source = self._decompressed()

    def __enter__(self) -> BoundedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def tell(self) -> int:
        """Decompressed bytes read so far."""
        return self._delivered

    def read(self, size: int = PIECE_BYTES) -> bytes:
        """Up to `size` bytes, never more than one piece; empty at the end."""
        if self._broken is not None:
            raise self._broken
        try:
            piece = self._source.read(min(size, PIECE_BYTES) if size >= 0 else PIECE_BYTES)
        except OSError as error:
            piece = self._last_bytes()
            self._broken = StreamError(
                "broken_compression",
                f"after {self._delivered + len(piece)} decompressed bytes: {error}",
                is_cut="Truncated" in str(error),
            )
            if not piece:
                raise self._broken from None
        if not self._delivered and self._codec is None:
            for magic, codec in _MAGIC.items():
                if piece.startswith(magic):
                    raise StreamError("broken_compression", f"{codec} data under another ending")
        self._delivered += len(piece)
        if self._delivered > FREE_BYTES + self._expansion * self._file.tell():
            raise StreamError(
                "decompression_limit",
                f"{bytes_text(self._delivered)} came out of {bytes_text(self._file.tell())}, "
                f"more than {self._expansion} to 1",
            )
        return piece

    def _decompressed(self) -> BinaryIO:
        if self._codec is None:
            return self._file
        source: BinaryIO = pa.CompressedInputStream(pa.PythonFile(self._file, "r"), self._codec)
        return source

    def _last_bytes(self) -> bytes:
        """The bytes between the last whole piece and a defect.

        A read that meets the defect returns nothing, so the file is read again, at the end byte by
        byte.
        """
        self._file.close()
        self._file = self._path.open("rb")
        self._source = self._decompressed()
        skipped, tail = 0, bytearray()
        while skipped < self._delivered:
            skipped += len(self._source.read(min(PIECE_BYTES, self._delivered - skipped)))
        try:
            while byte := self._source.read(1):
                tail += byte
        except OSError:
            return bytes(tail)
        return bytes(tail)


@dataclass(frozen=True)
class Line:
    """One line of a file.

    number   from 1
    data     its bytes without the line end; the first `limit` bytes of a line that is too long
    size     its true length in bytes
    ended    whether a line end follows, rather than the end of the file
    """

    number: int
    data: bytes
    size: int
    ended: bool = True

    @property
    def is_cut(self) -> bool:
        """Whether the file ends inside of this JSON value: in a string, an object or a list."""
        if self.ended or self.size > len(self.data):
            return False
        depth = 0
        for mark in _MARKS.finditer(self.data):
            if mark[0].startswith(b'"'):
                if not mark[1]:
                    return True
            else:
                depth += (mark[0] in b"[{") - (mark[0] in b"]}")
        return depth > 0


def bounded_items(stream: BoundedStream, limit: int) -> Iterator[Line]:
    """The elements of a JSON array as lines, holding at most `limit` bytes and one piece of each.

    Raises   StreamError as the stream does; "invalid_json" where the array does not end, or other
             text follows.
    """
    number, size, depth, in_string = 1, 0, 0, False
    held, cut = bytearray(), b""
    while piece := stream.read():
        piece, start, position = cut + piece, 0, 0
        cut = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""  # half of an escape
        piece = piece.removesuffix(cut)
        if in_string and (rest := _STRING_REST.match(piece)):
            in_string, position = not rest[1], rest.end()
        for mark in _MARKS.finditer(piece, position):
            if mark[0].startswith(b'"'):
                in_string = not mark[1]
                continue
            depth += (mark[0] in b"[{") - (mark[0] in b"]}")
            if depth == 1 and mark[0] == b"[":
                held.clear()
                size, start = 0, mark.end()
            if (mark[0] == b"," and depth == 1) or not depth:
                part = piece[start : mark.start()]
                held += part[: max(0, limit - len(held))]
                if held.strip():
                    yield Line(number, bytes(held).strip(), size + len(part))
                number, size, start = number + 1, 0, mark.end()
                held.clear()
            if not depth:
                if (piece[start:] + stream.read()).strip():
                    raise StreamError("invalid_json", "other text follows the array")
                return
        held += piece[start:][: max(0, limit - len(held))]
        size += len(piece) - start
    if depth == 1 and not in_string and held.strip():
        yield Line(number, bytes(held).strip(), size)
    raise StreamError("invalid_json", "the array does not end", is_cut=True)


def bounded_lines(stream: BoundedStream, limit: int) -> Iterator[Line]:
    """The lines of a stream, holding at most `limit` bytes and one piece of each in memory.

    Edge     a last line without a line end counts; a line cut by StreamError does not.
    Raises   StreamError as the stream does.
    """
    number, size, held = 1, 0, bytearray()
    while piece := stream.read():
        *ended, rest = piece.split(b"\n")
        for part in ended:
            held += part[: max(0, limit - len(held))]
            yield Line(number, bytes(held), size + len(part))
            number, size, held = number + 1, 0, bytearray()
        held += rest[: max(0, limit - len(held))]
        size += len(rest)
    if size:
        yield Line(number, bytes(held), size, ended=False)
