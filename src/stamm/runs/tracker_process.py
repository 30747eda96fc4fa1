"""The process that keeps one mirror: it reads what a run writes, and tells it to a tracker.

`python -m stamm.runs.tracker_process`, with a `Request` on the first line of stdin. When stdin ends, so
has the run, however it ended: what is on the disk is still told, then the process ends. A line on
stdout, if any, says why it ended before that.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from stamm.base.config import from_plain, to_plain
from stamm.base.errors import DataError, StammError, visible
from stamm.base.files import read_json, sha256_value, write_json
from stamm.runs.tracker_config import Request
from stamm.runs.trackers import Opening, Tracker, open_tracker

SCHEMA = 1
INTERVAL_S = 5.0
AT_ONCE = 2000  # lines told in an interval: what waits in a tracker's own memory stays small
_LOCKED_S = 0.5
_LAST_S = 600  # what a tracker gets to take the rest when the run has ended
_LONGEST_LINE = 1 << 20
_NICENESS = 10
# What may be a key or a token, in what a package says: long, and with a digit in it.
_SECRET = re.compile(r"(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,}")
_CODE = re.compile(r"[0-9a-f]{16}")
_LONGEST_REASON = 300


class GrowingFile:
    """The whole lines of a file that others append to, or put another file in the place of."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._next = b""

    def renewed(self) -> bool:
        """Whether the lines begin again, because the file is not the one it was."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return False
        if self._file is not None:
            # As long as the old file is open, no other gets its number.
            same = os.fstat(self._file.fileno()).st_ino == status.st_ino
            if same and status.st_size >= self._file.tell():
                return False
        return self.rewind()

    def rewind(self) -> bool:
        """Begin again; whether there is a file."""
        self.close()
        with contextlib.suppress(FileNotFoundError):
            self._file = self._path.open("rb")
        return self._file is not None

    def peek(self) -> bytes | None:
        """The next line; None when no whole one is there yet.

        Raises   DataError when it is longer than any that a run writes.
        """
        if self._file is not None and not self._next.endswith(b"\n"):
            self._next += self._file.readline(_LONGEST_LINE - len(self._next))
            if len(self._next) == _LONGEST_LINE:
                raise DataError(f"{self._path} has a line of 1 MiB and more")
        return self._next if self._next.endswith(b"\n") else None

    def take(self) -> None:
        """Go on behind the line that `peek` gave."""
        self._next = b""

    def close(self) -> None:
        """Let the file go."""
        if self._file is not None:
            self._file.close()
        self._file, self._next = None, b""


class Copy:
    """A run in a tracker, brought up to date with a run folder.

    What was told is noted in log/mirrors/: the last step, and a hash of all lines up to it. A file
    that was cut and grew again to the same bytes is gone on with; one that says other things of
    the steps that were told gets a new run in the tracker, from the first line on.

    tracker   opens it
    """

    def __init__(
        self,
        request: Request,
        facts: Mapping[str, Any],
        tracker: Callable[[Opening], Tracker],
    ) -> None:
        self._log, self._name = Path(request.folder) / "log", request.name
        self._facts, self._open = facts, tracker
        self._note = self._log / "mirrors" / f"{label(request)}.json"
        self._metrics = GrowingFile(Path(request.folder) / "metrics.jsonl")
        self._speed = GrowingFile(self._log / "speed.jsonl")
        self._code, self._told, self._digest = self._noted()
        self._hash = hashlib.sha256()
        self._same = False  # whether the lines up to what was told are those that were told
        self._tracker = self._begin()

    def update(self, *, last: bool = False) -> None:
        """Tell what is new, and no more than `AT_ONCE` lines unless this is the `last` time.

        A step is told when its speed is known; the `last` time it need not be.

        Raises   DataError for lines that no run writes; whatever the tracker's package raises
        """
        self._speed.renewed()
        if self._metrics.renewed():
            self._read_again()
        told, before = 0, self._told
        while (line := self._metrics.peek()) is not None:
            step, values = _numbers(line)
            if step >= self._told and not self._same:
                if step > self._told or self._digest_with(line) != self._digest:
                    self._begin_anew()
                    before = 0
                    continue
                self._same = True
            if step > self._told:
                speed = self._speed_of(step)
                if (speed is None or told == AT_ONCE) and not last:
                    break
                self._tracker.tell(step, {**values, **(speed or {})})
                self._told, told = step, told + 1
            self._metrics.take()
            self._hash.update(line)
        self._tracker.flush()
        if self._told > before:
            self._digest = self._hash.hexdigest()
            self._write_note()

    def end(self) -> None:
        """Let the tracker send what it has."""
        self._tracker.end()
        self._metrics.close()
        self._speed.close()

    def _begin(self) -> Tracker:
        self._write_note()
        self._metrics.rewind()
        self._read_again()
        return self._open(
            Opening(
                folder=self._log,
                name=self._name,
                code=self._code,
                after=self._told,
                facts=self._facts,
            )
        )

    def _begin_anew(self) -> None:
        self._tracker.end()
        self._code, self._told, self._digest = _new_code(), 0, ""
        self._tracker = self._begin()

    def _read_again(self) -> None:
        self._speed.rewind()
        self._hash = hashlib.sha256()
        self._same = self._told == 0

    def _digest_with(self, line: bytes) -> str:
        with_it = self._hash.copy()
        with_it.update(line)
        return with_it.hexdigest()

    def _speed_of(self, step: int) -> dict[str, float] | None:
        """What log/speed.jsonl says of a step; None when it has not come that far."""
        while (line := self._speed.peek()) is not None:
            of, values = _numbers(line)
            if of >= step:
                return values if of == step else {}
            self._speed.take()
        return None

    def _write_note(self) -> None:
        note = {"schema": SCHEMA, "code": self._code, "told": self._told, "sha256": self._digest}
        write_json(self._note, note)

    def _noted(self) -> tuple[str, int, str]:
        """Code of the run in the tracker, last step that was told, and hash of the lines up to it."""
        with contextlib.suppress(DataError, KeyError, TypeError):
            note = read_json(self._note)
            code, told, digest = note["code"], note["told"], note["sha256"]
            if note["schema"] == SCHEMA and isinstance(told, int) and _CODE.fullmatch(code):
                return code, told, str(digest)
        return _new_code(), 0, ""


def label(request: Request) -> str:
    """What a mirror's files are called: another project of the same tracker is another mirror."""
    plain = to_plain(request)["mirror"]
    return f"{plain['kind'].lower()}-{sha256_value(plain)[:8]}"


