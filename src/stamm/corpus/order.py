"""The order of training windows: a shuffle that any window can be looked up in, on any version.

numpy's random streams may change between releases, so the keys of the shuffle are made here.
"""

from __future__ import annotations

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

    Window w of the stream holds the `length + 1` tokens from w * length on; neighbours share one
    token, the target of the one and the first input of the other. Tokens behind the last whole
    window are not read; `dropped_tokens` tells how many.
    """

    def __init__(self, num_tokens: int, length: int, seed: int) -> None:
        if length < 1:
            raise DataError(f"a window of {length} tokens holds nothing", fix="Use at least 1")
        self.count = max(0, num_tokens - 1) // length
        if self.count == 0:
            raise DataError(
                f"{num_tokens} tokens do not fill one window of {length} and its target",
                fix="Add text, or shorten the context",
            )
        self.length = length
        self.dropped_tokens = num_tokens - (self.count * length + 1)
        self._seed = seed
        self._epoch = -1
        self._order: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def window(self, index: int) -> tuple[int, int]:
        """First token and stop (exclusive, length + 1 later) of window `index` of the run.

        Each epoch reads every window once, in an order of its own.
        """
        if index < 0:
            raise DataError(f"window {index} does not exist", fix="Windows count from 0")
        epoch, place = divmod(index, self.count)
        if epoch != self._epoch:
            self._order = permutation(self.count, _epoch_seed(self._seed, epoch))
            self._epoch = epoch
        start = int(self._order[place]) * self.length
        return start, start + self.length + 1


def _epoch_seed(seed: int, epoch: int) -> int:
    mixed = splitmix64(np.array([seed & _MASK], dtype=np.uint64))[0]
    return int(splitmix64(np.array([int(mixed) ^ (epoch & _MASK)], dtype=np.uint64))[0])
