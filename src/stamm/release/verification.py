"""`stamm.verify`: check a released folder. Needs no extra: who receives a release can check it."""

from __future__ import annotations

import importlib
import itertools
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stamm.base.errors import ConfigError
from stamm.base.extras import missing_library
from stamm.base.schema import read_record
from stamm.release.checksums import list_files
from stamm.release.layout import RECORD, RUN, SIGNATURE, arm_folder
from stamm.release.records import ReleaseFile
from stamm.release.verify import Problem
from stamm.release.verify import verify as problems_of

if TYPE_CHECKING:
    from stamm.release.replay import Replay


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Result of the check of a released folder.

    problems    the first, or all
    complete    whether all were looked for
    signed      whether the folder has a signature
    key         the public key that the signature was checked with; None: it was not
    replayed    segments of training that were repeated; None: none were asked for, or a problem came first
    seed        that picked them
    """

    folder: Path
    problems: tuple[Problem, ...]
    complete: bool
    signed: bool
    key: Path | None = None
    replayed: Replay | None = None
    seed: int | None = None

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
    replay: int | None = None,
    seed: int | None = None,
    pack: str | os.PathLike[str] | None = None,
) -> Verification:
    """Check a released folder offline: hashes, files, records, signature; and training, with `replay`.

        assert not stamm.verify("release").problems

    all       look for every problem, not only for the first
    key       public key (PEM) that the signature must hold for
    replay    number of segments between checkpoints to train again; needs the libraries of training
    seed      picks the segments; None: a random one
    pack      packed corpus of the run; None: run/pack of the release
    Raises    RunError when it is not a folder; DataError when `key` does not exist; ConfigError for a seed or a
              corpus without `replay`; what `release.replay.replay` raises
    """
    root, public = Path(folder), Path(key) if key else None
    if replay is None and (seed is not None or pack is not None):
        raise ConfigError(
            f"{'seed' if pack is None else 'pack'} is given, and no segment is replayed",
            fix="Set replay=N, with --replay N",
        )
    reported = problems_of(root, public)
    problems = tuple(reported if all else itertools.islice(reported, 1))
    replayed = None
    if replay is not None and not problems:
        seed = secrets.randbits(32) if seed is None else seed
        replayed = _replayed(root, Path(pack) if pack else root / RUN / "pack", replay, seed)
        problems = tuple(_replay_problems(replayed))
    return Verification(
        folder=root,
        problems=problems if all else problems[:1],
        complete=all,
        signed=(root / SIGNATURE).is_file(),
        key=public,
        replayed=replayed,
        seed=seed,
    )


def _replayed(root: Path, pack: Path, count: int, seed: int) -> Replay:
    """As `release.replay.replay`, whose libraries are an extra."""
    try:
        module = importlib.import_module("stamm.release.replay")
    except ModuleNotFoundError as error:
        if (missing := missing_library(error)) is None:
            raise
        raise missing from error
    replayed: Replay = module.replay(root, pack, count, seed)
    return replayed


def _replay_problems(replayed: Replay) -> Iterator[Problem]:
    arm = arm_folder(replayed.arm)
    if replayed.model_problem:
        yield Problem(file=f"{arm}/model", what=replayed.model_problem)
    for segment in replayed.picked:
        if segment.problem:
            yield Problem(file=f"{arm}/checkpoints/step-{segment.last:08d}", what=segment.problem)
