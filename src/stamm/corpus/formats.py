"""Which files can be read, told by the end of their names."""

from __future__ import annotations

from stamm.base.errors import DataError

JSONL = (".jsonl", ".jsonl.gz", ".jsonl.zst")
ARCHIVE = (".warc", ".warc.gz")
TABLE = (".parquet", ".arrow")
REPOSITORY = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".zip")
READABLE = (*JSONL, *ARCHIVE, *TABLE, *REPOSITORY)


def is_archive(name: str) -> bool:
    """Whether a file name says web archive."""
    return name.endswith(ARCHIVE)


def is_table(name: str) -> bool:
    """Whether a file name says Parquet or Arrow, as Hugging Face datasets are kept."""
    return name.endswith(TABLE)


def is_repository(name: str) -> bool:
    """Whether a file name says tar or zip, as repositories of source code are handed on."""
    return name.endswith(REPOSITORY)


def check_kind(name: str) -> None:
    """Raise DataError when the end of `name` says nothing that can be read."""
    if not name.endswith(READABLE):
        raise DataError(
            f"{name} is no kind of file that can be read",
            where="corpus.inputs",
            fix=f"Known: {', '.join(READABLE)}",
        )
