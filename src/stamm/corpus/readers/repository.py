"""Documents from a repository of source code in an archive: one per text file, with its licence.

Archives are untrusted: read forward, in bounded pieces, never written to disk; links are not followed.

Source   tar: POSIX.1-2017, pax, "ustar Interchange Format"; GNU tar's long names. The standard
         library's reader is not used: it loads a header of any length into memory.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from stamm.base.files import has_ending
from stamm.base.units import bytes_text
from stamm.corpus.documents import (
    LONGEST_FIELD,
    InputRecord,
    Place,
    UnreadableRecord,
    clean_field,
    content_id,
    unread_rest,
)
from stamm.corpus.licences.repository import FolderLicences
from stamm.corpus.limits import ReadLimits
from stamm.corpus.streams import FREE_BYTES, PIECE_BYTES, BoundedStream, StreamError

_BLOCK = 512
_LONGEST_HEADER = 2**20
_FILES = (b"0", b"\0", b"7")
_LINKS = (b"1", b"2")
_NEXT_HEADER = (b"x", b"L")  # pax, GNU: long values of the next header
_IGNORED_HEADER = (b"g", b"K")  # comments, the target of a link
_LINK_MODE = 0o120000
# What the standard library raises for one file of a zip.
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,
)


@dataclass(frozen=True, kw_only=True)
class Member:
    """One member of an archive.

    path      as stored
    kind      "other" is a device, a pipe, or of an unknown type
    size      of its content, as far as known
    content   of a file; cut where it is longer than limits.record_bytes, so that `size` exceeds it
    defect    why a file's content or name cannot be read, "" otherwise
    reason    the ledger's reason of a defect
    """

    path: str
    kind: Literal["file", "folder", "link", "other"]
    size: int = 0
    content: bytes = b""
    defect: str = ""
    reason: str = "content_encoding"


def members(path: Path, limits: ReadLimits) -> Iterator[Member]:
    """Members of a .zip or .tar (.gz, .tgz, .zst) in stored order; raises StreamError."""
    return (
        _zip_members(path, limits) if has_ending(path.name, ".zip") else _tar_members(path, limits)
    )


def _tar_members(path: Path, limits: ReadLimits) -> Iterator[Member]:
    with BoundedStream(path, limits.expansion) as stream:
        header: dict[str, bytes] = {}
        defect = ""
        while True:
            head = _exactly(stream, _BLOCK)
            if not any(head):
                return
            _check_sum(head)
            size, kind = _number(head[124:136]), head[156:157]
            if kind in _NEXT_HEADER + _IGNORED_HEADER:
                if kind in _IGNORED_HEADER or size > _LONGEST_HEADER:
                    _skip(stream, size + -size % _BLOCK)
                    if kind in _NEXT_HEADER:
                        defect = f"a header of {size} bytes: its name is not read"
                    continue
                data = _exactly(stream, size + -size % _BLOCK)[:size]
                header |= {"path": data.rstrip(b"\0")} if kind == b"L" else _pax(data)
                continue
            if "size" in header:
                size = _decimal(header["size"])
            name = _text(header.get("path") or _name(head))
            content = _exactly(stream, min(size, limits.record_bytes)) if kind in _FILES else b""
            _skip(stream, size + -size % _BLOCK - len(content))
            yield Member(
                path=name,
                kind=_kind(kind, name),
                size=size,
                content=content,
                defect=defect or ("a sparse file" if "sparse" in header else ""),
                reason="record_too_long" if defect else "content_encoding",
            )
            header, defect = {}, ""


def _zip_members(path: Path, limits: ReadLimits) -> Iterator[Member]:
    remaining_bytes = FREE_BYTES + limits.expansion * path.stat().st_size
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise _broken(str(error)) from None
    with archive:
        for entry in archive.infolist():
            if entry.is_dir():
                yield Member(path=entry.filename, kind="folder")
            elif entry.external_attr >> 16 & 0o170000 == _LINK_MODE:
                yield Member(path=entry.filename, kind="link", size=entry.file_size)
            else:
                member = _unzipped(archive, entry, limits.record_bytes)
                remaining_bytes -= max(member.size, len(member.content))
                if remaining_bytes < 0:
                    raise StreamError(
                        "decompression_limit",
                        f"{path.name} of {bytes_text(path.stat().st_size)} grows more than "
                        f"{limits.expansion} to 1",
                    )
                yield member


def _unzipped(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> Member:
    # The standard library decompresses the other methods without a bound on the output.
    defect = ""
    if entry.flag_bits & 1:
        defect = "encrypted"
    elif entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        defect = f"compressed by method {entry.compress_type}"
    content = b""
    if not defect and entry.file_size <= most:
        try:
            with archive.open(entry) as opened:
                content = opened.read(most + 1)
        except _UNREADABLE as error:
            defect = str(error) or type(error).__name__
    size = max(entry.file_size, len(content)) if not defect else 0
    return Member(
        path=entry.filename, kind="file", size=size, content=content[:most], defect=defect
    )


def _kind(flag: bytes, name: str) -> Literal["file", "folder", "link", "other"]:
    if flag == b"5" or (flag in _FILES and name.endswith("/")):
        return "folder"
    if flag in _FILES:
        return "file"
    return "link" if flag in _LINKS else "other"


def _exactly(stream: BoundedStream, size: int) -> bytes:
    held = bytearray()
    while len(held) < size:
        piece = stream.read(min(PIECE_BYTES, size - len(held)))
        if not piece:
            raise _early(stream)
        held += piece
    return bytes(held)


def _skip(stream: BoundedStream, size: int) -> None:
    while size > 0:
        piece = stream.read(min(PIECE_BYTES, size))
        if not piece:
            raise _early(stream)
        size -= len(piece)


def _check_sum(head: bytes) -> None:
    """The sum of a header's bytes, with blanks for the checksum field; old archives sum signed bytes."""
    blanked = head[:148] + b" " * 8 + head[156:]
    signed = sum(blanked) - 256 * sum(byte > 127 for byte in blanked)
    if _number(head[148:156]) not in (sum(blanked), signed):
        raise _broken("a header whose sum is wrong")


