"""Input files: the user's files, folders and patterns, or "package:<file>" for shipped data, and formats."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

from stamm.base.config import nearest
from stamm.base.errors import DataError, visible
from stamm.base.files import has_ending

JSONL = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".json.gz", ".json.zst")
TEXT = (".txt", ".txt.gz", ".txt.zst", ".md")
ARCHIVE = (".warc", ".warc.gz", ".wet", ".wet.gz")
TABLE = (".parquet", ".arrow")
REPOSITORY = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".zip")
READABLE = (*JSONL, *TEXT, *ARCHIVE, *TABLE, *REPOSITORY)
ROWS_OR_RECORDS = tuple(ending for ending in READABLE if ending not in (*TEXT, ".json"))
"""Endings of the files that are read in a folder that is not a corpus: no readme, no settings."""


def is_text(name: str) -> bool:
    """Whether a file name is that of plain text."""
    return has_ending(name, TEXT)


def is_archive(name: str) -> bool:
    """Whether a file name is that of a web archive."""
    return has_ending(name, ARCHIVE)


def is_table(name: str) -> bool:
    """Whether a file name is that of a Parquet or Arrow table, such as a Hugging Face dataset."""
    return has_ending(name, TABLE)


def is_repository(name: str) -> bool:
    """Whether a file name is that of a tar or zip archive of a source-code repository."""
    return has_ending(name, REPOSITORY)


def check_kind(name: str) -> None:
    """Raise DataError when the ending of `name` is not a supported format."""
    if not has_ending(name, READABLE):
        raise DataError(
            f"{name} is not in a supported format",
            where="corpus.inputs",
            fix=f"Known: {', '.join(READABLE)}",
        )


# Texts shipped with stamm; sources and licences: demo_data/LICENSES.md.
DEMO_INPUTS: tuple[str, ...] = (
    "package:guides.jsonl.zst",
    "package:manuals.jsonl.zst",
    "package:rights.jsonl.zst",
    "package:public.jsonl.zst",
    "package:novels.jsonl.zst",
    "package:pages.warc.gz",
)
DEMO_ROBOTS: tuple[str, ...] = ("package:robots.jsonl.zst",)
DEMO_PROBE_BOOKS = "package:probe_books.jsonl.zst"


SKIPPED_FILES = "skipped_files.json"
"""Output of the document filters: files in the folders of the inputs that are not read, by ending."""
_PREFIX = "package:"
_SUFFIXES = (".zst", ".gz", ".txt")
# What a file holds, by the last part of the configuration key that names it.
_CONTENTS = {
    "inputs": f": {', '.join(READABLE)}",
    "deletions": ": text with one URL, document_id or sha256:… per line, as package:deletions.txt",
    "domains": ": text with one domain per line",
}
_INPUTS = "corpus.inputs"
_PATTERN = "*?["
_MOST_SHOWN = 8
_TEXT_LISTS = ("deletions", "domains")
"""Configuration keys that accept files only: such lists have no file ending of their own."""


def shipped_files() -> tuple[str, ...]:
    """The names that may follow "package:", sorted."""
    folder = resources.files("stamm.corpus") / "demo_data"
    return tuple(sorted(f.name for f in folder.iterdir() if f.name.endswith(_SUFFIXES)))


def locate(name: str, where: str) -> Path:
    """The file that `name` refers to.

    where    the configuration key that names it, for the error
    Edge     a shipped name is looked up in the list of shipped files, so that no part of a path
             ("package:../secret") can lead out of that folder.
    Raises   DataError when there is no such file.
    """
    if name.startswith(_PREFIX):
        file = name.removeprefix(_PREFIX)
        known = shipped_files()
        if file not in known:
            raise DataError(
                f"{name!r} is not shipped with stamm", where=where, fix=nearest(file, known)
            )
        return Path(str(resources.files("stamm.corpus") / "demo_data" / file))
    path = Path(name)
    if not path.is_file():
        what, fix = "does not exist", "Name an existing file"
        if path.is_dir():
            what, fix = "is a folder, not a file", "Name a file"
        elif path.exists():
            what, fix = "is not a regular file, and is read more than once", "Save it as a file"
        fix += _CONTENTS.get(where.rpartition(".")[2], "")
        raise DataError(f"{name} {what}", where=where, fix=fix)
    return path


def expand(names: Sequence[str], where: str) -> dict[str, Path]:
    """The files that `names` refer to, by their name in the ledger, in order.

    A folder means every readable file below it and a pattern ("dumps/*/*.warc.gz") every file it
    matches, both sorted by name, whatever the order in the file system. Hidden files and the folders
    of runs, which may lie in it, are not read.

    Raises   DataError for a name without any file, or a file named twice.
    """
    paths: dict[str, Path] = {}
    for name in names:
        for file in _below(name, where):
            if file in paths:
                raise DataError(f"{file} is named twice", where=where, fix="Name it once")
            paths[file] = locate(file, where)
    return paths


def skipped_files(names: Sequence[str]) -> dict[str, int]:
    """The files in the folders among `names` that are not read, by the ending of their names."""
    endings = Counter(
        path.suffix or "no ending"
        for name in names
        if not name.startswith(_PREFIX) and Path(name).is_dir()
        for path in _files(Path(name))
        if not has_ending(path.name, READABLE)
    )
    return dict(sorted(endings.items(), key=lambda item: (-item[1], item[0])))


def skipped_text(skipped: Mapping[str, int]) -> str:
    """One line: "4 files in folders are not read: .md (3), no ending (1)"; "" without any."""
    if not skipped:
        return ""
    shown = ", ".join(
        f"{visible(ending, 20)} ({count:,})"
        for ending, count in list(skipped.items())[:_MOST_SHOWN]
    )
    more = (
        f" and {len(skipped) - _MOST_SHOWN:,} other endings" if len(skipped) > _MOST_SHOWN else ""
    )
    total = sum(skipped.values())
    files = f"{total:,} file in folders is" if total == 1 else f"{total:,} files in folders are"
    return f"{files} not read: {shown}{more}"


def _files(folder: Path) -> Iterator[Path]:
    """The files below a folder, without hidden ones and those of runs."""
    for root, folders, names in os.walk(folder):
        if "config.json" in names and "steps" in folders:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(root, name) for name in names if not name.startswith("."))
        yield from (path for path in paths if path.is_file())


def _below(name: str, where: str) -> list[str]:
    path = Path(name)
    if name.startswith(_PREFIX) or path.is_file():
        return [name]
    if path.is_dir() and where.rpartition(".")[2] not in _TEXT_LISTS:
        endings = READABLE if where.endswith(_INPUTS) else ROWS_OR_RECORDS
        files = [str(p) for p in _files(path) if has_ending(p.name, endings)]
        what = f"the folder {name} contains no {', '.join(endings)}"
        if not files and (skipped := skipped_text(skipped_files([name]))):
            what += f"; {skipped}"
    elif any(c in name for c in _PATTERN):
        matching = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
        files = [str(p) for p in matching if p.is_file()]
        what = f"no file matches {name}"
    else:
        return [name]  # locate raises the error
    if not files:
        raise DataError(what, where=where, fix="Correct the name")
    return sorted(files)
