"""Opens an input by the end of its name and hands on its records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stamm.base.errors import DataError
from stamm.corpus.archive import read_archive
from stamm.corpus.config import ReadLimits
from stamm.corpus.jsonl import read_jsonl
from stamm.corpus.records import Record, Unread

_JSONL = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_ARCHIVE = (".warc", ".warc.gz")
# A reason that stops a file: when nothing was read before it, the file as a whole is unreadable.
_STOPPING = ("broken_compression", "broken_archive")


def is_archive(name: str) -> bool:
    """Whether a file name says web archive."""
    return name.endswith(_ARCHIVE)


def check_kind(name: str) -> None:
    """Raise DataError when the end of `name` says neither JSONL nor WARC."""
    if not name.endswith(_JSONL + _ARCHIVE):
        raise DataError(
            f"{name} is no kind of file that can be read",
            where="corpus.inputs",
            fix=f"Known: {', '.join(_JSONL + _ARCHIVE)}",
        )


def read_input(name: str, path: Path, limits: ReadLimits) -> Iterator[Record | Unread]:
    """The records of one input, in file order; defects come as Unread, never silently.

    Raises   DataError when nothing at all can be read: not the compression or the archive that
             its name says.
    """
    check_kind(name)
    reader = read_archive if is_archive(name) else read_jsonl
    for count, record in enumerate(reader(name, path, limits)):
        if count == 0 and isinstance(record, Unread) and record.reason in _STOPPING:
            raise DataError(
                f"{name} cannot be read: {record.detail}",
                where=f"record {record.place.position}",
                fix="Check that the file is what its name says, or fetch it again",
            )
        yield record