def _number(field: bytes) -> int:
    """A number of a header: octal digits, or binary if the first bit is set."""
    if field[0] & 0x80:
        number = int.from_bytes(field, "big") - (0x80 << 8 * (len(field) - 1))
        if number >= 2**63:
            raise _broken(f"the number {field.hex()}")
        return number
    digits = field.strip(b" \0")
    if digits.translate(None, b"01234567"):
        raise _broken(f"the number {digits!r}")
    return int(digits or b"0", 8)


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 19:
        raise _broken(f"the size {digits[:40]!r}")
    return int(digits)


def _name(head: bytes) -> bytes:
    name, prefix = head[:100].split(b"\0")[0], head[345:500].split(b"\0")[0]
    # GNU's own format has times where POSIX has a prefix.
    return prefix + b"/" + name if head[257:263] == b"ustar\0" and prefix else name


def _pax(data: bytes) -> dict[str, bytes]:
    """Path and size of "28 path=some/long/name\\n" and so on, and whether a file is sparse."""
    fields, at = {}, 0
    while at < len(data):
        blank = data.find(b" ", at, at + 8)
        length = data[at:blank] if blank > 0 else b""
        if not length.isdigit() or int(length) < blank - at + 3 or at + int(length) > len(data):
            raise _broken("a pax header that cannot be read")
        key, _, value = data[blank + 1 : at + int(length) - 1].partition(b"=")
        if key in (b"path", b"size"):
            fields[key.decode()] = value
        if key.startswith(b"GNU.sparse"):
            fields["sparse"] = value
        at += int(length)
    return fields


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _broken(detail: str) -> StreamError:
    return StreamError("broken_archive", detail)


