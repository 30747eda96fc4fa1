"""SHA256SUMS of a folder: written, read, and compared with the files.

`sha256sum --check SHA256SUMS` reads it too. Its last line is a comment with the SHA-256 of the lines
above, so that a change of SHA256SUMS itself is found.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stamm.base.errors import DataError, visible
from stamm.base.files import sha256_bytes, sha256_file, write_text

SUMS = "SHA256SUMS"
_OWN_HASH = "# SHA-256 of the lines above: "
_LINE = re.compile(r"([0-9a-f]{64})  ([^\\\x00-\x1f\x7f]+)")
_MOST_THREADS = 8
# What git and the Hub's client leave beside the files of a repository.
_FOLDERS_OF_THE_HUB, _FILE_OF_THE_HUB = (".git/", ".cache/huggingface/"), ".gitattributes"
OF_THE_HUB = (*_FOLDERS_OF_THE_HUB, _FILE_OF_THE_HUB)


def list_files(folder: Path) -> list[str]:
    """Paths of all files below `folder`, relative to it, sorted; without SHA256SUMS itself.

    Edge     a symbolic link to a folder is a file; what is below it is not listed
    Edge     `.git/`, `.gitattributes` and `.cache/huggingface/`, which git and the Hub's client
             add, are left out
    """
    paths: list[str] = []
    for folder_path, folders, names in os.walk(folder):
        at = Path(folder_path).relative_to(folder)
        links = (name for name in folders if Path(folder_path, name).is_symlink())
        paths += [(at / name).as_posix() for name in (*names, *links)]
    left_out = (SUMS, _FILE_OF_THE_HUB)
    return sorted(
        name for name in paths if name not in left_out and not name.startswith(_FOLDERS_OF_THE_HUB)
    )


def hash_files(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """(name, SHA-256) of each file, in order; None for a file that cannot be read.

    Threads read several files at once; hashlib computes without Python's lock.
    """
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        yield from zip(names, pool.map(lambda name: _hash(folder / name), names), strict=True)


def _hash(path: Path) -> str | None:
    """SHA-256 of a regular file, or of the one that a link of the Hub's cache leads to; a pipe or device has none."""
    try:
        return sha256_file(path) if stat.S_ISREG(path.stat().st_mode) else None
    except OSError:
        return None


def write_sums(folder: Path) -> dict[str, str]:
    """Write SHA256SUMS of all files below `folder`; returns SHA-256 by name.

    Raises   DataError for a file name with a backslash or a control character, and for a file that
             cannot be read.
    """
    sha256_by_name: dict[str, str] = {}
    for name, sha256 in hash_files(folder, list_files(folder)):
        if sha256 is None or not _LINE.fullmatch(f"{sha256}  {name}"):
            raise DataError(f"{visible(str(folder / name))} cannot be listed in {SUMS}")
        sha256_by_name[name] = sha256
    lines = "".join(f"{sha256}  {name}\n" for name, sha256 in sha256_by_name.items())
    write_text(folder / SUMS, f"{lines}{_OWN_HASH}{sha256_bytes(lines.encode())}\n")
    return sha256_by_name


def read_sums(folder: Path) -> dict[str, str]:
    """SHA-256 by name, as SHA256SUMS of `folder` lists them.

    Raises   DataError when it is missing, was changed, or names a file outside of the folder.
    """
    path = folder / SUMS
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        raise DataError(f"{path} is missing", fix="`stamm release` writes it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    lines, _, last = text.rpartition(_OWN_HASH)
    if last != f"{sha256_bytes(lines.encode())}\n":
        raise DataError(f"{path} was changed: its last line is not the SHA-256 of the lines above")
    sha256_by_name = {}
    for line in lines.split("\n")[:-1]:
        parts = _LINE.fullmatch(line)
        if parts is None or ".." in Path(parts[2]).parts or Path(parts[2]).is_absolute():
            raise DataError(f"{path} has a line that is not a SHA-256 and a file: {line[:80]!r}")
        sha256_by_name[parts[2]] = parts[1]
    return sha256_by_name
