"""Receipts of a run: the SHA-256 that each file must have. Whatever is read from a run is checked against them.

A finished step leaves steps/NAME.json in the run folder, a command such as `stamm evaluate` leaves
receipts/NAME.json, a release has SHA256SUMS, and an exported folder has parity.json. `read_json`,
`read_record`, the readers of Parquet files, tokens, tokenizers and weights call `check_file`, so every
consumer of a run is covered.

manifest.json of a complete run lists the SHA-256 of config.json, log/rates.json and every receipt of a step, so none of
them can be removed or exchanged alone, and a file that no receipt lists is not read. The manifest and the
receipts contain their own hash (`seal`). Without a signature this proves only that the parts agree: files,
receipts and a manifest that were rewritten together are not detected.

Without a receipt, and not read from a complete run: log/run.log, log/trackers/, steps/NAME.begun, the lock, and
parts of sharded steps.

Checked  tests/unit/base/test_receipts.py, tests/cli/test_altered_files.py
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from stamm.base.errors import DataError
from stamm.base.json_text import parse_json

STEPS, COMMANDS, SUMS = "steps", "receipts", "SHA256SUMS"
SEAL = "self_sha256"
CONFIG, MANIFEST = "config.json", "manifest.json"
FILES = "files"  # key of the manifest: SHA-256 by name of config.json and the receipts of steps
_RELEASE, _PARITY = "release.json", "parity.json"
_CHECKPOINTS, _STATE = "checkpoints", "state.json"
_RUN_AGAIN = "Restore it from a copy, or repeat the `stamm run`"
_SUM = re.compile(r"([0-9a-f]{64})  (.+)")
_FRESH_S = 1.0  # how long receipts of a folder are used before they are read again
_RACY_NS = (
    1_000_000_000  # a file that changed later than this before it was hashed may change unseen
)
_LARGEST = 256 * 2**20

Stamp = tuple[int, int, int, int]


@dataclass(frozen=True)
class Receipt:
    """The SHA-256 that a file must have, and what wrote it: "step pretrain.xielu".

    is_record   whether the file is a record of the step, such as its timing, on which no step depends
    """

    sha256: str
    writer: str
    ended: float = 0.0
    is_record: bool = False


@dataclass(frozen=True)
class _Table:
    """The receipts in one folder.

    receipts   by path relative to it
    complete   whether they are of a complete run, in which nothing is read without a receipt
    problem    raised for every file but those of the run itself
    stamps     of the files that were read
    """

    receipts: dict[str, Receipt] = field(default_factory=dict)
    complete: bool = False
    problem: DataError | None = None
    stamps: tuple[tuple[Path, Stamp], ...] = ()


_hashes: dict[Path, tuple[Stamp, str]] = {}
_tables: dict[Path, tuple[float, _Table]] = {}
_resumed: set[Path] = set()
_being_written: dict[Path, Mapping[Path, Stamp]] = {}
_lock = threading.Lock()


def check_file(path: Path) -> None:
    """Check that a file has the SHA-256 of its receipt.

    A file is hashed once per process, and again when its size, inode or times change.

    Edge     a file without a receipt is not checked outside of complete runs
    Raises   DataError with the file, both hashes, what wrote it, and the fix; for a file that is in a
             complete run and that no step and no command has written; for a receipt that is missing
    """
    if _is_being_written(path):
        return
    receipt = receipt_of(path)
    if receipt is None:
        if not _is_unlisted(path) or not path.exists():
            return
        receipt = receipt_of(path, fresh=True)  # another process may have written both
        if receipt is None and (root := _is_unlisted(path)):
            raise DataError(
                f"{path} has no receipt: no step and no command of {root} wrote it",
                fix="Move it out of the run folder, or restore the receipt",
            )
    try:
        sha256 = file_sha256(path)
    except OSError:
        return  # its reader reports that it is missing or unreadable
    if receipt is None or sha256 == receipt.sha256:
        return
    receipt = receipt_of(path, fresh=True)
    if receipt is not None and receipt.sha256 != file_sha256(path):
        raise DataError(
            f"{path} differs from what {receipt.writer} wrote: it has SHA-256 {sha256[:12]}, and "
            f"{receipt.sha256[:12]} is recorded",
            fix="Restore it from a copy, or repeat the command that wrote it",
        )


def receipt_of(path: Path, *, fresh: bool = False) -> Receipt | None:
    """The latest receipt of a file, None for a file that none lists.

    fresh    whether receipts are read again that this process has read within a second
    Raises   DataError for a receipt that is damaged, missing or of another run
    """
    for full in dict.fromkeys((_full(path), path.resolve())):
        # A step of a run and a command on a folder in it may both have written the file.
        receipts = []
        for folder in full.parents:
            table, name = _table(folder, fresh), full.relative_to(folder).as_posix()
            if table.problem and not _is_of_the_run(name) and folder not in _resumed:
                raise table.problem
            if receipt := table.receipts.get(name):
                receipts.append(receipt)
        if receipts:
            return max(receipts, key=lambda receipt: receipt.ended)
        if receipt := _of_checkpoint(full):
            return receipt
    return None


def _of_checkpoint(full: Path) -> Receipt | None:
    """The receipt of a shard of a checkpoint, whose SHA-256 is in state.json."""
    state = full.with_name(_STATE)
    if full.parents[1:2] and full.parents[1].name == _CHECKPOINTS and full != state:
        receipt = receipt_of(state)
        if receipt is not None:
            check_file(state)
            plain = _read(state)
            hashes = plain.get("sha256") if isinstance(plain, dict) else None
            if isinstance(hashes, dict) and full.name in hashes:
                return Receipt(str(hashes[full.name]), receipt.writer)
    return None


def _is_unlisted(path: Path) -> Path | None:
    """The complete run that a file without a receipt is in; None in a run inside it that is not complete."""
    full = _full(path)
    for folder in full.parents:
        if _table(folder, False).complete:
            name = full.relative_to(folder).as_posix()
            return None if _is_of_the_run(name) or folder in _resumed else folder
        if (folder / STEPS).is_dir():  # rounds of a search are runs inside one
            return None
    return None


def _is_of_the_run(name: str) -> bool:
    """Whether a file of a run belongs to the run itself and not to a step."""
    return name in (CONFIG, MANIFEST) or name.partition("/")[0] in (STEPS, COMMANDS)


@contextlib.contextmanager
def resumed(root: Path) -> Iterator[None]:
    """Accept receipts that are missing or damaged in the run at `root`: its steps are executed again."""
    full = _full(root)
    _resumed.add(full)
    try:
        yield
    finally:
        _resumed.discard(full)


def receipts_below(path: Path) -> dict[str, str]:
    """SHA-256 of what receipts list below `path`, by name relative to it; of `path` itself under "".

    They are those of the nearest folder above that has any; {} where none has.
    """
    full = _full(path)
    for folder in (full, *full.parents):
        inside = full.relative_to(folder).as_posix()
        prefix = "" if inside == "." else f"{inside}/"
        listed = {
            name.removeprefix(prefix) if name != inside else "": receipt.sha256
            for name, receipt in _table(folder, False).receipts.items()
            if (name == inside or name.startswith(prefix)) and not receipt.is_record
        }
        if listed:
            return dict(sorted(listed.items()))
    return {}


def is_present(path: Path) -> bool:
    """Whether a file of a run exists.

    Raises   DataError for one that a step or a command has written: it would be left out of a result
    """
    check_present(path.parent, path.name)
    return path.exists()


def check_present(folder: Path, pattern: str) -> None:
    """Check that the files below `folder` exist that a step or a command has written.

    pattern   of their names relative to `folder`, as for `Path.glob`, without **

    Edge      checkpoints and logs may be deleted
    Raises    DataError with what is missing and what wrote it
    """
    full = _full(folder)
    for root in (full, *full.parents):
        inside = full.relative_to(root)
        for name, receipt in _table(root, False).receipts.items():
            path = PurePath(name)
            if not path.is_relative_to(inside) or (receipt.is_record and may_be_deleted(name)):
                continue
            below = path.relative_to(inside)
            fits = len(below.parts) == pattern.count("/") + 1 and below.match(pattern)
            if fits and not (root / name).is_file() and root not in _resumed:
                what = "is not a file" if (root / name).exists() else "is missing"
                raise DataError(
                    f"{root / name}, which {receipt.writer} wrote, {what}",
                    fix="Restore it from a copy, or repeat the command that wrote it",
                )


def may_be_deleted(record: str) -> bool:
    """Whether a file that a step wrote beside its outputs may be missing: a log or a checkpoint."""
    return bool({_CHECKPOINTS, "log"} & set(PurePath(record).parts))


def is_covered(path: Path) -> bool:
    """Whether a receipt lists a file, or it contains its own hash.

    Raises   DataError for a file that does not have the hash that it contains, or that is damaged.
    """
    if receipt_of(path) is not None:
        return True
    if path.suffix != ".json" or path.stat().st_size > _LARGEST:
        return False
    try:
        plain = parse_json(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}", fix="Restore it from a copy") from None
    check_seal(plain, path)
    return isinstance(plain, dict) and SEAL in plain


def forget(root: Path) -> None:
    """Look the receipts of the run at `root` up again: this process has written one."""
    with _lock:
        _tables.pop(_full(root), None)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, computed once per process and content: by inode, size and times."""
    key = _full(path)
    stamp = stamp_of(path)
    known = _hashes.get(key)
    if known is not None and known[0] == stamp:
        return known[1]
    began = time.time_ns()
    with path.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    if stamp == stamp_of(path) and max(stamp[2:]) < began - _RACY_NS:
        _hashes[key] = stamp, sha256
    return sha256


