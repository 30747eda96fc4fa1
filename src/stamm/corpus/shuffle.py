"""Sampler of training windows: a shuffle with random access, in memory independent of its size.

numpy's random streams may change between releases, so the keys of the shuffle are made here.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.base.hashing import GOLDEN, splitmix64

_MASK = 2**64 - 1
# Measured over 600,000 seeds: all orders of 8 numbers are equally frequent after 24 rounds; after
# 16 a chi-square test still finds a bias. Large shuffles pass every test from 6 rounds on.
_ROUNDS = 24


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Result of reading every byte of a stream.

    sha256   identity of its tokens and documents, independent of file names
    facts    further values for a run's manifest
    remark   warning before training on it; "" without one
    """

    sha256: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    remark: str = ""


class TokenStream(Protocol):
    """A stream of tokens with random access: a packed corpus, or Megatron files."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""

    @property
    def stages(self) -> tuple[tuple[int, int], ...]:
        """First token and stop of each stage, in order."""

    @property
    def vocabulary(self) -> int:
        """Number of ids of the tokenizer; after `verify` every token is below it."""

    @property
    def end_id(self) -> int | None:
        """The token that ends each document; None: none does, or it is not known."""

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens start .. stop - 1, int64."""

    def document_starts(self) -> NDArray[np.int64]:
        """The first token of each document, rising from 0."""


class StoredTokens(TokenStream, Protocol):
    """A token stream stored in files that can be verified."""

    @property
    def num_files(self) -> int:
        """Number of files that can be examined separately."""

    def examine(self, files: Iterable[int]) -> dict[int, Any]:
        """Read these files completely, for `proof`; raises DataError where one does not match."""

    def proof(self, seen: Mapping[int, Any]) -> Proof:
        """The result from those of all files, which several processes may have examined."""


def verify(stream: StoredTokens) -> Proof:
    """Read everything once. Raises DataError when content and hash or index differ."""
    return stream.proof(stream.examine(range(stream.num_files)))


def permutation(count: int, seed: int) -> NDArray[np.int64]:
    """The numbers 0 .. count - 1 in an order that depends on `seed` only, in memory.

    order = stable argsort of splitmix64(splitmix64(seed) + i * golden), i = 0 .. count - 1

    Shapes   [count], int64.
    Checked  tests/unit/corpus/test_order.py: pinned values, so that the order can never drift.
    """
    return np.argsort(_stream(seed, count), kind="stable").astype(np.int64)


def _stream(seed: int, count: int) -> NDArray[np.uint64]:
    """The first `count` outputs of the random stream that begins at a well-mixed seed."""
    start = splitmix64(np.array([seed & _MASK], dtype=np.uint64))
    return splitmix64(start + np.arange(count, dtype=np.uint64) * GOLDEN)


