"""A limit on the time of Python code that runs on untrusted patterns or schemas.

The regular expressions of `re` and the validation of JSON schemas take time exponential in the text or
the schema: `(a+)+$` does on "aaaa…b". `re` looks for signals while it matches, so a timer ends it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MATCH_SECONDS = 0.5
"""Processor time of one match; an honest pattern takes microseconds."""


@contextmanager
def time_limit(seconds: float = MATCH_SECONDS) -> Iterator[None]:
    """A block that is ended by TimeoutError after `seconds` of the process' processor time.

    Edge     in another thread than the main one there is no limit, since only that one gets signals;
             C code that does not look for signals ends first
    Raises   TimeoutError
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _expired)
    try:
        # Repeated, for code that catches every exception.
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _expired(number: int, frame: object) -> None:
    raise TimeoutError
