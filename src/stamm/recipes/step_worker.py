"""Worker process of `--jobs`: reads one step per line from stdin, executes it, writes one answer per line.

`python -m stamm.recipes.step_worker PARENT_PID`. An answer is {} or {"kind", "error", "where", "fix"}.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from stamm.base.config import from_plain
from stamm.base.console import Console
from stamm.base.errors import StammError, visible
from stamm.base.shutdown import exit_immediately
from stamm.recipes.jobs import job
from stamm.runs.job import Workspace
from stamm.runs.local_pool import serve

_INTERRUPTED = 130


def execute(task: dict[str, Any]) -> dict[str, str]:
    """Execute one step, as `StepPool.start` describes it; {} or what its job raised.

    Edge     any other error is reported with its type, and its traceback is in the log
    """
    with contextlib.ExitStack() as files:
        stream = files.enter_context(Path(os.devnull).open("w")) if task["quiet"] else sys.stderr
        log = None
        if task["log"]:
            path = Path(task["log"]) / "run.log"
            log = files.enter_context(path.open("a", encoding="utf-8"))
        console = Console(stream, log=log, bar=False)
        console.prefix = task["prefix"]
        workspace = Workspace(
            folder=Path(task["folder"]),
            inputs={name: Path(path) for name, path in task["inputs"].items()},
            progress=console,
            log=Path(task["log"]) if task["log"] else None,
        )
        module, _, name = task["config_type"].partition(":")
        try:
            config = from_plain(getattr(importlib.import_module(module), name), task["config"])
            job(task["job"])(config, workspace)
        except StammError as error:
            kind, what = type(error).__name__, error.what
            return {"kind": kind, "error": what, "where": error.where, "fix": error.fix}
        except Exception as error:
            for line in traceback.format_exc().splitlines():
                console.note(line)
            what = visible(f"{type(error).__name__}: {error}", 500)
            return {
                "kind": "RunError",
                "error": f"step {task['name']} failed: {what}",
                "fix": "See log/run.log",
            }
    return {}


def main(arguments: list[str]) -> int:
    """Execute steps until the parent closes the pipe."""
    try:
        return serve(arguments[0], execute, is_interruptible=True)
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    exit_immediately(main(sys.argv[1:]))
