"""A limit on the time of matches: a pattern that takes exponential time ends, and nothing stays armed."""

from __future__ import annotations

import re
import signal
import threading

import pytest

from stamm.base.time_limit import time_limit

HOSTILE = re.compile("(a+)+$")
TEXT = "a" * 60 + "b"


def test_a_catastrophic_match_ends() -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(TimeoutError), time_limit(0.05):
        HOSTILE.search(TEXT)
    with time_limit(0.05):
        assert HOSTILE.search("aaa")
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGVTALRM) is before


def test_code_that_catches_every_exception_ends_too() -> None:
    with pytest.raises(TimeoutError), time_limit(0.02):
        try:
            HOSTILE.search(TEXT)
        except Exception:
            HOSTILE.search(TEXT)


def test_another_thread_runs_without_a_limit() -> None:
    found = []

    def work() -> None:
        with time_limit(0.05):
            found.append(HOSTILE.search("aaa"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(found) == 1
