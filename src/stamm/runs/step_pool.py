"""Worker processes that execute steps of a run side by side, each with the threads that its step configures.

A step's outputs do not depend on what runs beside it, so a run has the same bits with any number of
workers. A worker loads the package once and takes one step after another.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from stamm.base import errors
from stamm.base.config import to_plain
from stamm.base.errors import RunError, StammError, StoppedError
from stamm.runs.job import Step, Workspace

_STOP_S = 60.0  # a training run saves its state after the step that it computes
_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)


@dataclass(frozen=True, kw_only=True)
class _Ended:
    """Answer of a worker: {} for success, None if it died, with its exit status."""

    step: Step
    answer: dict[str, Any] | None
    status: int = 0


class StepPool:
    """Up to `count` steps at once, each in a process of its own.

    kinds    kinds of jobs that are given to workers; all others stay in the run's own process
    module   module that a worker runs with -m (stamm.recipes.step_worker)
    quiet    workers report no progress
    Edge     leaving the context ends all workers. SIGTERM and SIGUSR2, which ask a run to end, are
             passed on, so that training runs save their state; while no worker has a step they do
             what they did before
    """

    def __init__(
        self, count: int, kinds: frozenset[str], module: str, *, quiet: bool = False
    ) -> None:
        self.count, self.kinds, self._module, self._quiet = count, kinds, module, quiet
        self.running: dict[str, Step] = {}
        self._idle: list[subprocess.Popen[str]] = []
        self._all: list[subprocess.Popen[str]] = []
        self._ended: queue.SimpleQueue[_Ended | signal.Signals] = queue.SimpleQueue()
        self._asked: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def free(self) -> bool:
        """Whether another step can start."""
        return len(self.running) < self.count

    def start(self, step: Step, place: Workspace, prefix: str) -> None:
        """Give a step to a worker.

        place    its workspace; the executor of shards is the worker's own machine
        prefix   of its progress lines
        """
        worker = self._idle.pop() if self._idle else self._new()
        kind = type(step.config)
        task = {
            "name": step.name,
            "job": step.job,
            "config_type": f"{kind.__module__}:{kind.__qualname__}",
            "config": to_plain(step.config),
            "folder": str(place.folder),
            "inputs": {name: str(path) for name, path in place.inputs.items()},
            "log": str(place.log) if place.log else "",
            "prefix": prefix,
            "quiet": self._quiet,
        }
        self.running[step.name] = step
        threading.Thread(target=self._follow, args=(worker, step, task), daemon=True).start()

    def wait(self) -> Step:
        """The next step that has ended well.

        Raises   what its job raised; RunError when its worker died; StoppedError when this process was
                 asked to end. All other workers are asked to end before.
        """
        found = self._ended.get()
        if isinstance(found, signal.Signals):
            raise self._stopped(found)
        del self.running[found.step.name]
        if found.answer is not None and not found.answer:
            return found.step
        self._stop(signal.SIGTERM)
        raise _error(found)

    def check(self) -> None:
        """Raise StoppedError when this process was asked to end, as `wait` does."""
        if self._asked is not None:
            raise self._stopped(self._asked)

    @contextlib.contextmanager
    def opened(self) -> Iterator[StepPool]:
        """The pool, whose workers end with the block."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        try:
            yield self
        except KeyboardInterrupt:  # the terminal has sent it to the workers, too
            self._wait_for_all()
            raise
        except BaseException:
            self._stop(signal.SIGTERM)
            raise
        finally:
            for worker in self._all:
                worker.kill()
                worker.wait()
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        asked = signal.Signals(number)
        before = self._before.get(asked)
        if not self.running and before is not None:
            # A step of this process alone, which may take hours; nothing is waited for.
            if callable(before):
                before(number, frame)
            else:
                signal.signal(asked, before)
                signal.raise_signal(asked)
            return
        self._asked = asked
        self._ended.put(asked)

    def _stopped(self, asked: signal.Signals) -> StoppedError:
        self._stop(asked)
        return StoppedError(
            f"the run was asked to end ({asked.name}): training runs have saved their state",
            fix="Run the same command again to resume",
        )

    def _new(self) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [sys.executable, "-m", self._module, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self._all.append(worker)
        return worker

    def _follow(self, worker: subprocess.Popen[str], step: Step, task: dict[str, Any]) -> None:
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
            self._ended.put(_Ended(step=step, answer=None, status=worker.wait()))
        else:
            self._idle.append(worker)
            self._ended.put(_Ended(step=step, answer=answer))

    def _stop(self, number: signal.Signals) -> None:
        """Ask the workers that have a step to end, and wait for them."""
        for worker in self._all:
            if worker not in self._idle and worker.poll() is None:
                worker.send_signal(number)
        self._wait_for_all()

    def _wait_for_all(self) -> None:
        """Until every worker has answered or ended, for a minute at most."""
        until = time.monotonic() + _STOP_S
        while any(w.poll() is None for w in self._all if w not in self._idle):
            if time.monotonic() > until:
                return
            time.sleep(0.02)


def _error(ended: _Ended) -> StammError:
    if ended.answer is None:
        killed = ended.status == -signal.SIGKILL
        how = (
            "was killed, as when memory runs out" if killed else f"ended with status {ended.status}"
        )
        return RunError(
            f"the worker of step {ended.step.name} {how}",
            fix="Run the same command again to resume, with fewer --jobs if memory is short",
        )
    kind = getattr(errors, str(ended.answer.get("kind")), RunError)
    if not (isinstance(kind, type) and issubclass(kind, StammError)):
        kind = RunError
    where, fix = str(ended.answer.get("where", "")), str(ended.answer.get("fix", ""))
    found: StammError = kind(str(ended.answer["error"]), where=where, fix=fix)
    return found
