"""Atomic writes, content hashes and canonical JSON."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError, RunError
from stamm.base.json_text import parse_json
from stamm.base.receipts import check_file, check_seal
from stamm.base.units import bytes_text

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that replaces `path` when the block ends without an error.

    File and folder are flushed to disk (fsync), so that a kill at any moment leaves either the old
    file or the new one. When the block raises, the temporary file is removed.

    Raises   RunError when the disk is full, with the path and the free space.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Processes on two machines, or in two containers, may have the same id.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        temporary.unlink()
        yield temporary
        temporary.chmod(mode)  # safetensors creates files with mode 0600
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if is_full(error):
            raise disk_full_error(path) from error
        raise


_CUT_SHORT = re.compile(r"\d+ requested and \d+ written")


def is_full(error: BaseException) -> bool:
    """Whether `error` reports a full disk, an exceeded quota or file size limit."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _DISK_FULL
    # Libraries in Rust and C++ report the operating system's error only as text, and numpy's tofile by two counts.
    text = str(error)
    return _CUT_SHORT.fullmatch(text) is not None or any(
        f"(os error {number})" in text or f": {os.strerror(number)}" in text
        for number in _DISK_FULL
    )


def disk_full_error(path: Path) -> RunError:
    """The error for a disk (or a quota) that filled up while `path` was written."""
    free = shutil.disk_usage(path.parent).free
    return RunError(
        f"no space left to write {path}: {bytes_text(free)} free there",
        fix="Free disk space and run the same command again; no partial file was kept",
    )


def remove(path: Path) -> None:
    """Delete a file, or a folder with what is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files and folders that a killed process left below `folder`."""
    if folder.is_dir():
        for part in sorted(folder.rglob(".*.part")):
            remove(part)


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically."""
    with atomic(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` as indented JSON, keys in the order given."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def json_line(value: Any) -> str:
    """`value` as a line of JSONL; what JSON does not know, such as a date of a Parquet file, as text."""
    return json.dumps(value, ensure_ascii=False, default=str) + "\n"


def read_json(path: Path, fix: str = "Correct it, or restore it from a copy") -> Any:
    """The JSON value in `path`.

    fix      advice of the error for a file that is not JSON

    Raises   DataError when the file is missing or not JSON, or nested too deeply, and when it is a
             file of a run that differs from its receipt.
    """
    check_file(path)
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # also for a number of 5,000 digits or deeply nested brackets
        raise DataError(f"{path} is not JSON: {error}", fix=fix) from None
    check_seal(value, path)
    return value


def canonical_json(value: Any) -> bytes:
    """Canonical JSON for content hashes: sorted keys, no blanks."""
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
