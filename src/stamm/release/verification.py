"""`stamm.verify`: check a released folder. Needs no extra: who receives a release can check it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.base.errors import ConfigError, DataError
from stamm.base.schema import read_record
from stamm.base.user_code import load_reference
from stamm.release.checksums import list_files
from stamm.release.consent_proof import verify_receipt
from stamm.release.layout import RECORD, SIGNATURE
from stamm.release.records import ConsentReceipt, ReleaseFile
from stamm.release.verify import Problem
from stamm.release.verify import verify as problems_of

_DEEP = "stamm.release.derived:derived_problems"
"""Loads the export targets, which a check of hashes does not need."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Result of the check of a released folder.

    problems    the first, or all
    complete    whether all were looked for
    signed      whether the folder has a signature
    key         the public key that the signature was checked with; None: it was not
    derived     files that were derived again, and sentences about those that cannot be; () without `deep`
    receipt     of a consent receipt that holds, and nothing else was checked; None for a folder
    """

    folder: Path
    problems: tuple[Problem, ...]
    complete: bool
    signed: bool
    key: Path | None = None
    derived: tuple[str, ...] = ()
    receipt: ConsentReceipt | None = None

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
    release: str | os.PathLike[str] | None = None,
    deep: bool = False,
) -> Verification:
    """Check a released folder offline: hashes, files, records, signature. Or a consent receipt.

        assert not stamm.verify("release").problems

    folder    of a release, or the file of a consent receipt
    all       look for every problem, not only for the first
    key       public key (PEM) that the signature must hold for
    deep      derive exported files and tables again from the weights and the records; needs the libraries
              that write them
    release   of a receipt: the folder whose ledger it must be of; None: the root that it names
    Raises    RunError when it is not a folder; DataError when `key` does not exist; ConfigError for `key` or
              `all` with a receipt, and for `release` with a folder
    """
    root, public = Path(folder), Path(key) if key else None
    if root.is_file():
        if all or key or deep:
            raise ConfigError(f"{root} is a receipt: --all, --key and --deep are of a folder")
        return _receipt(root, Path(release) if release else None)
    if release:
        raise ConfigError(f"--release is given, and {root} is not the file of a receipt")
    problems, derived = problems_of(root, public), list[str]()
    if deep:
        again: Any = load_reference(_DEEP, None, "deep verification")
        problems = itertools.chain(problems, again(root, derived.append))
    return Verification(
        folder=root,
        problems=tuple(problems if all else itertools.islice(problems, 1)),
        complete=all,
        signed=(root / SIGNATURE).is_file(),
        key=public,
        derived=tuple(dict.fromkeys(derived)),
    )


def _receipt(path: Path, release: Path | None) -> Verification:
    """The check of a consent receipt."""
    receipt, problems = None, []
    try:
        receipt = verify_receipt(path, release)
    except DataError as error:
        problems.append(Problem(file=path.name, what=error.what))
    return Verification(
        folder=path, problems=tuple(problems), complete=True, signed=False, receipt=receipt
    )