def stamp_of(path: Path) -> Stamp:
    """Inode, size and times of a file, one of which changes when it is written."""
    state = path.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def begin_writing(folder: Path) -> Mapping[Path, Stamp]:
    """Stamps of the files below `folder`, which a command of this process now writes to.

    Until `end_writing`, files there that have changed are the command's own, without a receipt yet.
    """
    stamps = {path: stamp_of(path) for path in files_below(folder)}
    _being_written[_full(folder)] = stamps
    return stamps


def end_writing(folder: Path) -> None:
    """End what `begin_writing` began."""
    _being_written.pop(_full(folder), None)


def files_below(folder: Path) -> list[Path]:
    """Absolute paths of all files below `folder` without hidden ones, sorted."""
    root = _full(folder)
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """`content` with its own SHA-256, which `check_seal` compares."""
    plain = json.loads(json.dumps({key: content[key] for key in content if key != SEAL}))
    return {**plain, SEAL: _own_hash(plain)}


def check_seal(value: object, path: Path) -> None:
    """Check a JSON object that contains its own SHA-256.

    Raises   DataError when it has changed since it was written.
    """
    if isinstance(value, dict) and SEAL in value:
        rest = {key: value[key] for key in value if key != SEAL}
        if value[SEAL] != _own_hash(rest):
            raise DataError(
                f"{path} was changed after it was written: it does not have the SHA-256 that it states",
                fix="Restore it from a copy",
            )


