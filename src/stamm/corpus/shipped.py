"""Where an input is: a path of the user's, or "package:<file>" for data shipped with stamm."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from stamm.base.config import nearest
from stamm.base.errors import DataError

_PREFIX = "package:"
_SUFFIXES = (".zst", ".gz")


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
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise DataError(
            f"{name} {what}", where=where, fix="Name a .jsonl, .jsonl.gz, .jsonl.zst or .warc(.gz)"
        )
    return path
