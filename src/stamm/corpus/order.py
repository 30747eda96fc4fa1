"""The order of training windows: a shuffle that any window can be looked up in, on any version.

numpy's random streams may change between releases, so the keys of the shuffle are made here.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.base.mixing import GOLDEN, splitmix64

_MASK = 2**64 - 1


def permutation(count: int, seed: int) -> NDArray[np.int64]:
    """The numbers 0 .. count - 1 in an order that depends on `seed` alone.

    order = stable argsort of splitmix64(splitmix64(seed) + i * golden), i = 0 .. count - 1

    Shapes   [count], int64.
    Checked  tests/unit/corpus/test_order.py: pinned values, so that the order can never drift.
    """
    start = splitmix64(np.array([seed & _MASK], dtype=np.uint64))[0]
    with np.errstate(over="ignore"):
        states = start + np.arange(count, dtype=np.uint64) * GOLDEN
    return np.argsort(splitmix64(states), kind="stable").astype(np.int64)


class WindowOrder:
    """Which tokens each window of a run reads, over as many epochs as are asked for.

    Window w of a stage holds the `length + 1` tokens from w * length after its first on; neighbours
    share one token, the target of the one and the first input of the other. The windows of a
    stage are shuffled among themselves and stages follow one another. Tokens behind the last whole
    window of a stage are not read; `dropped_tokens` tells how many there are.

    stages   first token and stop of each stage, in order
    Raises   DataError when a stage does not fill a window.
    """

    def __init__(self, stages: Sequence[tuple[int, int]], length: int, seed: int) -> None:
        if length < 1:
            raise DataError(f"a window of {length} tokens holds nothing", fix="Use at least 1")
        counts = [max(0, stop - start - 1) // length for start, stop in stages]
        for count, (start, stop) in zip(counts, stages, strict=True):
            if count == 0:
                raise DataError(
                    f"{stop - start} tokens do not fill one window of {length} and its target",
                    fix="Add text, or shorten the context",
                )
        self.count = sum(counts)
        self.length = length
        self.dropped_tokens = sum(
            stop - start - (count * length + 1)
            for count, (start, stop) in zip(counts, stages, strict=True)
        )
        self._starts = [start for start, _ in stages]
        self._borders = [0, *itertools.accumulate(counts)]
        self._seed = seed
        self._shuffled: tuple[int, int] = (-1, -1)
        self._order: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def window(self, index: int) -> tuple[int, int]:
        """First token and stop (exclusive, length + 1 later) of window `index` of the run.

        Each epoch reads every window once, in an order of its own.
        """
        if index < 0:
            raise DataError(f"window {index} does not exist", fix="Windows count from 0")
        epoch, place = divmod(index, self.count)
        stage = bisect.bisect_right(self._borders, place) - 1
        if (epoch, stage) != self._shuffled:
            size = self._borders[stage + 1] - self._borders[stage]
            self._order = permutation(size, _shuffle_seed(self._seed, epoch, stage))
            self._shuffled = epoch, stage
        place -= self._borders[stage]
        start = self._starts[stage] + int(self._order[place]) * self.length
        return start, start + self.length + 1


def _shuffle_seed(seed: int, epoch: int, stage: int) -> int:
    """One seed per epoch and stage; the first stage's is that of a stream without stages."""
    for number in (epoch, *([stage] if stage else [])):
        mixed = int(splitmix64(np.array([seed & _MASK], dtype=np.uint64))[0])
        seed = int(splitmix64(np.array([mixed ^ (number & _MASK)], dtype=np.uint64))[0])
    return seed
