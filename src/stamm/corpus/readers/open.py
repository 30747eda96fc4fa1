"""Open an input by the ending of its name and yield its records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stamm.base.errors import DataError
from stamm.corpus.formats import check_kind, is_archive, is_repository, is_table, is_text
from stamm.corpus.limits import FieldNames, ReadLimits
from stamm.corpus.readers.jsonl import read_jsonl
from stamm.corpus.readers.repository import read_repository
from stamm.corpus.readers.rows import FieldUse
from stamm.corpus.readers.table import read_table_rows
from stamm.corpus.readers.text import read_text
from stamm.corpus.readers.warc import read_archive
from stamm.corpus.records import InputRecord, UnreadableRecord

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
