"""Talking to the person: progress with an estimate of the time left, warnings, plain words.

Results go to stdout, talk goes to stderr. On a terminal a bar moves; elsewhere one plain line
is written per interval, so that a log file stays readable.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol, TextIO

from stamm.base.errors import visible
from stamm.base.units import seconds_text

PLAIN_INTERVAL_S = 5.0
BAR_INTERVAL_S = 0.1


class Progress(Protocol):
    """Where a job reports how far it is. Every job takes one; none prints by itself."""

    def begin(self, task: str, total: float, unit: str) -> None:
        """Start `task` of `total` units ("pretrain xielu", 180, "steps")."""

    def advance(self, done: float, note: str = "") -> None:
        """Say that `done` units of the task are complete, with a short note ("loss 4.21")."""

    def end(self, note: str = "") -> None:
        """End the task begun last."""

    def say(self, text: str) -> None:
        """Tell the person one thing."""


class Silent:
    """A Progress that says nothing."""

    def begin(self, task: str, total: float, unit: str) -> None:
        """Nothing."""

    def advance(self, done: float, note: str = "") -> None:
        """Nothing."""

    def end(self, note: str = "") -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


class Console:
    """A Progress on a stream: a moving bar on a terminal, plain lines anywhere else.

    prefix   put before each task's name ("[4/10] ")
    log      a file that gets every line, with the time (UTC), wherever the talk goes
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        log: TextIO | None = None,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._log = log
        self._bar: _Bar | None = None
        self._moves = self._stream.isatty()
        self._task = ""
        self._unit = ""
        self._total = 0.0
        self._started = 0.0
        self._first: tuple[float, float] | None = None
        self._spoken = 0.0
        self.prefix = ""

    def begin(self, task: str, total: float, unit: str) -> None:
        """Start a task."""
        self._task, self._total, self._unit = visible(task), total, unit
        self._started = self._spoken = self._clock()
        self._first = None
        if self._moves:
            self.close()
            self._bar = _Bar(self._stream, f"{self.prefix}{self._task}", total)
            self._bar.start()
            self._write_log(f"{self.prefix}{self._task}")
        else:
            self._line(f"{self.prefix}{self._task}")

    def advance(self, done: float, note: str = "") -> None:
        """Move the bar, or write a line when the last one is old enough."""
        now = self._clock()
        if self._first is None:  # the first units pay for warm-up: the rate starts after them
            self._first = (done, now)
        if self._bar is not None:
            if now - self._spoken >= BAR_INTERVAL_S or done >= self._total:
                self._spoken = now
                self._bar.move(done, self._state(done, now, note))
        elif now - self._spoken >= PLAIN_INTERVAL_S:
            self._spoken = now
            self._line(f"{self.prefix}{self._task}: {self._state(done, now, note)}")

    def end(self, note: str = "") -> None:
        """Close the task with the time it took."""
        self.close()
        took = seconds_text(self._clock() - self._started)
        self._line(f"{self.prefix}{self._task}: done in {took}" + (f", {note}" if note else ""))

    def close(self) -> None:
        """Take away the bar of a task that did not come to its end, and show the cursor again.

        To be called however the work ended; does nothing when no bar is shown.
        """
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def say(self, text: str) -> None:
        """One line of talk."""
        if self._bar is not None:
            self._bar.say(visible(text))
            self._write_log(text)
        else:
            self._line(text)

    def note(self, text: str) -> None:
        """A line for the log alone."""
        self._write_log(text)

    def _state(self, done: float, now: float, note: str) -> str:
        state = f"{done:g}/{self._total:g} {self._unit}"
        if self._first is not None and done > self._first[0]:
            rate = (done - self._first[0]) / max(now - self._first[1], 1e-9)
            state += f", {seconds_text(max(self._total - done, 0.0) / rate)} left"
        return state + (f", {note}" if note else "")

    def _line(self, text: str) -> None:
        self._stream.write(visible(text) + "\n")
        self._stream.flush()
        self._write_log(text)

    def _write_log(self, text: str) -> None:
        if self._log is not None:
            now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
            self._log.write(f"{now} {visible(text)}\n")
            self._log.flush()


class _Bar:
    """One moving bar, drawn by rich (loaded only where there is a terminal to draw on)."""

    def __init__(self, stream: TextIO, task: str, total: float) -> None:
        from rich.console import Console as Terminal
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        text = TextColumn("{task.description}", markup=False)
        state = TextColumn("{task.fields[state]}", markup=False)
        terminal = Terminal(file=stream)
        columns = (text, BarColumn(bar_width=24), state)
        self._bars = Bars(*columns, console=terminal, auto_refresh=False, transient=True)
        self._task = self._bars.add_task(task, total=total, state="")

    def start(self) -> None:
        """Hide the cursor and draw the bar."""
        self._bars.start()
        self._bars.refresh()

    def move(self, done: float, state: str) -> None:
        """Draw the bar at `done`."""
        self._bars.update(self._task, completed=done, state=state, refresh=True)

    def say(self, text: str) -> None:
        """Write a line above the bar."""
        self._bars.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Take the bar away."""
        self._bars.stop()
