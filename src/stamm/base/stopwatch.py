"""Wall-clock seconds by stage, such as reading, filtering and writing."""

from __future__ import annotations

import time


class Stopwatch:
    """Adds up the seconds between calls of `add`, by the name of the stage that ended.

    seconds   total seconds of each stage so far
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.perf_counter()

    def add(self, name: str) -> None:
        """Count the time since the previous call (or since creation) as stage `name`."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._at
        self._at = now
