"""Receipts of commands: what `stamm evaluate`, `audit`, `export`, `observe`, `report` and `release` wrote into a run.

They are in receipts/NAME.json of the run folder, in the form of those of steps, and read like them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from stamm.base.cache_folder import file_lock, lock_holders
from stamm.base.errors import RunError
from stamm.base.files import read_json, sha256_file, sha256_value
from stamm.base.receipts import (
    COMMANDS,
    CONFIG,
    begin_writing,
    end_writing,
    file_sha256,
    files_below,
    forget,
    receipt_of,
    stamp_of,
)
from stamm.base.schema import write_record
from stamm.runs.records import ReceiptFile


@contextlib.contextmanager
def writing_alone(folder: Path, name: str) -> Iterator[None]:
    """Lock `name`, an output of a command in `folder`, for this process: .NAME.lock there.

    Edge     where the file cannot be created nothing can be written either, and nothing is locked
    Raises   RunError with the process that has locked it.
    """
    path = folder / f".{name}.lock"
    with contextlib.ExitStack() as stack:
        held = False
        while not held:  # the previous holder may have removed the file
            try:
                opened = stack.enter_context(path.open("a"))
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = os.path.samestat(path.stat(), os.fstat(opened.fileno()))
            except BlockingIOError:
                raise RunError(
                    f"another process writes {name} in {folder}{lock_holders(path)}",
                    fix="Wait for it, or stop it",
                ) from None
            except FileNotFoundError:
                continue
            except OSError:
                break
        if held:
            stack.callback(path.unlink, missing_ok=True)
        yield


def report_lock(root: Path) -> contextlib.AbstractContextManager[None]:
    """Wait for other reports of the run at `root`, so that a page and its receipt are of one writer."""
    return file_lock(root / COMMANDS / ".report.lock")


@contextlib.contextmanager
def recorded(root: Path, name: str, folder: Path) -> Iterator[None]:
    """Write a receipt of what the command `name` writes below `folder` of the run at `root`, also if it fails.

    Edge     nothing for a folder outside the run
    Checked  tests/unit/runs/test_command_receipts.py
    """
    if not folder.resolve().is_relative_to(root.resolve()):
        yield
        return
    before = begin_writing(folder)
    began = time.monotonic()
    try:
        yield
    finally:
        changed = [path for path in files_below(folder) if before.get(path) != stamp_of(path)]
        # Commands for other tasks of an arm write to one receipt.
        with file_lock(root / COMMANDS / f".{name}.lock"):
            write_command_receipt(root, name, changed, time.monotonic() - began)
        end_writing(folder)


def write_command_receipt(
    root: Path, name: str, files: Iterable[Path], seconds: float = 0.0
) -> None:
    """Write receipts/NAME.json about `files` in the run at `root`; earlier entries that hold are kept."""
    path = root / COMMANDS / f"{name}.json"
    full = Path(os.path.normpath(root.absolute()))
    outputs = {
        os.path.relpath(file, full): {"bytes": file.stat().st_size, "sha256": file_sha256(file)}
        for file in files
    }
    if not outputs:
        return
    for known, facts in (read_json(path)["outputs"] if path.is_file() else {}).items():
        latest = receipt_of(root / known)
        if (
            known not in outputs
            and (root / known).exists()
            and latest is not None
            and latest.sha256 == facts["sha256"]
        ):
            outputs[known] = facts
    outputs = dict(sorted(outputs.items()))
    receipt = {
        "step": name,
        "digest": sha256_value(outputs),
        "seconds": round(seconds, 3),
        "ended": time.time(),
        "folder": ".",
        "outputs": outputs,
        "run": sha256_file(root / CONFIG) if (root / CONFIG).is_file() else "",
    }
    write_record(path, ReceiptFile, receipt)
    forget(root)
