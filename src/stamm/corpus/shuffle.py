"""What training reads, and in which order: a shuffle that any window can be looked up in.

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
# Measured over 600,000 seeds: all orders of 8 numbers come up equally often after 24 rounds; after
# 16 a chi-square test still sees a bias. Large shuffles pass every test from 6 rounds on.
_ROUNDS = 24


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What reading every byte of a stream has shown.

    sha256   identity of its tokens and documents, whatever its files are called
    facts    what belongs beside it in a run's manifest
    remark   what a person should know before training on it; "" when nothing
    """

    sha256: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    remark: str = ""


class TokenStream(Protocol):
    """Tokens in a row, any of them at once: a packed corpus, or files of others."""

    @property
    def num_tokens(self) -> int:
        """How many there are."""

    @property
    def stages(self) -> tuple[tuple[int, int], ...]:
        """First token and stop of each stage, in order."""

    @property
    def vocabulary(self) -> int:
        """How many ids their tokenizer has; every token is below it, once verified."""

    @property
    def end_id(self) -> int | None:
        """The token that ends each document; None: none does, or it is not known."""

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens start .. stop - 1, int64."""

    def document_starts(self) -> NDArray[np.int64]:
        """The first token of each document, rising from 0."""


class StoredTokens(TokenStream, Protocol):
    """Tokens that lie in files, which say, or are asked, what they are."""

    @property
    def num_files(self) -> int:
        """Files that can be examined each by itself."""

    def examine(self, files: Iterable[int]) -> dict[int, Any]:
        """Read these files whole, and tell of each what `proof` asks for: plain Python objects.

        Raises   DataError when one is not what it says it is
        """

    def proof(self, seen: Mapping[int, Any]) -> Proof:
        """What has been shown once every file was examined, by whomever."""


def verify(stream: StoredTokens) -> Proof:
    """Read everything once. Raises DataError when it is not what it says it is."""
    return stream.proof(stream.examine(range(stream.num_files)))


def permutation(count: int, seed: int) -> NDArray[np.int64]:
    """The numbers 0 .. count - 1 in an order that depends on `seed` alone, for what fits in memory.

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
    """Which of 0 .. count - 1 stands at each of `places` of a shuffle that no memory holds.

    A number is a row and a column of a table with at least `count` cells. Rounds move it along
    its column, then along its row, by what a random stream says of the other coordinate; a number
    that comes out in a cell of no use goes in again.

    row    = (row + stream(key, column)) mod rows       in even rounds
    column = (column + stream(key, row)) mod columns    in odd ones
    stream(key, i) = splitmix64(key + i * golden)
    key    = splitmix64(splitmix64(seed) + round * golden)

    Shapes   [N] in and out, int64; memory and time do not depend on `count`.
    Edge     exact for every count that int64 holds. Fewer cells than one column has are of no
             use, so that of many numbers hardly one goes in again.
    Raises   DataError for a place that is none of 0 .. count - 1.
    Source   Luby and Rackoff 1988 (rounds); Black and Rogaway 2002 (cycle walking, and sides of
             any length). They keep secrets, this does not: its stream is no cipher.
    Checked  tests/unit/corpus/test_shuffle.py
    """
    if len(places) and not 0 <= places.min() <= places.max() < count:
        raise DataError(
            f"places {places.min()} .. {places.max()} are not all among {count}",
            fix=f"Ask for 0 .. {count - 1}",
        )
    numbers = places.astype(np.uint64)
    again = np.arange(len(numbers))
    while len(again):
        numbers[again] = _through_the_rounds(numbers[again], count, seed)
        again = again[numbers[again] >= count]
    return numbers.astype(np.int64)


def _through_the_rounds(numbers: NDArray[np.uint64], count: int, seed: int) -> NDArray[np.uint64]:
    # Rows are even in number: with two odd sides every round would be an even permutation, and
    # of the orders of few windows one half would come up more often than the other.
    root = math.isqrt(count - 1) + 1
    rows = np.uint64(root + root % 2)
    columns = np.uint64(-(-count // int(rows)))
    row, column = numbers // columns, numbers % columns
    for turn, key in enumerate(_stream(seed, _ROUNDS)):
        if turn % 2 == 0:
            row = (row + splitmix64(key + column * GOLDEN) % rows) % rows
        else:
            column = (column + splitmix64(key + row * GOLDEN) % columns) % columns
    return row * columns + column


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

    def windows(self, first: int, count: int) -> NDArray[np.int64]:
        """First token of each of the windows first .. first + count - 1 of the run.

        Each epoch reads every window once, in an order of its own.

        Shapes   [count], int64; a window stops, exclusively, `length + 1` later.
        """
        if first < 0 or count < 0:
            raise DataError(
                f"there are no {count} windows from window {first} on", fix="Windows count from 0"
            )
        pieces: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
        index, stop = first, first + count
        while index < stop:
            epoch, place = divmod(index, self.count)
            stage = bisect.bisect_right(self._borders, place) - 1
            begin, end = self._borders[stage : stage + 2]
            taken = min(end - place, stop - index)
            places = np.arange(place - begin, place - begin + taken, dtype=np.int64)
            order = shuffled(places, end - begin, _shuffle_seed(self._seed, epoch, stage))
            pieces.append(self._starts[stage] + order * self.length)
            index += taken
        return np.concatenate(pieces)


def _shuffle_seed(seed: int, epoch: int, stage: int) -> int:
    """One seed per epoch and stage; the first stage's is that of a stream without stages."""
    for number in (epoch, *([stage] if stage else [])):
        mixed = int(splitmix64(np.array([seed & _MASK], dtype=np.uint64))[0])
        seed = int(splitmix64(np.array([mixed ^ (number & _MASK)], dtype=np.uint64))[0])
    return seed
