"""Reuse of another run's corpus: its tokenizer, packed tokens and summary.

Reads    inputs["reused"], a folder that a step of the other run wrote
Writes   its files: hard links where the file system allows them, else copies
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from stamm.base.errors import DataError
from stamm.base.files import atomic, link, remove_leftovers
from stamm.base.receipts import check_file, check_present, receipts_below
from stamm.runs.job import Workspace


@dataclass(frozen=True, kw_only=True)
class ReuseConfig:
    """files   names of the files to reuse; (): all that the other run has recorded"""

    files: tuple[str, ...] = ()


def reuse_files(config: ReuseConfig, workspace: Workspace) -> None:
    """Link or copy the files, each compared with the hash that its run recorded.

    Raises   DataError for a file that is missing, has other content, or was not recorded
    """
    remove_leftovers(workspace.folder)
    source = workspace.inputs["reused"]
    recorded = receipts_below(source)
    names = config.files or tuple(recorded)
    if not names or not recorded.keys() >= set(names):
        raise DataError(
            f"{source} has no record of its files",
            fix="Name the folder of a run with its manifest.json and steps/",
        )
    for name in names:
        check_present(source, name)
        check_file(source / name)
        if not link(source / name, workspace.folder / name):
            with atomic(workspace.folder / name) as path:
                shutil.copyfile(source / name, path)
