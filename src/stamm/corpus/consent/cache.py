"""A bounded least-recently-used (LRU) cache of parsed files by host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cachetools import LRUCache, cached

V = TypeVar("V")
_OVERHEAD_CHARACTERS = 256


def cache_by_host(
    load: Callable[[str], tuple[V, int]], capacity: int
) -> Callable[[str], tuple[V, int]]:
    """`load` behind an LRU cache.

    load       returns the value of a host, and the characters it was parsed from
    capacity   characters cached together, 256 counted for each host beside its text. A value that
               is larger than this alone is loaded at every call
    """
    cache: LRUCache[str, tuple[V, int]] = LRUCache(
        capacity, getsizeof=lambda loaded: loaded[1] + _OVERHEAD_CHARACTERS
    )
    return cached(cache, key=lambda host: host)(load)
