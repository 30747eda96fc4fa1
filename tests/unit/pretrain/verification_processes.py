"""Started by torchrun: train on a packed corpus that counts as large, and note how the run ended.

Arguments   the packed corpus, the folder of the run. Each process writes its error to error-RANK.txt
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stamm.base.console import NoProgress
from stamm.base.errors import StammError
from stamm.base.shutdown import exit_immediately
from stamm.engine.distributed import destroy_process_group
from stamm.pretrain import job
from stamm.runs.job import Workspace
from tests.unit.pretrain.test_background_verification import CONFIG


def main() -> None:
    """Train."""
    pack, folder = map(Path, sys.argv[1:])
    job.READ_FIRST = 0
    error = ""
    try:
        job.run(CONFIG, Workspace(folder=folder, inputs={"pack": pack}, progress=NoProgress()))
    except StammError as failure:
        error = str(failure)
    (folder / f"error-{os.environ['RANK']}.txt").write_text(error)
    destroy_process_group()
    exit_immediately(0)


if __name__ == "__main__":
    main()
