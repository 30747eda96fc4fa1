"""A process that does shards: they come in on stdin, a line each, and answers go out on stdout.

`python -m stamm.runs.worker PLAN PARENT`. The worker ends when its stdin ends, and on Linux at
once when the process that started it dies: nobody must write into a folder that another run has
taken over.
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
from stamm.base.files import is_full
from stamm.runs.sharded_job import Batch, Task, do_task, load_plan

_LONGEST_TRACE = 4000
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def attempt(batch: Batch, task: Task) -> dict[str, Any]:
    """What became of a task: {"manifest": …, "seconds": …}, or {"error": one line, "trace": where}.

    Edge   running out of memory is an error of the shard; interrupts pass through. Where the disk
           is full the answer has "full": true, for no other shard could be written either.
    """
    try:
        manifest, seconds = do_task(batch, task)
    except StammError as error:
        if error.__cause__ is not None and is_full(error.__cause__):
            return {"error": visible(error.what), "trace": "", "full": True}
        return {"error": error.line(), "trace": ""}
    except Exception as error:
        trace = traceback.format_exc()[-_LONGEST_TRACE:]
        return {"error": visible(f"{type(error).__name__}: {error}", 500), "trace": trace}
    return {"manifest": manifest, "seconds": seconds}


def main(arguments: list[str]) -> int:
    """Serve one parent until its end of the pipe closes."""
    plan, parent = Path(arguments[0]), int(arguments[1])
    die_with(parent)
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # An interrupt from the keyboard reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    batch = None
    for line in sys.stdin:
        try:
            batch = batch if batch is not None and plan.is_file() else load_plan(plan)
        except StammError as error:
            answer: dict[str, Any] = {"error": visible(error.what), "fix": error.fix}
        else:
            answer = attempt(batch, Task(**json.loads(line)))
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except BrokenPipeError:  # nobody wants to know any more
            os._exit(0)
    return 0


def die_with(parent: int) -> None:
    """End this process when `parent`, the process that started it, ends (Linux)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before this line
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