def _own_hash(plain: object) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _full(path: Path) -> Path:
    return Path(os.path.normpath(path.absolute()))


def _is_being_written(path: Path) -> bool:
    full = _full(path)
    for folder, stamps in _being_written.items():
        if full.is_relative_to(folder):
            try:
                return stamps.get(full) != stamp_of(path)
            except OSError:
                return True
    return False


def _table(folder: Path, fresh: bool) -> _Table:
    """The receipts in a folder, when it is that of a run, a release or an export."""
    now = time.monotonic()
    known = _tables.get(folder)
    if known is not None and not fresh:
        if now - known[0] < _FRESH_S:
            return known[1]
        if _stamps(folder) == known[1].stamps:
            _tables[folder] = now, known[1]
            return known[1]
    stamps = _stamps(folder)
    table = _read_table(folder, stamps) if stamps else _Table()
    with _lock:
        _tables[folder] = now, table
    return table


def _stamps(root: Path) -> tuple[tuple[Path, Stamp], ...]:
    """The files of a folder that list hashes, and their stamps."""
    paths = [root / SUMS, root / _RELEASE, root / _PARITY, root / MANIFEST]
    for folder in (STEPS, COMMANDS):
        if (root / folder).is_dir():
            paths += sorted((root / folder).glob("*.json"))
    stamps = []
    for path in paths:
        with contextlib.suppress(OSError):
            stamps.append((path, stamp_of(path)))
    return tuple(stamps)


