"""Work that a worker process can import: counts the lines of a file, with faults on demand."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from stamm.base.errors import DataError
from stamm.base.files import atomic, write_text
from stamm.runs.sharded_job import ShardedJob, ShardResult, ShardTask


def count_lines(batch: ShardedJob, task: ShardTask) -> ShardResult:
    """Copy the lines that do not begin with '#', and say how often this shard was begun."""
    lines = Path(task.inputs["text"]).read_text().splitlines()
    kept = [line for line in lines if not line.startswith("#")]
    if log := batch.settings.get("log"):
        with Path(log).open("a") as opened:
            opened.write(f"{task.name} {os.getpid()}\n")
    _faults(batch, task, lines)
    write_text(batch.folder / f"out-{task.name}.txt", "".join(f"{line}\n" for line in kept))
    if "die before the proof" in lines and not (batch.folder / "died").exists():
        (batch.folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return ShardResult(
        outputs=(f"out-{task.name}.txt",),
        num_read=len(lines) + batch.settings.get("lost", 0),
        kept=len(kept),
        dropped={"comment": len(lines) - len(kept)} if len(lines) > len(kept) else {},
    )


def _faults(batch: ShardedJob, task: ShardTask, lines: list[str]) -> None:
    if "die" in lines:
        os.kill(os.getpid(), signal.SIGKILL)
    if "die once" in lines:
        flag = Path(batch.settings["flag"] + task.name)
        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if "die with the rank" in lines:
        os.killpg(0, signal.SIGKILL)
    if "greedy" in lines:
        _die_beside_others(Path(batch.settings["busy"]), task)
    if "full" in lines:
        with atomic(batch.folder / f"out-{task.name}.txt"):
            raise OSError(errno.ENOSPC, "No space left on device")
    if "wait" in lines:
        _wait_for((Path(batch.settings["log"]).parent / "go on").exists)
    if "meet" in lines:
        _wait_for(lambda: len(Path(batch.settings["log"]).read_text().splitlines()) == 3)
    if "bad" in lines:
        raise DataError(f"{task.inputs['text']} is bad", fix="Mend it")
    if "defect" in lines:
        raise ZeroDivisionError("a defect")
    time.sleep(batch.settings.get("seconds", 0))
    print("a library that talks on stdout")


def _die_beside_others(busy: Path, task: ShardTask) -> None:
    """What the kernel does to shards for whose needs there is memory once, but not twice.

    Both have begun before the first is killed.
    """
    busy.mkdir(exist_ok=True)
    begun, here = busy / f"{task.name}.begun", busy / f"{task.name}.here"
    first = not begun.exists()
    begun.touch()
    here.touch()
    _wait_for(lambda: len(list(busy.glob("*.begun"))) == 2)
    time.sleep(0.3)
    killed = first or len(list(busy.glob("*.here"))) > 1
    time.sleep(0.3)  # so that the other sees this one, too
    here.unlink()
    if killed:
        os.kill(os.getpid(), signal.SIGKILL)


def _wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError("nobody else came")
        time.sleep(0.05)