def without_secrets(text: str) -> str:
    """`text` on one line, short, without what looks like a key or a token."""
    return visible(_SECRET.sub("…", text[:_LONGEST_REASON]), _LONGEST_REASON)


def main() -> int:
    """Keep a mirror until the run has ended."""
    # An orphan in a stopping batch job gets a signal long before it is killed.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(_NICENESS)
    run, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "w")
    # Packages ask and talk: nobody answers, and what they print may name an account.
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    try:
        asked = json.loads(run.readline())
        _keep(from_plain(Request, asked["request"]), asked["facts"], run)
    except Exception as error:
        with contextlib.suppress(BrokenPipeError):
            told = error.line() if isinstance(error, StammError) else _why(error)
            answers.write(json.dumps(without_secrets(told)) + "\n")
            answers.flush()
        os._exit(1)  # a package that failed may wait for its own end for ever
    os._exit(0)


def _keep(request: Request, facts: Mapping[str, Any], run: BinaryIO) -> None:
    folder = Path(request.folder) / "log" / "mirrors"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{label(request)}.lock").open("a") as held:
        # The mirror of an earlier start may still be sending, for as long as it is let.
        while not _locked(held):
            time.sleep(_LOCKED_S)
        copy = Copy(request, facts, lambda opening: open_tracker(request.mirror, opening))
        while not _ended(run, INTERVAL_S):
            copy.update()
        signal.alarm(_LAST_S)
        copy.update(last=True)
        copy.end()


def _locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _ended(run: BinaryIO, seconds: float) -> bool:
    """Whether the run ends within this time."""
    return bool(select.select([run], [], [], seconds)[0])


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


def _new_code() -> str:
    return secrets.token_hex(8)


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
