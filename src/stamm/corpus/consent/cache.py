"""What a process remembers of hosts while it asks about one address after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")
# What an entry costs beside what it holds, in the measure of `Held`: characters before parsing.
ENTRY = 256


class Held(Generic[V]):
    """Values by host, made when first asked; the oldest are forgotten.

    make    gives the value of a host and its size
    bound   the sizes held together; the value asked last is held whatever its size
    """

    def __init__(self, make: Callable[[str], tuple[V, int]], bound: int) -> None:
        self._make = make
        self._bound = bound
        self._held: dict[str, V] = {}
        self._sizes: dict[str, int] = {}
        self._size = 0

    def of(self, host: str) -> V:
        """The value of a host."""
        if host not in self._held:
            self._held[host], self._sizes[host] = self._make(host)
            self._size += self._sizes[host]
            while self._size > self._bound and len(self._held) > 1:
                oldest = next(iter(self._held))
                del self._held[oldest]
                self._size -= self._sizes.pop(oldest)
        return self._held[host]


def twin(host: str) -> str:
    """The same name with or without "www.": whose word stands in where a host has none."""
    return host.removeprefix("www.") if host.startswith("www.") else f"www.{host}"
