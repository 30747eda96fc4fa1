"""Preemption: SIGTERM, and SIGUSR2, which clusters send some minutes before the time limit.

Source   the Apertus runs asked Slurm for SIGUSR2 600 s before the end (their scripts)
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from stamm.base.errors import StoppedError

_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)


class PreemptionHandler:
    """Records the signals that ask this process to end, while the context is entered.

    pending     the signal received, or None
    requested   whether any process has received a signal, the same on all processes
    Edge        outside the main thread signal handlers are not changed. A signal received after the
                last step is raised again on exit, for the handler that was set before
    """

    def __init__(self) -> None:
        self.pending: signal.Signals | None = None
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> PreemptionHandler:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None and self.pending is not None:
            signal.raise_signal(self.pending)

    def stopped(self, step: int, last: int) -> StoppedError:
        """The error that ends the run after `step`."""
        asked = self.pending.name if self.pending else "a signal to another process"
        return StoppedError(
            f"training was asked to end ({asked}): the state after step {step} of {last} is saved",
            fix="Run the same command again to resume",
        )

    def stopped_compiling(self, step: int) -> StoppedError:
        """The error that ends the run where the signal ended the compiler in `step`."""
        asked = self.pending.name if self.pending else "a signal"
        return StoppedError(
            f"training was asked to end ({asked}) while the layers were compiled, in step {step}: what "
            "was saved before is kept",
            fix="Run the same command again to resume",
        )

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.pending = signal.Signals(number)
