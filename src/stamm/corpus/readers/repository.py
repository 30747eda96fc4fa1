"""Documents from a repository of source code in an archive: one per text file, with its licence.

Nothing is unpacked to disk and no link is followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from stamm.corpus.licences.folders import FolderLicences
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.archive import Member, members
from stamm.corpus.records import (
    LONGEST_FIELD,
    InputRecord,
    Place,
    UnreadableRecord,
    clean_field,
    content_id,
)
from stamm.corpus.streams import StreamError

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
        reason = error.reason if isinstance(error, StreamError) else "broken_archive"
        detail = error.detail if isinstance(error, StreamError) else str(error)
        yield UnreadableRecord(
            place=Place(file=name, position=position + 1),
            content_id=content_id(name, detail.encode()),
            reason=reason,
            detail=f"{detail}; files from {position + 1} on are lost",
            size=0,
        )


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
    wrong = _wrong_path(member.path)
    text = _decoded(member)
    if wrong:
        reason, detail = "bad_path", wrong
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
