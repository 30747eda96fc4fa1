"""Work that a worker process can import: counts the lines of a file, with faults on demand."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from stamm.base.errors import DataError
from stamm.base.files import write_text
from stamm.runs.tasks import Batch, Outcome, Task


def count_lines(batch: Batch, task: Task) -> Outcome:
    """Copy the lines that do not begin with '#', and say how often this shard was begun."""
    lines = Path(task.inputs["text"]).read_text().splitlines()
    kept = [line for line in lines if not line.startswith("#")]
    if log := batch.settings.get("log"):
        with Path(log).open("a") as opened:
            opened.write(f"{task.name} {os.getpid()}\n")
    _faults(batch, task, lines)
    write_text(batch.folder / f"out-{task.name}.txt", "".join(f"{line}\n" for line in kept))
    return Outcome(
        outputs=(f"out-{task.name}.txt",),
        came_in=len(lines) + batch.settings.get("lost", 0),
        kept=len(kept),
        dropped={"comment": len(lines) - len(kept)} if len(lines) > len(kept) else {},
    )


def _faults(batch: Batch, task: Task, lines: list[str]) -> None:
    if "die" in lines:
        os.kill(os.getpid(), signal.SIGKILL)
    if "die once" in lines:
        flag = Path(batch.settings["flag"] + task.name)
        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if "bad" in lines:
        raise DataError(f"{task.inputs['text']} is bad", fix="Mend it")
    if "defect" in lines:
        raise ZeroDivisionError("a defect")
    time.sleep(batch.settings.get("seconds", 0))
    print("a library that talks on stdout")
