"""What happened in a run beside its plan: spikes, losses that are no numbers, steps passed over.

events.json lists them in order. A run that goes on reads it, so that what was passed over once is
passed over again, and ends with the same bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stamm.base.errors import DataError
from stamm.base.files import read_json, write_json

SCHEMA = 1
PASSED_OVER = "passed over"


class Events:
    """The events of one run.

    path    events.json
    writes  whether this process keeps the file; the others follow what the leader tells them
    known   what the file says; None: it is read here
    """

    def __init__(
        self, path: Path, *, writes: bool = True, known: list[dict[str, Any]] | None = None
    ) -> None:
        self._path = path
        self._writes = writes
        self.all: list[dict[str, Any]] = read_events(path) if known is None else known

    def add(self, kind: str, step: int, **facts: Any) -> None:
        """Note an event that became known after `step` steps, on the disk before anything follows."""
        self.all.append({"event": kind, "step": step, **facts})
        self._write()

    def forget_after(self, step: int) -> None:
        """Drop what was noted of later steps, which are done again; steps passed over stay so."""
        kept = [e for e in self.all if e["step"] <= step or e["event"] == PASSED_OVER]
        if len(kept) < len(self.all):
            self.all = kept
            self._write()

    def passed_over(self) -> set[int]:
        """The steps (from 1) whose sequences are not trained on."""
        return {
            step
            for event in self.all
            if event["event"] == PASSED_OVER
            for step in range(event["first"], event["last"] + 1)
        }

    def _write(self) -> None:
        if self._writes:
            write_json(self._path, {"schema": SCHEMA, "events": self.all})


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events in a file; none when it is not there.

    Raises   DataError when it is something else, or damaged.
    """
    if not path.exists():
        return []
    stored = read_json(path)
    events = stored.get("events") if isinstance(stored, dict) else None
    if (
        not isinstance(events, list)
        or stored.get("schema") != SCHEMA
        or not all(map(_is_event, events))
    ):
        raise DataError(
            f"{path} is not a list of events of schema {SCHEMA}",
            fix="Put it back, or delete it: what is bad is found again where it is trained on again",
        )
    return events


def _is_event(event: Any) -> bool:
    if not isinstance(event, dict) or not isinstance(event.get("step"), int):
        return False
    if event.get("event") != PASSED_OVER:
        return isinstance(event.get("event"), str)
    first, last = event.get("first"), event.get("last")
    return isinstance(first, int) and last == event["step"] and 1 <= first <= last
