"""How a process ends: by Ctrl-C where that is safe, and before Python would take it apart."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn


def end_at_once(code: int) -> NoReturn:
    """End this process, whose work is done, with exit code `code`, and not by Python's own last steps.

    gloo's threads let go of a message's tensors a moment after the message has arrived, and need the
    interpreter for it. One that asks for it while Python (before 3.14) ends is killed there, and the
    process with it, by SIGABRT: up to one end in ten of two processes, and torchrun tells a failure.
    And after a Ctrl-C that came where a library runs Python text, Python itself would end by SIGINT,
    whatever the code.

    Edge   what was registered with atexit is done; threads are not waited for
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or its reader has gone
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def interrupt_held() -> Iterator[None]:
    """Answer Ctrl-C after the block, for blocks that import libraries; a second one at once.

    While a library is loaded an interrupt can abort the process (duckdb 2.0.0 does), or be lost.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # another's to answer, or ignored
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