def _read_table(root: Path, stamps: tuple[tuple[Path, Stamp], ...]) -> _Table:
    receipts: dict[str, Receipt] = {}
    paths = [path for path, _ in stamps]
    if root / _PARITY in paths:
        plain = _read(root / _PARITY)
        hashes = plain.get("sha256") if isinstance(plain, dict) else None
        for name, sha256 in hashes.items() if isinstance(hashes, dict) else ():
            receipts[str(name)] = Receipt(str(sha256), f"the export ({_PARITY})")
    if root / SUMS in paths and root / _RELEASE in paths:
        text = (root / SUMS).read_bytes().decode(errors="replace")
        for line in text.splitlines():
            if entry := _SUM.fullmatch(line):
                receipts[entry[2]] = Receipt(entry[1], f"the release ({SUMS})")
    steps, commands = ([p for p in paths if p.parent == root / name] for name in (STEPS, COMMANDS))
    complete = False
    try:
        tied, complete = _tied_files(root)
        for name, sha256 in tied.items():
            receipts[name] = Receipt(sha256, f"the run ({MANIFEST})")
            if name.startswith(f"{STEPS}/"):
                _check_tied(root / name, sha256)
        num_steps = sum(_add(receipts, path, "step") for path in steps)
        own = receipts[CONFIG].sha256 if CONFIG in tied else ""
        for path in commands:
            _add(receipts, path, "command", own)
        if num_steps and _read(root / MANIFEST) is None:
            what = "is not JSON" if (root / MANIFEST).exists() else f"is missing beside {STEPS}/"
            raise DataError(f"{root / MANIFEST} {what}", fix=_RUN_AGAIN)
    except DataError as error:
        return _Table(receipts, complete, error, stamps)
    return _Table(receipts, complete, None, stamps)


def _tied_files(root: Path) -> tuple[Mapping[str, str], bool]:
    """The SHA-256 that the manifest of a run lists, and whether the run is complete.

    Raises   DataError when the manifest was changed
    """
    plain = _read(root / MANIFEST)
    if not isinstance(plain, dict) or SEAL not in plain or FILES not in plain:
        return {}, False
    check_seal(plain, root / MANIFEST)
    files = plain[FILES]
    if not (isinstance(files, dict) and all(isinstance(sha, str) for sha in files.values())):
        raise DataError(f"{root / MANIFEST} does not list the receipts of its run", fix=_RUN_AGAIN)
    return files, plain.get("state") == "complete"


def _check_tied(path: Path, sha256: str) -> None:
    """Check that a receipt is the one that the manifest lists."""
    if not path.is_file():
        release = path.parents[2]  # it contains the receipts of what it contains
        if (release / SUMS).is_file() and (release / _RELEASE).is_file():
            return
        what = f"{path} is missing, and {MANIFEST} of its run lists it"
    elif file_sha256(path) != sha256:
        what = f"{path} is not the receipt that {MANIFEST} of its run lists"
    else:
        return
    raise DataError(what, fix=_RUN_AGAIN)


def _read(path: Path) -> Any:
    """The JSON value of a file; None where it is missing or damaged, which its reader reports."""
    try:
        return parse_json(path.read_bytes()) if path.stat().st_size <= _LARGEST else None
    except (OSError, ValueError, RecursionError):
        return None


def _add(table: dict[str, Receipt], path: Path, kind: str, run: str = "") -> bool:
    """Add the outputs of one receipt, unless a later one lists them; whether it is a receipt.

    run   SHA-256 of config.json that the receipt of a command must name
    """
    plain = _read(path)
    if plain is None:
        if path.exists():
            raise DataError(
                f"{path} is not a receipt",
                fix="Restore it from a copy, or delete it and run the step again",
            )
        return False  # its step was started again
    check_seal(plain, path)
    if not (isinstance(plain, dict) and isinstance(plain.get("folder"), str)):
        return False
    ended, outputs, records = plain.get("ended"), plain.get("outputs"), plain.get("records", {})
    if not isinstance(ended, int | float):
        return False
    if not (isinstance(outputs, dict) and isinstance(records, dict)):
        return False
    if run and plain.get("run", run) != run:
        raise DataError(
            f"{path} is a receipt of another run: it names a {CONFIG} with SHA-256 "
            f"{str(plain['run'])[:12]}, and the run has {run[:12]}",
            fix="Delete it and repeat the command",
        )
    for name, facts in {**outputs, **records}.items():
        full = Path(os.path.normpath(Path(plain["folder"], name))).as_posix()
        if full not in table or table[full].ended <= ended:
            writer = f"{kind} {plain.get('step')}"
            table[full] = Receipt(str(facts["sha256"]), writer, float(ended), name in records)
    return True
