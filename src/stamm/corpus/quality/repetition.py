"""Repetition in a text: shares of repeated lines, paragraphs and n-grams of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

TOP_GRAMS: Final = (2, 3, 4)
REPEATED_GRAMS: Final = (5, 6, 7, 8, 9, 10)

_U = np.uint64
# The finalizer of splitmix64 (Steele et al. 2014) turns small numbers into well-mixed ones.
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_FACTOR = _U(0x9E3779B97F4A7C15)


def repeated_share(pieces: Sequence[str]) -> tuple[float, float]:
    """Share of repeated pieces, and share of all characters in such pieces.

    Edge   (0, 0) for no pieces.
    """
    letters = sum(map(len, pieces))
    if not letters:
        return 0.0, 0.0
    distinct = set(pieces)
    return 1 - len(distinct) / len(pieces), 1 - sum(map(len, distinct)) / letters


def gram_shares(
    numbers: NDArray[np.int64], letters: NDArray[np.int64], width: int
) -> dict[str, float]:
    """Shares of the characters of all words in repeated n-grams of words.

    top_n       the n-gram with most characters over all its occurrences, if it occurs twice or more
                (n = 2, 3, 4)
    repeated_n  repeated n-grams, each character counted once (n = 5 to 10)

    numbers  of the words in their order: equal words, equal numbers, from 0
    letters  characters of each word
    width    words that count as one: 2 where a word is a single letter

    Edge     blanks and punctuation do not count. The first of several equal n-grams is not a
             repetition.
    Source   Rae et al. 2021, arXiv 2112.11446, section A.1.1. They name the most frequent run;
             of equally frequent ones this is the one with most characters.
    Checked  tests/unit/corpus/quality/test_repetition.py
    """
    count, all_letters = len(numbers), int(letters.sum())
    shares = dict.fromkeys(
        [f"top_{n}" for n in TOP_GRAMS] + [f"repeated_{n}" for n in REPEATED_GRAMS], 0.0
    )
    ends = np.concatenate(([0], np.cumsum(letters)))
    hashes = mixed = _mixed(numbers.astype(np.uint64))
    starts = np.arange(count)
    for run in range(2, REPEATED_GRAMS[-1] * width + 1):
        # A run can only repeat where the run that is one word shorter repeats.
        starts = starts[starts <= count - run]
        if not len(starts):
            break
        hashes = hashes[: count - run + 1] * _FACTOR + mixed[run - 1 :]
        starts, again, groups = _repeated(hashes, starts)
        n, rest = divmod(run, width)
        if not rest and len(starts) and n in TOP_GRAMS:
            shares[f"top_{n}"] = _top(starts, groups, ends, run) / all_letters
        elif not rest and n in REPEATED_GRAMS:
            shares[f"repeated_{n}"] = _covered(again, letters, run) / all_letters
    return shares


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    numbers = (numbers + _U(1)) * _FACTOR
    for shift, factor in _MIX:
        numbers = (numbers ^ (numbers >> _U(shift))) * _U(factor)
    return numbers ^ (numbers >> _U(31))


def _repeated(
    hashes: NDArray[np.uint64], starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The starts whose hash repeats, those of them after the first, and the index at which each
    group of equal hashes begins in the former.

    A group is in ascending order: the sort is stable, and equal runs of n words were in one
    ascending group of equal runs of n - 1.
    """
    order = np.argsort(hashes[starts], kind="stable")
    ordered, placed = hashes[starts][order], starts[order]
    repeats = np.concatenate(([False], ordered[1:] == ordered[:-1]))
    shared = repeats | np.concatenate((repeats[1:], [False]))
    return placed[shared], placed[repeats], np.flatnonzero(~repeats[shared])


def _top(
    starts: NDArray[np.int64], groups: NDArray[np.int64], ends: NDArray[np.int64], run: int
) -> float:
    sizes = np.diff(np.append(groups, len(starts)))
    lengths = ends[starts[groups] + run] - ends[starts[groups]]
    most = sizes == sizes.max()
    # Overlapping runs ("ha ha ha") would count characters twice.
    return min(float((sizes * lengths)[most].max()), float(ends[-1]))


def _covered(again: NDArray[np.int64], letters: NDArray[np.int64], run: int) -> int:
    edges = np.zeros(len(letters) + 1, np.int64)
    np.add.at(edges, again, 1)
    np.add.at(edges, again + run, -1)
    return int(letters[np.cumsum(edges[:-1]) > 0].sum())