def _early(stream: BoundedStream) -> StreamError:
    return StreamError("truncated_record", f"the archive ends after {stream.tell()} bytes")


_LOOKED_AT = 8000  # bytes in which a zero byte makes a file binary, as in git
_BOOKKEEPING = ".git"


def read_repository(
    name: str, path: Path, limits: ReadLimits, url: str = ""
) -> Iterator[InputRecord | UnreadableRecord]:
    """The text files of an archive, in its order, and a reason for each other file.

    url   of the repository; a document's URL is this one with the path as its fragment, so that a
          deletion request for the repository's URL means all of its files

    A document's licence comes from `FolderLicences`. Folders and the files in .git are skipped.
    Edge     an archive that ends early gives the files before, and one UnreadableRecord for the rest.
    Checked  tests/unit/corpus/test_repository_input.py
    """
    terms = FolderLicences(_texts(path, limits))
    position = 0
    try:
        for member in _files(path, limits):
            position += 1
            yield _document(Place(file=name, position=position), member, terms, url)
    except (StreamError, OSError) as error:
        if not isinstance(error, StreamError):
            error = StreamError("broken_archive", str(error))
        yield unread_rest(name, position + 1, error.reason, error.detail, "files")


def _texts(path: Path, limits: ReadLimits) -> Iterator[tuple[str, str]]:
    """Paths and texts for the licences, as far as the archive can be read."""
    try:
        for member in _files(path, limits):
            text = _decoded(member)
            if text is not None and not _wrong_path(member.path):
                yield member.path, text
    except (StreamError, OSError):
        pass  # read_repository reports the same defect in the ledger


def _files(path: Path, limits: ReadLimits) -> Iterator[Member]:
    for member in members(path, limits):
        if member.kind != "folder" and _BOOKKEEPING not in member.path.split("/"):
            # Some tools write "./" before every path.
            yield replace(member, path=member.path.removeprefix("./"))


def _document(
    place: Place, member: Member, terms: FolderLicences, url: str
) -> InputRecord | UnreadableRecord:
    path = clean_field(member.path)
    address = f"{url}#{quote(path)}"[:LONGEST_FIELD] if url else ""
    path_fault = _wrong_path(member.path)
    text = _decoded(member)
    if path_fault:
        reason, detail = "bad_path", path_fault
    elif member.kind != "file":
        reason, detail = ("link" if member.kind == "link" else "no_file"), member.kind
    elif member.defect:
        reason, detail = member.reason, clean_field(member.defect)[:200]
    elif member.size > len(member.content):
        reason, detail = "record_too_long", f"{member.size} bytes"
    elif b"\0" in member.content[:_LOOKED_AT]:
        reason, detail = "binary", "a zero byte"
    elif text is None:
        reason, detail = "invalid_utf8", "no UTF-8 text"
    else:
        expression, basis = terms.licence_of(member.path, text)
        return InputRecord(
            place=place,
            content_id=content_id(address, text.encode()),
            content=text.encode(),
            url=address,
            path=path,
            source=place.file,
            licence=expression,
            licence_basis=basis,
        )
    return UnreadableRecord(
        place=place,
        content_id=content_id(address, member.content),
        reason=reason,
        detail=detail,
        size=member.size,
        url=address,
        path=path,
    )


def _decoded(member: Member) -> str | None:
    """The text of a file, None for another member."""
    whole = member.kind == "file" and not member.defect and member.size <= len(member.content)
    if not whole or b"\0" in member.content[:_LOOKED_AT]:
        return None
    try:
        return member.content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _wrong_path(path: str) -> str:
    """Why a path is not that of a file in the repository, "" if it is."""
    if len(path) > LONGEST_FIELD:
        return f"over {LONGEST_FIELD} characters"
    if path.startswith(("/", "\\")) or path[1:2] == ":":
        return "absolute"
    parts = path.replace("\\", "/").split("/")
    if ".." in parts:
        return "leads out of its folder"
    return "" if path.strip("/.") else "empty"
