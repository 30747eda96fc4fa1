"""Where inputs are: files, folders and patterns of the user's, or "package:<file>" for shipped data."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from stamm.base.config import nearest
from stamm.base.errors import DataError
from stamm.corpus.formats import READABLE

_PREFIX = "package:"
_SUFFIXES = (".zst", ".gz")
_PATTERN = "*?["


def shipped_files() -> tuple[str, ...]:
    """The names that may follow "package:", sorted."""
    folder = resources.files("stamm.corpus") / "demo_data"
    return tuple(sorted(f.name for f in folder.iterdir() if f.name.endswith(_SUFFIXES)))


def locate(name: str, where: str) -> Path:
    """The file that `name` stands for.

    where    the configuration key it was set in, for the error
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
        what, fix = "does not exist", "Name a file that is there"
        if path.is_dir():
            what, fix = "is a folder, not a file", "Name a file"
        elif path.exists():
            what, fix = "is no regular file, and is read more than once", "Save it as a file"
        if where.rpartition(".")[2] == "inputs":
            fix += f": {', '.join(READABLE)}"
        raise DataError(f"{name} {what}", where=where, fix=fix)
    return path


def expand(names: Sequence[str], where: str) -> dict[str, Path]:
    """The files that `names` stand for, by the name each gets in the ledger, in order.

    A folder stands for every readable file below it and a pattern ("dumps/*/*.warc.gz") for every
    file it matches, both sorted by name: a file system's own order is nowhere used.

    Raises   DataError for a name that stands for nothing, or for a file named twice.
    """
    found: dict[str, Path] = {}
    for name in names:
        for each in _below(name, where):
            if each in found:
                raise DataError(f"{each} is named twice", where=where, fix="Name it once")
            found[each] = locate(each, where)
    return found


def _below(name: str, where: str) -> list[str]:
    path = Path(name)
    if name.startswith(_PREFIX) or path.is_file():
        return [name]
    if path.is_dir():
        files = [str(p) for p in path.rglob("*") if p.name.endswith(READABLE) and p.is_file()]
        what = f"the folder {name} holds no {', '.join(READABLE)}"
    elif any(c in name for c in _PATTERN):
        matching = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
        files = [str(p) for p in matching if p.is_file()]
        what = f"no file matches {name}"
    else:
        return [name]  # locate says what is wrong with it
    if not files:
        raise DataError(what, where=where, fix="Correct the name")
    return sorted(files)
