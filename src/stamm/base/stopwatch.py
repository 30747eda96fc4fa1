"""Where the time goes: seconds by the name of what was done, lap after lap."""

from __future__ import annotations

import time


class Laps:
    """A clock that is always running: what passes between two laps belongs to the second one.

    seconds   what each name took so far
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.perf_counter()

    def lap(self, name: str) -> None:
        """Count the time since the lap before to `name`."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._at
        self._at = now
