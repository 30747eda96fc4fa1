"""Goldfish loss: tokens chosen by a hash of the tokens before them are never trained on.

A model that is never trained on a token cannot reproduce it verbatim, so the continuation of a
repeated passage ends at its masked tokens. The mask is a pure function of the text: a passage is
masked at the same tokens each time it occurs.

Source   Hans et al. 2024 (arXiv 2406.10209); as used by Apertus, k = h = 50 (arXiv 2509.14233).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stamm.base.hashing import GOLDEN, mix64
from stamm.losses.config import Goldfish
from stamm.losses.mask_statistics import Coverage, LabelRun, MaskCounts, cut

TABLE_SIZE = 1_000_003
TABLE_SEED = 2_971_215_073


def stated_rate(config: Goldfish) -> float:
    """Share of full windows that are dropped when all keys are equally likely.

    1/k for "stamm"; for "apertus" the fraction of its table's slots that drop, 1/k up to the
    randomness of its draw.
    """
    if config.hash == "apertus":
        return float(np.mean(_table() < np.float32(1.0 / config.k)))
    return 1.0 / config.k


def keep_mask(
    config: Goldfish, labels: NDArray[np.int64], document: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """True where a label is learned, for one run of consecutive labels, shape (n,).

    labels     the tokens to be predicted, in order
    document   a number per label, equal within a document; used by hash="stamm" only

    Edge     the first h - 1 labels (of the run for "apertus", of each document for "stamm") have
             no full window and are kept.
    Checked  tests/unit/losses/test_goldfish.py
    """
    _, drops = _hashed(config, labels)
    return ~_by_label(drops & _whole(config, document), len(labels))


def coverage(
    config: Goldfish, runs: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]
) -> Coverage:
    """Measure the mask of `config` on runs of consecutive labels, each hashed by itself.

    runs   labels and their documents: the whole stream for "stamm", one window after another for
           "apertus", whose code never sees more than a window

    Memory   that of one run, and of the work on a piece of it
    """
    tally = MaskCounts(stated_rate(config))
    for labels, document in runs:
        for piece in cut(labels, document, config.h - 1):
            measure(config, piece, tally)
    return tally.total()


def measure(config: Goldfish, piece: LabelRun, tally: MaskCounts) -> None:
    """Add the statistics of the mask of `config` on a piece of text to `tally`.

    piece    with h - 1 labels before the new ones, where its run has as many
    """
    labels, count = piece.labels, len(piece.labels)
    key, drops = _hashed(config, labels)
    whole = _whole(config, piece.document)
    # The content of a window, independent of the hash that is measured.
    identity = key if config.hash == "stamm" else _polynomial(labels, config.h, salt=0)
    tally.add(
        piece,
        keep=~_by_label(drops & whole, count),
        window=_by_label(whole, count),
        zero=_by_label((key == 0) & whole, count),
        identity=_by_label(identity, count),
    )


def _hashed(config: Goldfish, labels: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Key of each window of h labels, and whether it drops its last label; shapes (n - h + 1,)."""
    if config.hash == "apertus":
        product = _product(labels, config.h)
        # Floor modulo, as torch's remainder: never negative.
        return product, _table()[product % TABLE_SIZE] < np.float32(1.0 / config.k)
    key = _polynomial(labels, config.h, config.salt)
    return key, mix64(key) < np.uint64(2**64 // config.k)


def _whole(config: Goldfish, document: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each window of h labels counts; shape (n - h + 1,)."""
    count = max(len(document) - config.h + 1, 0)
    if config.hash == "apertus":
        return np.ones(count, dtype=np.bool_)
    inside: NDArray[np.bool_] = document[config.h - 1 :] == document[:count]
    return inside


def _by_label(of_windows: NDArray[Any], count: int) -> NDArray[Any]:
    """Values of windows at their last labels; 0 at labels without a full window."""
    values = np.zeros(count, dtype=of_windows.dtype)
    values[count - len(of_windows) :] = of_windows
    return values


def _polynomial(labels: NDArray[np.int64], h: int, salt: int) -> NDArray[np.uint64]:
    """sum_j mixed[i + j] golden^(h - 1 - j) modulo 2^64: the mixed ids of a window, in order."""

    def join(left: Any, right: Any, length: int) -> Any:
        return left * np.uint64(pow(int(GOLDEN), length, 2**64)) + right

    with np.errstate(over="ignore"):
        mixed = mix64(labels.astype(np.uint64) + np.uint64(salt) * GOLDEN + np.uint64(1))
    return _over_windows(mixed, h, join)


def _product(labels: NDArray[np.int64], h: int) -> NDArray[np.int64]:
    """Products of h consecutive labels, wrapping in int64 as the published code's do."""
    return _over_windows(labels, h, lambda left, right, _: left * right)


def _over_windows(
    values: NDArray[Any], h: int, join: Callable[[Any, Any, int], Any]
) -> NDArray[Any]:
    """values[i], .., values[i + h - 1] joined, for every i, in about 2 log2(h) passes.

    join    of neighbours: left, right, and how many values are in right; associative
    """
    count = max(len(values) - h + 1, 0)
    joined, covered = values[:0], 0
    part, length = values, 1  # part[i] joins `length` values from i on
    while count:
        if h & length:
            last = part[covered : covered + count]
            joined = join(joined, last, length) if covered else last
            covered += length
        if covered == h:
            break
        part = join(part[:-length], part[length:], length)
        length *= 2
    return joined


@functools.cache
def _table() -> NDArray[np.float32]:
    """The published table: torch.rand(1_000_003) of a CPU generator seeded 2971215073.

    Both torch and numpy draw from the Mersenne Twister with Knuth's seeding; torch's uniform
    float32 is the low 24 bits of each 32-bit draw. A test compares the two.
    """
    draws = np.random.RandomState(TABLE_SEED).randint(0, 2**32, TABLE_SIZE, dtype=np.uint32)
    table: NDArray[np.float32] = (draws & np.uint32(2**24 - 1)).astype(np.float32) / np.float32(
        2**24
    )
    return table
