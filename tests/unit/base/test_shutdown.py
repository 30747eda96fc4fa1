"""Ctrl-C and the end of a process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from stamm.base.errors import StoppedError
from stamm.base.shutdown import interrupt_delayed, termination_as_interrupt
from tests.conftest import environment


def test_an_interrupt_is_answered_after_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupt_delayed():
        signal.raise_signal(signal.SIGINT)
        done.append("the rest of the block")
    assert done
    with pytest.raises(KeyboardInterrupt):  # and then as before
        signal.raise_signal(signal.SIGINT)


def test_asked_twice_a_block_that_hangs_is_left() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupt_delayed():
        signal.raise_signal(signal.SIGINT)
        done.append("first")
        signal.raise_signal(signal.SIGINT)
        done.append("second")
    assert done == ["first"]


def test_an_error_of_the_block_is_told_and_an_ignored_interrupt_stays_ignored() -> None:
    with pytest.raises(ValueError, match="told"), interrupt_delayed():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("told")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupt_delayed():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_hold_nothing() -> None:
    held = []

    def work() -> None:
        with interrupt_delayed():
            held.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert held == [signal.getsignal(signal.SIGINT)]


ENDS = """
import atexit, sys
import stamm.cli.main as cli

class Kept:
    def __del__(self):
        print("Python's own end")

kept = Kept()
atexit.register(print, "asked for at the end")
cli.main = lambda: print("done") or 3
cli.entry()
"""


def test_stamm_ends_before_python_would_take_it_apart() -> None:
    """Threads of gloo that still want the interpreter would abort it: seen in one end of twelve."""
    done = subprocess.run(
        [sys.executable, "-c", ENDS],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.splitlines() == ["done", "asked for at the end"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_termination_ends_the_block_with_one_line(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(StoppedError) as caught, termination_as_interrupt(lambda: "step screen"):
        signal.raise_signal(number)
    assert caught.value.line() == (
        f"asked to end ({number.name}) during step screen: what is finished is kept. "
        "Run the same command again to resume."
    )
    assert signal.getsignal(number) is before
    with pytest.raises(KeyboardInterrupt), termination_as_interrupt(lambda: "step screen"):
        signal.raise_signal(signal.SIGINT)
