"""Copy the metrics of a run folder to a tracker as the files grow, and resume where it stopped.

metrics.jsonl is the source. A step is sent to the tracker once, however often the run is killed and
resumed; where steps are repeated with other numbers, the tracker gets a new run with every line.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from stamm.base.config import to_plain
from stamm.base.errors import DataError
from stamm.base.files import read_json, sha256_value, write_json
from stamm.runs.tracker_config import TrackerConfig
from stamm.runs.trackers import Tracker, TrackerRun

SCHEMA = 2
FOLDER = "trackers"  # in log/ of the run
LINES_PER_UPDATE = 2000  # bounds what waits in a tracker's own memory
_LONGEST_LINE = 1 << 20
_RUN_ID = re.compile(r"[0-9a-f]{16}")


class TailedFile:
    """The complete lines of a file that is appended to, or replaced by another file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._next = b""

    def reopened(self) -> bool:
        """Whether the file was replaced or truncated, so that its lines start again."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return False
        if self._file is not None:
            # As long as the old file is open, no other file gets its inode number.
            same = os.fstat(self._file.fileno()).st_ino == status.st_ino
            if same and status.st_size >= self._file.tell():
                return False
        return self.rewind()

    def rewind(self) -> bool:
        """Start again from the first line; False when there is no file."""
        self.close()
        with contextlib.suppress(FileNotFoundError):
            self._file = self._path.open("rb")
        return self._file is not None

    def peek(self) -> bytes | None:
        """The next line; None while it is incomplete or missing.

        Raises   DataError when it is longer than any line of a run.
        """
        if self._file is not None and not self._next.endswith(b"\n"):
            self._next += self._file.readline(_LONGEST_LINE - len(self._next))
            if len(self._next) == _LONGEST_LINE:
                raise DataError(f"{self._path} has a line of 1 MiB or more")
        return self._next if self._next.endswith(b"\n") else None

    def skip(self) -> None:
        """Move behind the line that `peek` returned."""
        self._next = b""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._next = None, b""


class TrackerSync:
    """Sends the new lines of a run folder to a tracker at each `update`.

    log/trackers/ records the last step that was sent and a hash of all lines up to it. A file that
    was truncated and grew again to the same bytes is continued; other bytes start a new run in the
    tracker, from the first line.

    folder   contains metrics.jsonl and log/speed.jsonl
    name     display name of the run
    facts    shown beside the metrics (a configuration in plain form)
    opener   starts or resumes the tracker
    """

    def __init__(
        self,
        config: TrackerConfig,
        folder: Path,
        name: str,
        facts: Mapping[str, Any],
        opener: Callable[[TrackerRun], Tracker],
    ) -> None:
        self._log, self._name = folder / "log", name
        self._facts, self._open = facts, opener
        self._state = self._log / FOLDER / f"{tracker_label(config)}.json"
        self._metrics = TailedFile(folder / "metrics.jsonl")
        self._speed = TailedFile(self._log / "speed.jsonl")
        self._run_id, self._sent, self._digest = self._read_state()
        self._hash = hashlib.sha256()
        self._same = False  # whether the lines up to the last sent step are those that were sent
        self._tracker = self._start()

    def update(self, *, last: bool = False) -> None:
        """Send new lines, at most `LINES_PER_UPDATE` unless it is the `last` update.

        A step is sent when its line in log/speed.jsonl exists; the `last` update does not wait.

        Raises   DataError for lines that no run writes; whatever the tracker's package raises
        """
        self._speed.reopened()
        if self._metrics.reopened():
            self._read_again()
        count, before = 0, self._sent
        while (line := self._metrics.peek()) is not None:
            step, values = _numbers(line)
            if not step:  # before training: trackers count steps from 1
                self._metrics.skip()
                self._hash.update(line)
                continue
            if step >= self._sent and not self._same:
                if step > self._sent or self._digest_with(line) != self._digest:
                    self._start_again()
                    before = 0
                    continue
                self._same = True
            if step > self._sent:
                speed = self._speed_of(step)
                if (speed is None or count == LINES_PER_UPDATE) and not last:
                    break
                self._tracker.log(step, {**values, **(speed or {})})
                self._sent, count = step, count + 1
            self._metrics.skip()
            self._hash.update(line)
        self._tracker.flush()
        if self._sent > before:
            self._digest = self._hash.hexdigest()
            self._write_state()

    def finish(self) -> None:
        """Let the tracker send everything, and close the files."""
        self._tracker.finish()
        self._metrics.close()
        self._speed.close()

    def _start(self) -> Tracker:
        self._write_state()
        self._metrics.rewind()
        self._read_again()
        return self._open(
            TrackerRun(
                folder=self._log,
                name=self._name,
                run_id=self._run_id,
                after=self._sent,
                facts=self._facts,
            )
        )

    def _start_again(self) -> None:
        self._tracker.finish()
        self._run_id, self._sent, self._digest = _new_run_id(), 0, ""
        self._tracker = self._start()

    def _read_again(self) -> None:
        self._speed.rewind()
        self._hash = hashlib.sha256()
        self._same = self._sent == 0

    def _digest_with(self, line: bytes) -> str:
        with_it = self._hash.copy()
        with_it.update(line)
        return with_it.hexdigest()

    def _speed_of(self, step: int) -> dict[str, float] | None:
        """The line of a step in log/speed.jsonl; None while it is not written."""
        while (line := self._speed.peek()) is not None:
            logged_step, values = _numbers(line)
            if logged_step >= step:
                return values if logged_step == step else {}
            self._speed.skip()
        return None

    def _write_state(self) -> None:
        state = {"schema": SCHEMA, "run_id": self._run_id, "step": self._sent}
        write_json(self._state, {**state, "sha256": self._digest})

    def _read_state(self) -> tuple[str, int, str]:
        """Run id in the tracker, last step that was sent, and hash of the lines up to it."""
        with contextlib.suppress(DataError, KeyError, TypeError):
            state = read_json(self._state)
            run_id, step, digest = state["run_id"], state["step"], state["sha256"]
            if state["schema"] == SCHEMA and isinstance(step, int) and _RUN_ID.fullmatch(run_id):
                return run_id, step, str(digest)
        return _new_run_id(), 0, ""


def tracker_label(config: TrackerConfig) -> str:
    """File name of a tracker's state: another project of the same tracker is another tracker."""
    plain = to_plain(config, TrackerConfig)
    return f"{plain['kind'].lower()}-{sha256_value(plain)[:8]}"


def _numbers(line: bytes) -> tuple[int, dict[str, float]]:
    """Step and numbers of a line."""
    try:
        values = json.loads(line)
        step = values.pop("step")
        numbers = {k: v for k, v in values.items() if type(v) in (int, float)}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        step, numbers = None, {}
    if type(step) is not int or step < 0:
        raise DataError(f"a line of the metrics has no step: {line[:80]!r}")
    return step, numbers


def _new_run_id() -> str:
    return secrets.token_hex(8)
