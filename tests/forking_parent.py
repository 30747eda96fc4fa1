"""Loads the package, then forks a process for each line of stdin; started by tests/forked.py.

Writes JSON lines: [pid, null, 0] for a process that was started; [pid, exit code, CPU seconds] for
one that has ended.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import resource
import runpy
import signal
import sys
import traceback
from types import FrameType
from typing import Any

LIBRARIES = ("torch._dynamo", "matplotlib.pyplot", "transformers.models.apertus.modeling_apertus")


def load() -> None:
    """Import what the verbs and jobs of the command line import.

    Sharded jobs start worker processes, which load the package, only where their number is set.
    """
    from stamm.cli import main
    from stamm.recipes.step_kinds import STEP_KINDS
    from stamm.runs import run_sharded

    main._limit_openmp_spin()  # read when torch is loaded
    modules = {verb.module for verb in main.VERBS} | {
        one.job.partition(":")[0] for one in STEP_KINDS.values()
    }
    for module in (*sorted(modules), *LIBRARIES):
        importlib.import_module(module)
    run_sharded.cores = lambda: 1


def reap(number: int, frame: FrameType | None) -> None:
    """Report every process that has ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            say(pid, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)


def say(pid: int, code: int | None, seconds: float = 0.0) -> None:
    """Write one line."""
    os.write(1, json.dumps([pid, code, seconds]).encode() + b"\n")


def run(asked: dict[str, Any]) -> int:
    """Run one command in this, the forked, process; returns its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "errors")):
        os.dup2(os.open(asked[name], os.O_CREAT | os.O_APPEND | os.O_WRONLY), number)
    sys.stdin = io.TextIOWrapper(io.FileIO(0))
    if asked["largest"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (asked["largest"],) * 2)
    words = asked["words"]
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0].endswith(".py"):
            sys.argv = list(words)
            runpy.run_path(words[0], run_name="__main__")
        else:
            from stamm.cli.main import entry

            sys.argv = list(words)
            entry()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Fork until stdin is closed."""
    load()
    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        child = os.fork()
        if not child:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            code = run(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        say(child, None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


if __name__ == "__main__":
    main()
