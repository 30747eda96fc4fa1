"""Processes forked from one that has loaded the package: a start takes milliseconds, not seconds.

A forked process calls what `python -m stamm`, a script or a module would run, with the same files,
signals and exit codes. Several of one start are the ranks of torchrun, with its environment, and as
with torchrun all are ended when one fails. tests/cli/test_readme.py, the run of `smoke_run` and the
tests of lost ranks start real processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
_GRACE_S = 30.0
SPENT = [0.0]
"""CPU seconds of the forked processes that have ended, for tests/cpu_seconds.py."""


class Forked:
    """A process that the parent forked; the part of `subprocess.Popen` that tests use."""

    def __init__(self, parent: Parent, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._parent = parent

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        if self.returncode is None:
            self.returncode = self._parent.exit_code(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float = 600) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        until = time.monotonic() + timeout
        while self.poll() is None:
            left = until - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self.returncode = self._parent.exit_code(self.pid, left)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Parent:
    """The process that has loaded the package."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._exits: dict[int, int] = {}
        self._started: list[int] = []
        self._unread = b""
        self.spent = 0.0

    def start(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        out: Path = Path(os.devnull),
        errors: Path = Path(os.devnull),
        largest: int = 0,
    ) -> Forked:
        """Start `stamm WORDS`, or what `-m MODULE` or `FILE.py` names, in `folder`.

        out, errors   files to which stdout and stderr are appended; /dev/null: neither is kept
        largest       bytes that may be written into a file; 0: any number
        """
        assert self._process.stdin is not None
        asked = {
            "words": [str(word) for word in words],
            "folder": str(folder),
            "environment": dict(environment),
            "out": str(out),
            "errors": str(errors),
            "largest": largest,
        }
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        until = time.monotonic() + 300  # it may still be loading
        while not self._started:
            assert time.monotonic() < until and self._process.poll() is None
            self._read(1.0)
        return Forked(self, self._started.pop())

    def run(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        *,
        ranks: int = 1,
        timeout: float = 280,
        largest: int = 0,
    ) -> subprocess.CompletedProcess[str]:
        """Start one process, or `ranks` of one distributed run, and wait for all."""
        with TemporaryDirectory(prefix="stamm-forked-") as place:
            out, errors = Path(place) / "out", Path(place) / "errors"
            each = [dict(environment)] if ranks == 1 else _of_ranks(environment, ranks)
            started = [self.start(words, folder, its_own, out, errors, largest) for its_own in each]
            until = time.monotonic() + timeout
            try:
                while (codes := [one.poll() for one in started]).count(None) and not any(codes):
                    if time.monotonic() > until:
                        raise subprocess.TimeoutExpired(list(words), timeout)
                    self._read(0.2)
                for one in started:
                    one.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    for one in started:
                        one.wait(_GRACE_S)
            finally:
                for one in started:
                    one.kill()
                    one.wait()
            code = next((code for code in codes if code), 0)
            return subprocess.CompletedProcess(
                list(words),
                code,
                out.read_text(encoding="utf-8"),
                errors.read_text(encoding="utf-8"),
            )

    def exit_code(self, pid: int, seconds: float) -> int | None:
        """The exit code of a forked process, after at most so many seconds."""
        if pid not in self._exits:
            self._read(seconds)
        return self._exits.get(pid)

    def _read(self, seconds: float) -> None:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while select.select([descriptor], [], [], seconds)[0]:
            found = os.read(descriptor, 65536)
            assert found, "the forking parent has ended"
            *lines, self._unread = (self._unread + found).split(b"\n")
            for line in lines:
                pid, code, cpu_seconds = json.loads(line)
                if code is None:
                    self._started.append(pid)
                else:
                    self._exits[pid] = code
                    self.spent += cpu_seconds
                    SPENT[0] += cpu_seconds
            seconds = 0.0


def _of_ranks(environment: Mapping[str, str], ranks: int) -> list[dict[str, str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks), "TORCHELASTIC_RUN_ID": "forked", "GROUP_RANK": "0",
    }  # fmt: skip
    return [
        {**environment, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(ranks)
    ]


@contextlib.contextmanager
def loaded(environment: Mapping[str, str]) -> Iterator[Parent]:
    """The process that has loaded the package, until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.forking_parent"],
        env=dict(environment),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        parent = Parent(process)
        yield parent
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        SPENT[0] -= parent.spent  # from here on it is among the times of this process's children
