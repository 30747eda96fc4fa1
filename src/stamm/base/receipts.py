"""Receipts of a run: the SHA-256 that each file must have. Whatever is read from a run is checked against them.

A finished step leaves steps/NAME.json in the run folder, a command such as `stamm evaluate` leaves
receipts/NAME.json, and a release has SHA256SUMS. `read_json`, `read_record`, the readers of Parquet
files, tokens, tokenizers and weights call `check_file`, so every consumer of a run is covered.

config.json and manifest.json of a run, and the receipts themselves, change or have no writer that
leaves a receipt: they contain their own hash (`seal`). Without both: log/, which holds times of the wall
clock, the lock, checkpoints (state.json has the hashes), and files of a step that has not finished.

Checked  tests/unit/base/test_receipts.py, tests/cli/test_altered_files.py
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError

STEPS, COMMANDS, SUMS = "steps", "receipts", "SHA256SUMS"
SEAL = "self_sha256"
_RELEASE = "release.json"
_SUM = re.compile(r"([0-9a-f]{64})  (.+)")
_FRESH_S = 1.0  # for which the receipts of a folder are not looked up again
_RACY_NS = (
    1_000_000_000  # a file that changed later than this before it was hashed may change unseen
)
_LARGEST = 256 * 2**20

Stamp = tuple[int, int, int, int]


@dataclass(frozen=True)
class Receipt:
    """The SHA-256 that a file must have, and what wrote it: "step pretrain.xielu"."""

    sha256: str
    writer: str
    ended: float = 0.0


_hashes: dict[Path, tuple[Stamp, str]] = {}
_tables: dict[Path, tuple[float, Mapping[str, Receipt]]] = {}
_being_written: dict[Path, Mapping[Path, Stamp]] = {}
_lock = threading.Lock()


def check_file(path: Path) -> None:
    """Check that a file has the SHA-256 of its receipt; a file without a receipt is not checked.

    A file is hashed once per process, and again when its size, inode or times change.

    Raises   DataError with the file, both hashes, what wrote it, and the fix.
    """
    receipt = receipt_of(path)
    if receipt is None or _is_being_written(path):
        return
    try:
        sha256 = file_sha256(path)
    except OSError:
        return  # its reader reports that it is missing or unreadable
    if sha256 == receipt.sha256:
        return
    receipt = receipt_of(path, fresh=True)  # another process may have written both
    if receipt is not None and receipt.sha256 != file_sha256(path):
        raise DataError(
            f"{path} differs from what {receipt.writer} wrote: it has SHA-256 {sha256[:12]}, and "
            f"{receipt.sha256[:12]} is recorded",
            fix="Restore it from a copy, or run what wrote it again",
        )


def receipt_of(path: Path, *, fresh: bool = False) -> Receipt | None:
    """The latest receipt of a file, None for a file that none lists.

    fresh   whether receipts are read again that this process has read within a second
    """
    for full in dict.fromkeys((_full(path), path.resolve())):
        # A step of a run and a command on a folder in it may both have written the file.
        found = [
            receipt
            for folder in full.parents
            if (table := _receipts(folder, fresh))
            and (receipt := table.get(full.relative_to(folder).as_posix()))
        ]
        if found:
            return max(found, key=lambda receipt: receipt.ended)
    return None


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
            for name, receipt in _receipts(folder, False).items()
            if name == inside or name.startswith(prefix)
        }
        if listed:
            return dict(sorted(listed.items()))
    return {}


def is_covered(path: Path) -> bool:
    """Whether a receipt lists a file, or it contains its own hash, or is of a checkpoint, whose state has it.

    Raises   DataError for a file that does not have the hash that it contains, or that is damaged.
    """
    if receipt_of(path) is not None or (path.parent.parent.name == "checkpoints"):
        return True
    if path.suffix != ".json" or path.stat().st_size > _LARGEST:
        return False
    try:
        plain = json.loads(path.read_bytes())
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


def _receipts(folder: Path, fresh: bool) -> Mapping[str, Receipt]:
    """Receipts by path relative to `folder`, when it is the folder of a run or a release."""
    now = time.monotonic()
    known = _tables.get(folder)
    if known is not None and now - known[0] < _FRESH_S and not fresh:
        return known[1]
    table = _read_receipts(folder)
    with _lock:
        _tables[folder] = now, table
    return table


def _read_receipts(root: Path) -> Mapping[str, Receipt]:
    table: dict[str, Receipt] = {}
    if (root / SUMS).is_file() and (root / _RELEASE).is_file():
        text = (root / SUMS).read_bytes().decode(errors="replace")
        for line in text.splitlines():
            if entry := _SUM.fullmatch(line):
                table[entry[2]] = Receipt(entry[1], f"the release ({SUMS})")
    for folder, kind in ((STEPS, "step"), (COMMANDS, "command")):
        if (root / folder).is_dir():
            for path in sorted((root / folder).glob("*.json")):
                _add(table, path, kind)
    return table


def _add(table: dict[str, Receipt], path: Path, kind: str) -> None:
    """Add the outputs of one receipt, unless a later one lists them."""
    try:
        plain = json.loads(path.read_bytes()) if path.stat().st_size <= _LARGEST else None
    except (OSError, ValueError, RecursionError):
        if path.exists():
            raise DataError(
                f"{path} is not a receipt",
                fix="Restore it from a copy, or delete it and run the step again",
            ) from None
        return  # its step was started again
    check_seal(plain, path)
    if not (isinstance(plain, dict) and isinstance(plain.get("folder"), str)):
        return
    ended, outputs = plain.get("ended"), plain.get("outputs")
    if not (isinstance(ended, int | float) and isinstance(outputs, dict)):
        return
    for name, facts in outputs.items():
        full = Path(os.path.normpath(Path(plain["folder"], name))).as_posix()
        if full not in table or table[full].ended <= ended:
            table[full] = Receipt(str(facts["sha256"]), f"{kind} {plain.get('step')}", float(ended))
