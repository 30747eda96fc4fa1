"""Formats of input files, recognized by the ending of their names."""

from __future__ import annotations

from stamm.base.errors import DataError

JSONL = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".json.gz", ".json.zst")
TEXT = (".txt", ".txt.gz", ".txt.zst", ".md")
ARCHIVE = (".warc", ".warc.gz", ".wet", ".wet.gz")
TABLE = (".parquet", ".arrow")
REPOSITORY = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".zip")
READABLE = (*JSONL, *TEXT, *ARCHIVE, *TABLE, *REPOSITORY)
ROWS_OR_RECORDS = tuple(ending for ending in READABLE if ending not in (*TEXT, ".json"))
"""Of a folder that is not a corpus: no readme, no settings."""


def is_text(name: str) -> bool:
    """Whether a file name is that of plain text."""
    return name.endswith(TEXT)


def is_archive(name: str) -> bool:
    """Whether a file name is that of a web archive."""
    return name.endswith(ARCHIVE)


def is_table(name: str) -> bool:
    """Whether a file name is that of a Parquet or Arrow table, such as a Hugging Face dataset."""
    return name.endswith(TABLE)


def is_repository(name: str) -> bool:
    """Whether a file name is that of a tar or zip archive of a source-code repository."""
    return name.endswith(REPOSITORY)


def check_kind(name: str) -> None:
    """Raise DataError when the ending of `name` is not a supported format."""
    if not name.endswith(READABLE):
        raise DataError(
            f"{name} is not in a supported format",
            where="corpus.inputs",
            fix=f"Known: {', '.join(READABLE)}",
        )
