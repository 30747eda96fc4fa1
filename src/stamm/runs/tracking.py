"""Track a run while it trains: one daemon thread per tracker, which training never waits for.

A thread reads what the run has written (`runs.tracker_sync`), so that neither the speed nor the
memory of training depends on a tracker. A tracker that raises is reported once and stopped; one that
hangs is abandoned `PATIENCE_S` after the end of training.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from stamm.base.console import Progress
from stamm.base.errors import StammError, visible
from stamm.runs.tracker_config import TrackerConfig
from stamm.runs.tracker_sync import TrackerSync
from stamm.runs.trackers import open_tracker

INTERVAL_S = 5.0
PATIENCE_S = 30.0  # for all trackers together, when training has ended
# A long run of letters and digits in the message of a package may be a key or a token.
_SECRET = re.compile(r"(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,}")
_LONGEST_REASON = 300


@contextlib.contextmanager
def tracking(
    trackers: Sequence[TrackerConfig],
    folder: Path,
    name: str,
    progress: Progress,
    facts: Mapping[str, Any] | None = None,
) -> Iterator[None]:
    """Send the metrics in `folder` to `trackers` while the block runs.

    facts    shown beside the metrics (a configuration in plain form)
    Edge     a tracker that fails is reported once and stopped; the next start of the run resumes it,
             or sends every line from the first. What trackers print is discarded, and they cannot
             ask for a login on the terminal
    Checked  tests/unit/runs/test_tracking.py
    """
    threads = [
        _TrackerThread(config, folder.resolve(), name, progress, facts or {})
        for config in dict.fromkeys(trackers)
    ]
    with _silenced() if threads else contextlib.nullcontext():
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for thread in threads:
                thread.ended.set()
            until = time.monotonic() + PATIENCE_S
            for thread in threads:
                thread.wait(max(until - time.monotonic(), 0.0))


class _TrackerThread(threading.Thread):
    """Keeps one tracker up to date until `ended` is set."""

    def __init__(
        self,
        config: TrackerConfig,
        folder: Path,
        name: str,
        progress: Progress,
        facts: Mapping[str, Any],
    ) -> None:
        self._label = type(config).__name__
        super().__init__(name=f"tracker {self._label}", daemon=True)
        self.ended = threading.Event()
        self._config, self._folder, self._run_name = config, folder, name
        self._progress, self._facts = progress, facts
        self._abandoned = False

    def run(self) -> None:
        """Send new lines every `INTERVAL_S` seconds, and the rest at the end."""
        try:
            sync = TrackerSync(
                self._config,
                self._folder,
                self._run_name,
                self._facts,
                lambda run: open_tracker(self._config, run),
            )
            while not self.ended.wait(INTERVAL_S):
                sync.update()
            sync.update(last=True)
            sync.finish()
        except (Exception, SystemExit) as error:
            if not self._abandoned:
                self._progress.log(
                    f"{self._label} is no longer updated: {_reason(error)}. metrics.jsonl has every "
                    "line, and the next start of this run resumes the tracker."
                )

    def wait(self, seconds: float) -> None:
        """Wait until everything is sent, at most `seconds`."""
        self.join(seconds)
        if self.is_alive():
            self._abandoned = True
            self._progress.log(
                f"{self._label} has not received everything in time. metrics.jsonl has every line, "
                "and the next start of this run sends the rest."
            )


class _MuteInTrackers:
    """A stream that discards what tracker threads print and is not a terminal for them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write to the stream, except from a tracker thread."""
        return len(text) if _in_tracker() else self._stream.write(text)

    def isatty(self) -> bool:
        """False in a tracker thread, so that packages do not ask for a login."""
        return not _in_tracker() and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _in_tracker() -> bool:
    return isinstance(threading.current_thread(), _TrackerThread)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_MuteInTrackers(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _reason(error: BaseException) -> str:
    if isinstance(error, StammError):
        return without_secrets(error.line()).rstrip(".")
    return without_secrets(f"{type(error).__name__}: {error}").rstrip(".")


def without_secrets(text: str) -> str:
    """`text` on one line, at most 300 characters, without what may be a key or a token."""
    return visible(_SECRET.sub("…", text[:_LONGEST_REASON]), _LONGEST_REASON)
