"""Worker process: reads one shard per line from stdin and writes one result per line to stdout.

`python -m stamm.runs.worker JOB_SPEC PARENT_PID`. The worker exits when its stdin ends, and on Linux
immediately when its parent dies: it must not write to a folder that another run has taken over.
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
from stamm.runs.sharded_job import ShardedJob, ShardTask, load_job_spec, run_shard

_LONGEST_TRACE = 4000
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def try_shard(job: ShardedJob, shard: ShardTask) -> dict[str, Any]:
    """Run a shard: {"manifest": …, "seconds": …}, or {"error": one line, "trace": traceback}.

    Edge   MemoryError is an error of the shard; interrupts are raised. On a full disk the result
           has "full": true, since no other shard could be written either.
    """
    try:
        manifest, seconds = run_shard(job, shard)
    except StammError as error:
        if error.__cause__ is not None and is_full(error.__cause__):
            return {"error": visible(error.what), "trace": "", "full": True}
        return {"error": error.line(), "trace": ""}
    except Exception as error:
        trace = traceback.format_exc()[-_LONGEST_TRACE:]
        return {"error": visible(f"{type(error).__name__}: {error}", 500), "trace": trace}
    return {"manifest": manifest, "seconds": seconds}


def main(arguments: list[str]) -> int:
    """Run shards until the parent closes the pipe."""
    spec, parent = Path(arguments[0]), int(arguments[1])
    die_with(parent)
    # What libraries print must not mix with the results.
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # Ctrl-C reaches the whole process group; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = None
    for line in sys.stdin:
        try:
            job = job if job is not None and spec.is_file() else load_job_spec(spec)
        except StammError as error:
            result: dict[str, Any] = {"error": visible(error.what), "fix": error.fix}
        else:
            result = try_shard(job, ShardTask(**json.loads(line)))
        try:
            results.write(json.dumps(result) + "\n")
            results.flush()
        except BrokenPipeError:  # the parent has closed the pipe
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
