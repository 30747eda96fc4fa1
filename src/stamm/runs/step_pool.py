"""Worker processes that execute steps of a run side by side, each with the threads that its step configures.

A step's outputs do not depend on what runs beside it, so a run has the same bits with any number of
workers. A worker loads the package once and takes one step after another.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from stamm.base import errors
from stamm.base.config import to_plain
from stamm.base.errors import RunError, StammError, StoppedError
from stamm.runs.job import Step, Workspace
from stamm.runs.local_pool import Ended, WorkerPool

_STOP_S = 60.0  # a training run saves its state after the step that it computes
_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)


class StepPool:
    """Up to `count` steps at once, each in a process of its own.

    kinds    kinds of jobs that are given to workers; all others stay in the run's own process
    module   module that a worker runs with -m (stamm.recipes.step_worker)
    quiet    workers report no progress
    Edge     leaving the context ends all workers. SIGTERM and SIGUSR2, which ask a run to end, are
             passed on, so that training runs save their state; while no worker has a step, the
             previous handlers get them
    """

    def __init__(
        self, count: int, kinds: frozenset[str], module: str, *, quiet: bool = False
    ) -> None:
        self.count, self.kinds, self._quiet = count, kinds, quiet
        self.running: dict[str, Step] = {}
        self._workers = WorkerPool(count, module)
        self._asked: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def free(self) -> bool:
        """Whether another step can start."""
        return len(self.running) < self.count

    def start(self, step: Step, workspace: Workspace, prefix: str) -> None:
        """Give a step to a worker.

        workspace  its folder, inputs and log; the executor of shards is the worker's own machine
        prefix     of its progress lines
        """
        kind = type(step.config)
        task = {
            "name": step.name,
            "job": step.job,
            "config_type": f"{kind.__module__}:{kind.__qualname__}",
            "config": to_plain(step.config),
            "folder": str(workspace.folder),
            "inputs": {name: str(path) for name, path in workspace.inputs.items()},
            "log": str(workspace.log) if workspace.log else "",
            "prefix": prefix,
            "quiet": self._quiet,
        }
        self.running[step.name] = step
        self._workers.submit(step.name, task)

    def wait(self) -> Step:
        """The next step that ended without an error.

        Raises   what its job raised; RunError when its worker died; StoppedError when this process was
                 asked to end. All other workers are asked to end before.
        """
        ended = self._workers.ended.get()
        if isinstance(ended, signal.Signals):
            raise self._stopped(ended)
        step = self.running.pop(ended.name)
        if ended.answer is not None and not ended.answer:
            return step
        self._workers.ask_to_end(signal.SIGTERM, _STOP_S)
        raise _error(ended)

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
            with self._workers:
                try:
                    yield self
                except KeyboardInterrupt:  # the terminal has sent it to the workers, too
                    self._workers.wait_until_idle(_STOP_S)
                    raise
                except BaseException:
                    self._workers.ask_to_end(signal.SIGTERM, _STOP_S)
                    raise
        finally:
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
        self._workers.ended.put(asked)

    def _stopped(self, asked: signal.Signals) -> StoppedError:
        self._workers.ask_to_end(asked, _STOP_S)
        return StoppedError(
            f"the run was asked to end ({asked.name}): training runs have saved their state",
            fix="Run the same command again to resume",
        )


def _error(ended: Ended) -> StammError:
    if ended.answer is None:
        return RunError(
            f"the worker of step {ended.name} died, {ended.death()}",
            fix="Run the same command again to resume, with fewer --jobs if memory is short",
        )
    kind = getattr(errors, str(ended.answer.get("kind")), RunError)
    if not (isinstance(kind, type) and issubclass(kind, StammError)):
        kind = RunError
    where, fix = str(ended.answer.get("where", "")), str(ended.answer.get("fix", ""))
    error: StammError = kind(str(ended.answer["error"]), where=where, fix=fix)
    return error