def shuffled(places: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """The number, of 0 .. count - 1, at each of `places` of a shuffle that is never stored.

    A number is a row and a column of a table with at least `count` cells. Rounds move it along
    its column, then along its row, by a random number for the other coordinate; a number that ends
    in an unused cell enters again (cycle walking).

    row    = (row + stream(key, column)) mod rows       in even rounds
    column = (column + stream(key, row)) mod columns    in odd ones
    stream(key, i) = splitmix64(key + i * golden)
    key    = splitmix64(splitmix64(seed) + round * golden)

    Shapes   [N] in and out, int64; memory and time do not depend on `count`.
    Edge     exact for every count in int64. Fewer than one column of cells are unused, so that
             few numbers enter again.
    Raises   DataError for a place outside 0 .. count - 1.
    Source   Luby and Rackoff 1988 (rounds); Black and Rogaway 2002 (cycle walking, and sides of
             any length). Unlike theirs, this stream is not cryptographically secure.
    Checked  tests/unit/corpus/test_shuffle.py
    """
    if len(places) and not 0 <= places.min() <= places.max() < count:
        raise DataError(
            f"places {places.min()} .. {places.max()} are not all among {count}",
            fix=f"Ask for 0 .. {count - 1}",
        )
    numbers = places.astype(np.uint64)
    unplaced = np.arange(len(numbers))
    while len(unplaced):
        numbers[unplaced] = _through_the_rounds(numbers[unplaced], count, seed)
        unplaced = unplaced[numbers[unplaced] >= count]
    return numbers.astype(np.int64)


def places_of(numbers: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """The place of each of `numbers` in the shuffle of 0 .. count - 1: the inverse of `shuffled`.

    Shapes   [N] in and out, int64; memory and time do not depend on `count`.
    Checked  tests/unit/corpus/test_shuffle.py
    """
    places = numbers.astype(np.uint64)
    unplaced = np.arange(len(places))
    while len(unplaced):
        places[unplaced] = _through_the_rounds(places[unplaced], count, seed, back=True)
        unplaced = unplaced[places[unplaced] >= count]
    return places.astype(np.int64)


def _through_the_rounds(
    numbers: NDArray[np.uint64], count: int, seed: int, *, back: bool = False
) -> NDArray[np.uint64]:
    # The number of rows is even: with two odd sides every round would be an even permutation, and
    # half of the orders of few windows would be more frequent than the other half.
    root = math.isqrt(count - 1) + 1
    rows = np.uint64(root + root % 2)
    columns = np.uint64(-(-count // int(rows)))
    row, column = numbers // columns, numbers % columns
    turns = list(enumerate(_stream(seed, _ROUNDS)))
    for turn, key in reversed(turns) if back else turns:
        if turn % 2 == 0:
            step = splitmix64(key + column * GOLDEN) % rows
            row = (row + (rows - step if back else step)) % rows
        else:
            step = splitmix64(key + row * GOLDEN) % columns
            column = (column + (columns - step if back else step)) % columns
    return row * columns + column


class WindowOrder:
    """The tokens of each window of a run, over any number of epochs.

    Window w of a stage has the `length + 1` tokens from w * length after its first on; neighbours
    share one token, the target of the one and the first input of the other. The windows of a
    stage are shuffled among themselves, and stages follow one another. Tokens after the last whole
    window of a stage are not read; `dropped_tokens` is their number.

    stages   first token and stop of each stage, in order
    Raises   DataError when a stage does not fill a window.
    """

    def __init__(self, stages: Sequence[tuple[int, int]], length: int, seed: int) -> None:
        if length < 1:
            raise DataError(f"a window of {length} tokens is empty", fix="Use at least 1")
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

    def windows(self, first: int, count: int) -> NDArray[np.int64]:
        """First token of each of the windows first .. first + count - 1 of the run.

        Each epoch reads every window once, in its own order.

        Shapes   [count], int64; a window stops, exclusively, `length + 1` later.
        """
        if first < 0 or count < 0:
            raise DataError(
                f"there are no {count} windows from window {first} on", fix="Windows count from 0"
            )
        pieces: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
        index, stop = first, first + count
        while index < stop:
            epoch, window = divmod(index, self.count)
            stage = bisect.bisect_right(self._borders, window) - 1
            begin, end = self._borders[stage : stage + 2]
            num_windows = min(end - window, stop - index)
            positions = np.arange(window - begin, window - begin + num_windows, dtype=np.int64)
            order = shuffled(positions, end - begin, _shuffle_seed(self._seed, epoch, stage))
            pieces.append(self._starts[stage] + order * self.length)
            index += num_windows
        return np.concatenate(pieces)

    def readings(
        self, start: int, stop: int, sequences: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The windows of the run 0 .. sequences - 1 that hold a token of start .. stop - 1, and their first tokens.

        Shapes   [readings] both, int64, by rising window
        Checked  tests/unit/pretrain/test_trace.py
        """
        parts = [np.empty((2, 0), dtype=np.int64)]
        for stage, (first, (begin, end)) in enumerate(
            zip(self._starts, itertools.pairwise(self._borders), strict=True)
        ):
            # A window's last token is the first of the next.
            low = max(0, -(-(start - first - self.length) // self.length))
            high = min(end - begin - 1, (stop - 1 - first) // self.length)
            if low > high or stop <= start:
                continue
            windows = np.arange(low, high + 1, dtype=np.int64)
            for epoch in range(-(-sequences // self.count)):
                seed = _shuffle_seed(self._seed, epoch, stage)
                at = epoch * self.count + begin + places_of(windows, end - begin, seed)
                parts.append(np.stack([at, first + windows * self.length])[:, at < sequences])
        numbers, starts = np.concatenate(parts, axis=1)
        order = np.argsort(numbers)
        return numbers[order], starts[order]


def _shuffle_seed(seed: int, epoch: int, stage: int) -> int:
    """One seed per epoch and stage; the first stage's is that of a stream without stages."""
    for number in (epoch, *([stage] if stage else [])):
        mixed = int(splitmix64(np.array([seed & _MASK], dtype=np.uint64))[0])
        seed = int(splitmix64(np.array([mixed ^ (number & _MASK)], dtype=np.uint64))[0])
    return seed
