"""A process that does shards: the numbers come in on stdin, one line each; answers go out on stdout.

`python -m stamm.runs.worker PLAN`. The worker ends when its stdin ends, and on Linux at once when
the process that started it dies: nobody must write into a folder that another run has taken over.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from stamm.base.errors import StammError, visible
from stamm.runs.tasks import Batch, Task, do_task, load_plan

_LONGEST_TRACE = 4000
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def attempt(batch: Batch, task: Task) -> dict[str, Any]:
    """What became of a task: {"manifest": …, "seconds": …}, or {"error": one line, "trace": where}.

    Edge   running out of memory is an error of the shard; interrupts pass through.
    """
    try:
        manifest, seconds = do_task(batch, task)
    except StammError as error:
        return {"error": error.line(), "trace": ""}
    except Exception as error:
        trace = traceback.format_exc()[-_LONGEST_TRACE:]
        return {"error": visible(f"{type(error).__name__}: {error}", 500), "trace": trace}
    return {"manifest": manifest, "seconds": seconds}


def do_rank(plan: str, rank: int, world: int) -> list[tuple[str, str]]:
    """Do every `world`-th shard from `rank` on; (name, error) of those that failed.

    For engines that start ranks on many machines. Any number of ranks may be started again, with
    another `world`: what is done is not done twice.
    """
    batch = load_plan(Path(plan))
    failed = []
    for task in batch.tasks[rank::world]:
        result = attempt(batch, task)
        if "error" in result:
            failed.append((task.name, str(result["error"])))
    return failed


def main(arguments: list[str]) -> int:
    """Serve one parent until its end of the pipe closes."""
    _die_with_parent()
    batch = load_plan(Path(arguments[0]))
    tasks = {task.name: task for task in batch.tasks}
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # An interrupt from the keyboard reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        answers.write(json.dumps(attempt(batch, tasks[line.strip()])) + "\n")
        answers.flush()
    return 0


def _die_with_parent() -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
