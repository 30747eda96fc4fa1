"""A limit of CPU time for work inside SymPy and mpmath."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from stamm.base.errors import StammError


class _TimeUpError(BaseException):
    """The CPU time is used up. Not an Exception: SymPy catches those and continues."""


@contextmanager
def cpu_limit(seconds: int, error: StammError) -> Iterator[None]:
    """Ends the work inside after `seconds` of CPU time of this process.

    Edge     outside the main thread, which alone can be sent a signal, nothing is limited
    Raises   `error`
    """

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise _TimeUpError

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPROF, stop)
    # Again each 5 s: what is raised in a callback of C code is lost.
    signal.setitimer(signal.ITIMER_PROF, seconds, 5.0)
    try:
        yield
    except _TimeUpError:
        raise error from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
