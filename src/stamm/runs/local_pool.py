"""Pool of worker processes on one machine: they exit with the job, and a task whose worker dies is named."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
Task = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Ended:
    """The answer to the task `name`, or None if its worker died, with the exit status."""

    name: str
    answer: dict[str, Any] | None
    status: int = 0

    def death(self) -> str:
        """The cause of death of the worker: "with status 1"."""
        if self.status != -signal.SIGKILL:
            return f"with status {self.status}"
        return "killed by SIGKILL, as when memory runs out"


class WorkerPool:
    """Up to `count` processes, `python -m module *arguments PARENT_PID`, each with one task at a time.

    A task and its answer are JSON objects; the module's main is `serve`. A process is started for a
    task that finds none idle, and replaced when it has died. All are killed when the context ends.

    environment   variables that the workers have beside those of this process
    ended         answers in the order in which they come; `wait` returns them
    Edge          the thread that submits must outlive the workers: on Linux they are killed with it
    """

    def __init__(self, count: int, module: str, *arguments: str, **environment: str) -> None:
        self.count = count
        self.running: set[str] = set()
        self.ended: queue.SimpleQueue[Ended | signal.Signals] = queue.SimpleQueue()
        self._command = [sys.executable, "-m", module, *arguments, str(os.getpid())]
        self._environment = environment
        self._idle: list[subprocess.Popen[str]] = []
        self._all: list[subprocess.Popen[str]] = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._all:
            worker.kill()
            worker.wait()

    def run(self, tasks: Iterable[Task]) -> Generator[Ended]:
        """Yield the answers to `tasks` as they end; the caller's next request starts another task."""
        waiting = iter(tasks)
        for name, task in itertools.islice(waiting, self.count):
            self.submit(name, task)
        while self.running:
            ended = self.ended.get()
            assert isinstance(ended, Ended)
            self.running.remove(ended.name)
            yield ended
            for name, task in itertools.islice(waiting, 1):
                self.submit(name, task)

    def submit(self, name: str, task: dict[str, Any]) -> None:
        """Give a task to an idle worker, or a new one."""
        self.running.add(name)
        try:
            worker = self._idle.pop() if self._idle else self._start()
        except OSError as error:
            self.ended.put(Ended(name, {"error": f"no worker can be started: {error}"}))
            return
        threading.Thread(target=self._follow, args=(worker, name, task), daemon=True).start()

    def ask_to_end(self, number: signal.Signals, seconds: float) -> None:
        """Send a signal to the workers that have a task, and `wait_until_idle`."""
        for worker in self._all:
            if worker not in self._idle and worker.poll() is None:
                worker.send_signal(number)
        self.wait_until_idle(seconds)

    def wait_until_idle(self, seconds: float) -> None:
        """Wait until every worker has answered or ended, at most `seconds`."""
        until = time.monotonic() + seconds
        while any(w.poll() is None for w in self._all if w not in self._idle):
            if time.monotonic() > until:
                return
            time.sleep(0.02)

    def _start(self) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=os.environ | self._environment,
        )
        self._all.append(worker)
        return worker

    def _follow(self, worker: subprocess.Popen[str], name: str, task: dict[str, Any]) -> None:
        assert worker.stdin is not None
        assert worker.stdout is not None
        answer = None
        with contextlib.suppress(OSError, ValueError):
            worker.stdin.write(json.dumps(task) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
            answer = json.loads(line) if line.endswith("\n") else None
        if answer is None:
            worker.kill()
            self.ended.put(Ended(name, None, worker.wait()))
        else:
            self._idle.append(worker)
            self.ended.put(Ended(name, answer))


def serve(
    parent: str,
    answer: Callable[[dict[str, Any]], dict[str, Any]],
    *,
    is_interruptible: bool = False,
) -> int:
    """Answer tasks, one a line, until the parent closes the pipe.

    parent            its process id. On Linux the worker ends at once when it dies: it must not write to
                      a folder that another run has taken over
    is_interruptible  Ctrl-C, which reaches the whole process group, interrupts `answer`; else the parent
                      alone handles it
    """
    _die_with(int(parent))
    handler = signal.default_int_handler if is_interruptible else signal.SIG_IGN
    signal.signal(signal.SIGINT, handler)
    # What libraries print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        reply = json.dumps(answer(json.loads(line)))
        try:
            answers.write(reply + "\n")
            answers.flush()
        except BrokenPipeError:  # the parent has closed the pipe
            os._exit(1)
    return 0


def _die_with(parent: int) -> None:
    """End this process when `parent`, the process that started it, ends (Linux)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before this line
        sys.exit(1)
