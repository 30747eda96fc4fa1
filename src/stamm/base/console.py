"""Progress bars with an estimate of the time left, and log lines.

Results go to stdout, progress and messages to stderr. A terminal shows a moving bar; other streams
and the log file get one line per interval, so that a log stays readable.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol, TextIO

from stamm.base.errors import visible
from stamm.base.units import seconds_text

PLAIN_INTERVAL_S = 5.0
LONGEST_INTERVAL_S = 60.0
_LINES = 100  # of a task, at most about, until the interval between lines is at its longest
BAR_INTERVAL_S = 0.2
# The rate is measured since a mark that is at least this old and this many advances back.
_RATE_WINDOW_S = 300.0
_RATE_ADVANCES = 20
_WIDE = 120  # columns of a terminal


class Progress(Protocol):
    """Progress reporting of a job. Every job takes one; no job prints."""

    def begin(self, task: str, total: float, unit: str) -> None:
        """Start `task` of `total` units ("pretrain xielu", 180, "steps")."""

    def advance(self, done: float, note: str = "", share: float | None = None) -> None:
        """Report that `done` units of the task are complete, with a short note ("loss 4.21").

        share   fraction of the work that is done, for units of unequal cost; None: done / total
        """

    def end(self, note: str = "") -> None:
        """End the task begun last."""

    def log(self, text: str) -> None:
        """Write one message."""


class NoProgress:
    """A Progress that does nothing."""

    def begin(self, task: str, total: float, unit: str) -> None:
        """Do nothing."""

    def advance(self, done: float, note: str = "", share: float | None = None) -> None:
        """Do nothing."""

    def end(self, note: str = "") -> None:
        """Do nothing."""

    def log(self, text: str) -> None:
        """Do nothing."""


class Console:
    """A Progress on a stream: a moving bar on a terminal, plain lines elsewhere. Thread-safe.

    prefix   written before each task's name ("[4/10] ")
    log      a file that also gets every line, with the time (UTC)
    bar      draw a moving bar on a terminal; without it, lines
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        log: TextIO | None = None,
        *,
        bar: bool = True,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._log = log
        self._bar: _Bar | None = None
        self._moves = bar and self._stream.isatty()
        self._task = ""
        self._unit = ""
        self._total = 0.0
        self._started = 0.0
        self._rate = _RateEstimate()
        self._drawn = self._printed = 0.0
        self._lock = threading.RLock()
        self.prefix = ""

    def begin(self, task: str, total: float, unit: str) -> None:
        """Start a task."""
        with self._lock:
            self._task, self._total, self._unit = visible(task), total, unit
            self._started = self._drawn = self._printed = self._clock()
            self._rate = _RateEstimate()
            if self._moves:
                self.close()
                self._bar = _Bar(self._stream, f"{self.prefix}{self._task}")
                self._bar.start()
                self._write_log(f"{self.prefix}{self._task}")
            else:
                self._line(f"{self.prefix}{self._task}")

    def advance(self, done: float, note: str = "", share: float | None = None) -> None:
        """Move the bar, and write a line when the interval since the last one has passed."""
        now = self._clock()
        if share is None:
            share = done / self._total if self._total else 1.0
        with self._lock:
            seconds_left = self._rate.left(share, now)
            ends = share >= 1.0
            if self._bar is not None and (now - self._drawn >= BAR_INTERVAL_S or ends):
                self._drawn = now
                self._bar.move(share, self._state(done, seconds_left, note))
            if now - self._printed >= self._interval(now):
                self._printed = now
                line = f"{self.prefix}{self._task}: {self._state(done, seconds_left, note)}"
                if self._bar is None:
                    self._line(line)
                else:
                    self._write_log(line)

    def end(self, note: str = "") -> None:
        """Close the task with the time it took."""
        with self._lock:
            self.close()
            took = seconds_text(self._clock() - self._started)
            end = f", {note}" if note else ""
            self._line(f"{self.prefix}{self._task}: done in {took}{end}")

    def close(self) -> None:
        """Remove the bar of an unfinished task and show the cursor again.

        Call it in a `finally` block; does nothing when no bar is shown.
        """
        with self._lock:
            if self._bar is not None:
                self._bar.close()
                self._bar = None

    def log(self, text: str) -> None:
        """Write one message on its own line."""
        with self._lock:
            if self._bar is not None:
                self._bar.log(visible(text))
                self._write_log(text)
            else:
                self._line(text)

    def note(self, text: str) -> None:
        """Write a line to the log file only."""
        with self._lock:
            self._write_log(text)

    def _interval(self, now: float) -> float:
        """Seconds between plain lines: longer as a task gets long."""
        grown = (now - self._started) / _LINES
        return min(max(grown, PLAIN_INTERVAL_S), LONGEST_INTERVAL_S)

    def _state(self, done: float, seconds_left: float | None, note: str) -> str:
        state = f"{done:g}/{self._total:g} {self._unit}"
        if seconds_left is not None:
            state += f", {seconds_text(seconds_left)} left"
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


class _RateEstimate:
    """Progress rate of a task over its last minutes, for the estimate of the time left."""

    def __init__(self) -> None:
        self._since: tuple[float, float] | None = None
        self._next: tuple[float, float] = (0.0, 0.0)
        self._advances = 0

    def left(self, share: float, now: float) -> float | None:
        """Seconds to the end when `share` of the work is done; None while it is unknown."""
        if self._since is None:  # the first units include warm-up and are not counted
            self._since = self._next = (share, now)
        self._advances += 1
        if now - self._next[1] >= _RATE_WINDOW_S and self._advances >= _RATE_ADVANCES:
            self._since, self._next, self._advances = self._next, (share, now), 0
        done, began = self._since
        if share <= done:
            return None
        return max(1.0 - share, 0.0) * max(now - began, 1e-9) / (share - done)


class _Bar:
    """One progress bar, drawn by rich, which is imported only for a terminal."""

    def __init__(self, stream: TextIO, task: str) -> None:
        from rich.cells import cell_len
        from rich.console import Console as Terminal
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars
        from rich.table import Column

        text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
        # A terminal too narrow for one part of the state cuts it: a second line would not be removed.
        last = Column(no_wrap=True, overflow="ellipsis")
        state = TextColumn("{task.fields[state]}", markup=False, table_column=last)
        terminal = Terminal(file=stream)
        width = 24 if terminal.width >= _WIDE else 8
        self._room = terminal.width - cell_len(task) - width - 2
        columns = (text, BarColumn(bar_width=width), state)
        self._bars = Bars(*columns, console=terminal, auto_refresh=False, transient=True)
        self._task = self._bars.add_task(task, total=1.0, state="")

    def start(self) -> None:
        """Hide the cursor and draw the bar."""
        self._bars.start()
        self._bars.refresh()

    def move(self, share: float, state: str) -> None:
        """Draw the bar at `share` of its length, and as many parts of the state as fit beside it."""
        while len(state) > self._room and ", " in state:
            state = state.rpartition(", ")[0]
        self._bars.update(self._task, completed=share, state=state, refresh=True)

    def log(self, text: str) -> None:
        """Write a line above the bar."""
        self._bars.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Remove the bar."""
        self._bars.stop()
