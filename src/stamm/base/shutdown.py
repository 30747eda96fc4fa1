"""Safe process exit: delayed Ctrl-C during imports, and exit without Python's finalization."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from stamm.base.errors import StoppedError

EXIT_FUNCTIONS_S = 30.0
_TERMINATION = (signal.SIGTERM, signal.SIGUSR2)


def exit_immediately(code: int) -> NoReturn:
    """Exit with `code` without Python's finalization; atexit functions run, threads are not joined.

    Edge     an atexit function that hangs (a tracker without a network) is cut off after 30 seconds

    gloo's threads release the tensors of a message shortly after it has arrived, and need the
    interpreter for that. During finalization (before Python 3.14) this aborts the process with
    SIGABRT, in up to one of ten exits of two processes, and torchrun reports a failure. Also, after
    a Ctrl-C inside code run by a library, Python would exit by SIGINT whatever the code.
    """
    watchdog = threading.Timer(EXIT_FUNCTIONS_S, os._exit, (code,))
    watchdog.daemon = True
    watchdog.start()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or a broken pipe
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def interrupt_delayed() -> Iterator[None]:
    """Delay Ctrl-C until the block ends; for blocks that import libraries. A second one is immediate.

    While a library is loaded an interrupt can abort the process (duckdb 2.0.0) or be lost.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # handled elsewhere, or ignored
        return
    came: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:  # the block hangs
            before(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def termination_as_interrupt(during: Callable[[], str]) -> Iterator[None]:
    """End the block at SIGTERM or SIGUSR2 as at Ctrl-C, with a StoppedError instead.

    during   what the process does, for the message: "step screen"
    Edge     a second signal ends the process at once. Outside the main thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[signal.Signals] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(signal.Signals(number))
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _TERMINATION}
    try:
        yield
    except KeyboardInterrupt:
        if not came:
            raise
        raise StoppedError(
            f"asked to end ({came[0].name}) during {during()}: what is finished is kept",
            fix="Run the same command again to resume",
        ) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
