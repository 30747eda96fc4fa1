"""`stamm.verify`: check a released folder. Needs no extra: who receives a release can check it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stamm.base.schema import read_record
from stamm.release.checksums import list_files
from stamm.release.layout import RECORD, SIGNATURE
from stamm.release.records import ReleaseFile
from stamm.release.verify import Problem
from stamm.release.verify import verify as problems_of


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Result of the check of a released folder.

    problems    the first, or all
    complete    whether all were looked for
    signed      whether the folder has a signature
    key         the public key that the signature was checked with; None: it was not
    """

    folder: Path
    problems: tuple[Problem, ...]
    complete: bool
    signed: bool
    key: Path | None = None

    @property
    def signature(self) -> str | None:
        """ "checked", "not checked", or None for a folder without one.

        It is checked last: without `all` a problem before it ends the checks.
        """
        if self.key and (self.complete or not self.problems):
            return "checked"
        return "not checked" if self.signed or self.key else None

    @property
    def files(self) -> Mapping[str, int]:
        """Bytes of each file of the folder."""
        return {name: (self.folder / name).stat().st_size for name in list_files(self.folder)}

    @property
    def record(self) -> ReleaseFile:
        """release.json of the folder."""
        return read_record(ReleaseFile, self.folder / RECORD)


def verify(
    folder: str | os.PathLike[str],
    *,
    all: bool = False,
    key: str | os.PathLike[str] | None = None,
) -> Verification:
    """Check a released folder offline: hashes, files, records, signature.

        assert not stamm.verify("release").problems

    all       look for every problem, not only for the first
    key       public key (PEM) that the signature must hold for
    Raises    RunError when it is not a folder; DataError when `key` does not exist
    """
    root, public = Path(folder), Path(key) if key else None
    problems = problems_of(root, public)
    return Verification(
        folder=root,
        problems=tuple(problems if all else itertools.islice(problems, 1)),
        complete=all,
        signed=(root / SIGNATURE).is_file(),
        key=public,
    )
