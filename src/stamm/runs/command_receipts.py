"""Receipts of commands: what `stamm evaluate`, `audit`, `export`, `observe`, `report` and `release` wrote into a run.

They are in receipts/NAME.json of the run folder, in the form of those of steps, and read like them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

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
from stamm.runs.schemas.run import ReceiptFile


@contextlib.contextmanager
def recorded(root: Path, name: str, folder: Path) -> Iterator[None]:
    """Leave a receipt of what the command `name` writes below `folder` of the run at `root`, also if it fails.

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
