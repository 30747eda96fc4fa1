"""Mirrors of a run's metrics in Trackio, Weights & Biases and TensorBoard.

metrics.jsonl stays the truth. Each mirror is kept by a process of its own, which reads the files of
the run as they grow (`runs.mirroring`): nothing waits for it, its memory does not grow with what a
tracker does not take, and its imports, threads and random numbers are not those of training.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stamm.base.config import to_plain, validate
from stamm.base.console import Progress

# How long the end of a run waits for its mirrors, all together; they go on without it.
PATIENCE_S = 10.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True)
class TensorBoard:
    """Event files in log/tensorboard/, for `tensorboard --logdir`. Needs no other package."""


@dataclass(frozen=True, kw_only=True)
class Trackio:
    """A project of Trackio, in the database of this account, for `trackio show`.

    space   "owner/name": in that Space of the Hugging Face Hub, whose token is not ours to keep:
            log in with `hf auth login`. Empty: nothing leaves this machine
    """

    project: str = "stamm"
    space: str = ""

    def __post_init__(self) -> None:
        space = self.space.split("/") if self.space else []
        validate(
            self,
            ("project", _is_name(self.project), "must be letters, digits, '.', '-' and '_'"),
            ("space", len(space) in (0, 2) and all(map(_is_name, space)), "must be owner/name"),
        )


@dataclass(frozen=True, kw_only=True)
class WandB:
    """A project of Weights & Biases. Its key is not ours to keep: log in with `wandb login`.

    entity   the team or the account; empty: the one that logged in
    mode     "offline" keeps what `wandb sync` sends later in log/wandb/
    """

    project: str = "stamm"
    entity: str = ""
    mode: Literal["online", "offline"] = "online"

    def __post_init__(self) -> None:
        validate(
            self,
            ("project", _is_name(self.project), "must be letters, digits, '.', '-' and '_'"),
            ("entity", not self.entity or _is_name(self.entity), "is no name of an account"),
        )


Mirror = TensorBoard | Trackio | WandB


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the process that keeps a mirror is asked to do.

    folder   holds metrics.jsonl and log/speed.jsonl
    name     what the run is called in the tracker
    """

    mirror: TensorBoard | Trackio | WandB
    folder: str
    name: str


@contextlib.contextmanager
def mirrored(
    mirrors: Sequence[Mirror],
    folder: Path,
    name: str,
    progress: Progress,
    facts: Mapping[str, Any] | None = None,
) -> Iterator[None]:
    """Keep `mirrors` of the metrics in `folder` up to date while the body runs.

    facts    what the trackers show beside the metrics (a configuration in plain form)
    Edge     a mirror that cannot be kept is told once, and left. The next start goes on with it
             where it was, or brings it up to date from the first line. Lines that come again with
             the same bytes are not sent again; where steps were done again with other numbers, a
             new run is begun in the tracker, and gets every line
    Checked  tests/unit/runs/test_tracker_config.py
    """
    kept = [_Kept(mirror, folder, name, progress, facts or {}) for mirror in dict.fromkeys(mirrors)]
    try:
        yield
    finally:
        for one in kept:
            one.finish()
        until = time.monotonic() + PATIENCE_S
        for one in kept:
            one.wait(max(until - time.monotonic(), 0.0))


class _Kept:
    """One mirror, as the run sees it."""

    def __init__(
        self,
        mirror: Mirror,
        folder: Path,
        name: str,
        progress: Progress,
        facts: Mapping[str, Any],
    ) -> None:
        self._label, self._progress = type(mirror).__name__, progress
        request = Request(mirror=mirror, folder=str(folder.resolve()), name=name)
        asked = json.dumps({"request": to_plain(request), "facts": facts})
        self._watch: threading.Thread | None = None
        self._left = False
        try:
            # In a session of its own, an interrupt from the keyboard leaves it time for the rest.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stamm.runs.tracker_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                start_new_session=True,
            )
        except OSError as error:
            self._say(f"its process cannot be started: {error.strerror}")
            return
        self._watch = threading.Thread(target=self._listen, name="mirror", daemon=True)
        self._watch.start()
        self._write(asked + "\n")

    def finish(self) -> None:
        """Say that no line will follow."""
        if self._watch is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def wait(self, seconds: float) -> None:
        """Until every line is sent, but no longer than this."""
        if self._watch is None:
            return
        self._watch.join(seconds)
        if self._watch.is_alive():
            self._left = True  # nobody may be there to listen any more
            self._progress.log(f"{self._label} is not up to date yet: its mirror goes on sending.")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # it has ended; `_listen` says why
            assert self._process.stdin is not None
            self._process.stdin.write(text)
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        status = self._process.wait()
        if told.endswith("\n"):
            why = json.loads(told)
        else:
            why = f"its process ended with status {status}" if status else ""
        if why and not self._left:
            self._say(why)

    def _say(self, why: str) -> None:
        self._progress.log(
            f"The {self._label} mirror is left: {why.rstrip('.')}. metrics.jsonl has every line, and the next "
            "start of this run goes on with the mirror."
        )
