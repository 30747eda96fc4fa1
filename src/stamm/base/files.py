"""Files that are whole or not there: atomic writes, content hashes, JSON with one spelling."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError, RunError
from stamm.base.units import bytes_text

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, moved onto it when the block ends well.

    The file is flushed to disk before it takes its name, and so is the folder after: a
    kill at any moment leaves either the old file or the new one. When the block raises, the
    temporary file is removed.

    Raises   RunError when the disk is full, naming what was being written and the room left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Processes of two machines, or in two containers, may have the same number.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        temporary.unlink()
        yield temporary
        temporary.chmod(mode)  # safetensors makes files that only their owner can read
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if is_full(error):
            raise no_room(path) from error
        raise


def is_full(error: BaseException) -> bool:
    """Whether `error` says that a disk, a quota or a limit on file size is used up."""
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM
    # Libraries in Rust and C++ report the operating system's error only in words.
    said = str(error)
    return any(
        f"(os error {number})" in said or f": {os.strerror(number)}" in said for number in _NO_ROOM
    )


def no_room(path: Path) -> RunError:
    """The error for a disk (or a quota) that filled up while `path` was written."""
    free = shutil.disk_usage(path.parent).free
    return RunError(
        f"no room left to write {path}: {bytes_text(free)} free there",
        fix="Nothing half-written was kept. Free some room and run the same command again",
    )


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files and folders that a killed process left in `folder` and below it."""
    if folder.is_dir():
        for part in sorted(folder.rglob(".*.part")):
            if part.is_dir():
                shutil.rmtree(part)
            else:
                part.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, whole or not at all."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` as indented JSON, keys in the order given."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The JSON value in `path`.

    Raises   DataError when the file is missing or not JSON, or nested or long beyond what is read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, a tower of brackets
        raise DataError(f"{path} is not JSON: {error}", fix="Restore or delete the file") from None


def canonical_json(value: Any) -> bytes:
    """One spelling per value: sorted keys, no blanks. What content hashes are made of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sha256_bytes(data: bytes) -> str:
    """SHA-256 of `data`, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sha256_value(value: Any) -> str:
    """SHA-256 of a JSON value in its canonical spelling."""
    return sha256_bytes(canonical_json(value))


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
