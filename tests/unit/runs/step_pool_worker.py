"""A worker of tests/unit/runs/test_step_pool.py: stamm.recipes.step_worker with jobs of seconds."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from stamm.base.errors import DataError, StoppedError
from stamm.base.files import write_json
from stamm.recipes import step_worker
from stamm.runs.job import Workspace
from stamm.runs.run import Job


def _job(kind: str) -> Job:
    return _apart


def _apart(config: Any, place: Workspace) -> None:
    name, began = place.folder.name, time.time()
    if name == "damaged":
        until = time.time() + 60
        while not (place.folder.parent / "slow" / "pid").exists() and time.time() < until:
            time.sleep(0.02)
        raise DataError("a file is damaged", where="there", fix="Mend it")
    if name == "broken":
        raise ZeroDivisionError("division by zero")
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name.startswith("slow"):
        (place.folder / "pid").write_text(str(os.getpid()))
        asked: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
        until = time.time() + 60
        while not asked and time.time() < until:
            time.sleep(0.02)
        (place.folder / "asked").touch()
        raise StoppedError("asked to end")
    time.sleep(0.4)
    write_json(place.folder / "out.json", {"began": began, "ended": time.time()})


if __name__ == "__main__":
    step_worker.job = _job
    sys.exit(step_worker.main(sys.argv[1:]))
