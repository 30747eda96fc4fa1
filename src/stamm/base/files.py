"""Atomic writes, content hashes and canonical JSON."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from stamm.base.errors import ConfigError, DataError, RunError
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
        flush(temporary)
        temporary.replace(path)
        flush(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if is_full(error):
            raise disk_full_error(path) from error
        raise


@contextlib.contextmanager
def atomic_folder(
    folder: Path, keep: Callable[[Path], Path | None] = lambda new: None
) -> Iterator[Path]:
    """A temporary folder beside `folder` that replaces it when the block ends without an error.

    keep     where the previous folder is moved, of the new one; None: it is removed
    Edge     all is flushed to disk before. When the block raises, the previous folder is unchanged; when
             the process is killed between two renames, `recover_folder` restores it.
    Raises   RunError as `atomic` does.
    """
    new, old = folder_part(folder), folder_part(folder, ".old")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        recover_folder(folder)
        new.mkdir()
        yield new
        for path in (*new.rglob("*"), new):
            flush(path)
        kept = keep(new) if folder.exists() else None
        if folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
        if kept is not None:
            kept.parent.mkdir(exist_ok=True)
            remove(kept)
            old.rename(kept)
        elif old.exists():
            old.rename(new)  # an .old.part is always complete; this one is removed below
        flush(folder.parent)
    except BaseException as error:
        if is_full(error):
            raise disk_full_error(folder) from error
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def folder_part(folder: Path, kind: str = "") -> Path:
    """The temporary name of `folder` for this process; kind: ".old" of the previous one."""
    return folder.with_name(f".{folder.name}.{os.getpid()}{kind}.part")


def recover_folder(folder: Path) -> None:
    """Restore or remove temporary folders that killed processes left beside `folder`.

    A process killed between the two renames of `atomic_folder` leaves the complete previous folder
    under a temporary name; other temporary folders are partial. Those of running processes are kept.
    """
    parts = re.compile(rf"\.{re.escape(folder.name)}\.(\d{{1,9}})(\.old)?\.part")
    pattern = f".{glob.escape(folder.name)}.*.part"
    # glob.glob returns nothing for a folder that cannot be listed; Path.glob would raise.
    for name in glob.glob(pattern, root_dir=folder.parent):  # noqa: PTH207
        path, match = folder.with_name(name), parts.fullmatch(name)
        if match is None or path.is_symlink() or not path.is_dir() or _is_running(int(match[1])):
            continue
        if match[2] and not os.path.lexists(folder):
            path.rename(folder)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _is_running(process: int) -> bool:
    """Whether another process with this id is running."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # of another user
    return True


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link(source: Path, path: Path) -> bool:
    """Make `path` a second name of the file `source` (a hard link), atomically; whether that is possible.

    Not possible across file systems, or on one without hard links; a system may also refuse it for
    files of other users.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        os.link(source.resolve(), temporary)
    except OSError:
        return False
    temporary.replace(path)
    temporary.unlink(missing_ok=True)  # a rename between names of one file does nothing
    flush(path.parent)
    return True


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


def new_folder(word: str | os.PathLike[str]) -> Path:
    """The folder `word`, which is written under another name and then renamed.

    Raises   ConfigError for the working folder or one above it, which cannot be replaced.
    """
    folder = Path(word)
    if folder.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise ConfigError(
            f"--out {word} is the working folder, or one above it", fix="Name a folder below it"
        )
    return folder


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


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write a line of JSON for each row to `path`, whole or not at all."""
    with atomic(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(map(json_line, rows))


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


def has_ending(name: str, endings: str | tuple[str, ...]) -> bool:
    """Whether a file name ends in one of `endings`, which are in small letters; "A.JSONL" has ".jsonl"."""
    return name.lower().endswith(endings)
