"""A folder of another run's corpus, taken into a run.

Reads    inputs["taken"], a folder that a step of the other run wrote
Writes   its files: as second names of the same files where the file system allows it, else as copies
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from stamm.base.files import atomic, link, remove_leftovers
from stamm.base.receipts import check_file
from stamm.runs.job import Workspace


@dataclass(frozen=True, kw_only=True)
class TakeConfig:
    """files   names of the files to take; (): all"""

    files: tuple[str, ...] = ()


def take_files(config: TakeConfig, workspace: Workspace) -> None:
    """Take the files, each compared with the hash that its run recorded.

    Raises   DataError for a file that is missing or has other content
    """
    remove_leftovers(workspace.folder)
    source = workspace.inputs["taken"]
    names = config.files or sorted(
        path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()
    )
    for name in names:
        check_file(source / name)
        if not link(source / name, workspace.folder / name):
            with atomic(workspace.folder / name) as path:
                shutil.copyfile(source / name, path)
