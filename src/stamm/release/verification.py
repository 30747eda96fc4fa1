"""`stamm.verify`: check a released folder. Needs no extra: who receives a release can check it."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stamm.base.errors import ConfigError, DataError, StammError
from stamm.base.extras import missing_library
from stamm.base.files import read_json
from stamm.base.processor import use_portable_code
from stamm.base.schema import read_record
from stamm.release.checksums import list_files
from stamm.release.consent_proof import verify_receipt
from stamm.release.layout import RECORD, RUN, SIGNATURE, arm_folder
from stamm.release.records import ConsentReceipt, Problem, ReleaseFile

if TYPE_CHECKING:
    from stamm.release.replay import Replay

# The last two need libraries that a check of hashes does not.
_FILES = "stamm.release.verify:verify"
_DEEP, _REPLAY = "stamm.release.derived:derived_problems", "stamm.release.replay:replay"


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Result of the check of a released folder.

    problems    the first, or all
    complete    whether all were looked for
    signed      whether the folder has a signature
    key         the public key that the signature was checked with; None: it was not
    replayed    segments of training that were repeated; None: none were asked for, or a problem came first
    seed        that picked them
    derived     files that were derived again, and sentences about those that cannot be; () without `deep`
    receipt     of a consent receipt that holds, and nothing else was checked; None for a folder
    """

    folder: Path
    problems: tuple[Problem, ...]
    complete: bool
    signed: bool
    key: Path | None = None
    replayed: Replay | None = None
    seed: int | None = None
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
    replay: int | None = None,
    seed: int | None = None,
    pack: str | os.PathLike[str] | None = None,
) -> Verification:
    """Check a released folder offline: hashes, files, records, signature; more with `deep` and `replay`. Or a consent receipt.

        assert not stamm.verify("release").problems

    folder    of a release, or the file of a consent receipt
    all       look for every problem, not only for the first
    key       public key (PEM) that the signature must hold for
    deep      derive exported files and tables again from the weights and the records; needs the libraries
              that write them
    replay    number of segments between checkpoints to train again; needs the libraries of training
    seed      picks the segments; None: a random one
    pack      packed corpus of the run; None: run/pack of the release
    release   of a receipt: the folder whose ledger it must be of; None: the root that it names
    Raises    RunError when it is not a folder; DataError when `key` does not exist; ConfigError for options of a
              folder with a receipt, for `release` with a folder, and for a seed or a corpus without `replay`;
              what `release.replay.replay` raises
    """
    root, public = Path(folder), Path(key) if key else None
    if replay is None and (seed is not None or pack is not None):
        raise ConfigError(
            f"{'seed' if pack is None else 'pack'} is given, and no segment is replayed",
            fix="Set replay=N, with --replay N",
        )
    if root.is_file():
        if all or key or deep or replay:
            raise ConfigError(
                f"{root} is a receipt: --all, --key, --deep and --replay are of a folder"
            )
        return _receipt(root, Path(release) if release else None)
    if release:
        raise ConfigError(f"--release is given, and {root} is not the file of a receipt")
    if replay is not None:
        _set_environment(root)
    reported, derived = _loaded(_FILES)(root, public), list[str]()
    if deep:
        reported = itertools.chain(reported, _loaded(_DEEP)(root, derived.append))
    problems = tuple(reported if all else itertools.islice(reported, 1))
    replayed: Replay | None = None
    if replay is not None and not problems:
        seed = secrets.randbits(32) if seed is None else seed
        corpus = Path(pack) if pack else root / RUN / "pack"
        replayed = _loaded(_REPLAY)(root, corpus, replay, seed)
        problems = tuple(_replay_problems(replayed))
    return Verification(
        folder=root,
        problems=problems if all else problems[:1],
        complete=all,
        signed=(root / SIGNATURE).is_file(),
        key=public,
        derived=tuple(dict.fromkeys(derived)),
        replayed=replayed,
        seed=seed,
    )


def _set_environment(root: Path) -> None:
    """Set the environment of a run with portable bits, which torch reads when it is loaded."""
    for path in root.glob(f"{arm_folder('*')}/config.json"):
        # What is damaged is found by the checks. A pipe would never end.
        with contextlib.suppress(StammError, OSError, RecursionError):
            if path.is_file():
                use_portable_code(read_json(path))


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


def _loaded(reference: str) -> Any:
    """A function of stamm whose libraries are an extra."""
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if (missing := missing_library(error)) is None:
            raise
        raise missing from error


def _replay_problems(replayed: Replay) -> Iterator[Problem]:
    arm = arm_folder(replayed.arm)
    if replayed.model_problem:
        yield Problem(file=f"{arm}/model", what=replayed.model_problem)
    for segment in replayed.picked:
        if segment.problem:
            yield Problem(file=f"{arm}/checkpoints/step-{segment.last:08d}", what=segment.problem)
