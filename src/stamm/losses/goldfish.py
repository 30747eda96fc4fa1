"""Goldfish loss: a few tokens, chosen by a hash of what stands before them, are never learned.

A model that is never trained on a token cannot reproduce it by rote, so a passage repeated often
breaks off at its masked tokens. The choice must be a pure function of the text: the same passage
must be masked in the same places each time it is seen.

Source   Hans et al. 2024 (arXiv 2406.10209); as used by Apertus, k = h = 50 (arXiv 2509.14233).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stamm.base.config import validate
from stamm.base.mixing import GOLDEN, mix64

TABLE_SIZE = 1_000_003
TABLE_SEED = 2_971_215_073


@dataclass(frozen=True, kw_only=True)
class Goldfish:
    """One token in `k` is dropped, chosen by a hash of the last `h` tokens, itself included.

    hash   "stamm": order-sensitive, never across a document border, ids salted, modulo 2^64.
           "apertus": the released code bit for bit, with its defect: the product of h ids wraps
           to 0 for 19 to 34 % of real windows, which are then never masked, so that 1.15 to
           1.45 % of tokens are dropped instead of 2 %.
    """

    k: int = 50
    h: int = 50
    hash: Literal["stamm", "apertus"] = "stamm"
    salt: int = 0

    def __post_init__(self) -> None:
        validate(
            self,
            ("k", self.k >= 2, "must be at least 2: with 1 every token would be dropped"),
            ("h", self.h >= 1, "must be at least 1"),
            ("salt", 0 <= self.salt < 2**64, "must lie in [0, 2^64)"),
        )


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
    if config.hash == "apertus":
        return _apertus(config, labels)
    return _stamm(config, labels, document)


def _stamm(
    config: Goldfish, labels: NDArray[np.int64], document: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Polynomial of the mixed ids of a window, mixed once more: masked when below 2^64 / k."""
    n, h = len(labels), config.h
    keep = np.ones(n, dtype=np.bool_)
    if n < h:
        return keep
    with np.errstate(over="ignore"):
        mixed = mix64(labels.astype(np.uint64) + np.uint64(config.salt) * GOLDEN + np.uint64(1))
        key = np.zeros(n - h + 1, dtype=np.uint64)
        for j in range(h):
            key = key * GOLDEN + mixed[j : n - h + 1 + j]
        masked = mix64(key) < np.uint64(2**64 // config.k)
    whole = document[h - 1 :] == document[: n - h + 1]
    keep[h - 1 :] = ~(masked & whole)
    return keep


def _apertus(config: Goldfish, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """table[product of the last h labels in int64, modulo the table's size] >= 1/k."""
    n, h = len(labels), config.h
    keep = np.ones(n, dtype=np.bool_)
    if n < h:
        return keep
    product = _product(labels, h)
    key = product % TABLE_SIZE  # floor modulo, as torch's remainder: never negative
    keep[h - 1 :] = _table()[key] >= np.float32(1.0 / config.k)
    return keep


@functools.cache
def _table() -> NDArray[np.float32]:
    """The published table: torch.rand(1_000_003) of a CPU generator seeded 2971215073.

    Both torch and numpy draw from the Mersenne Twister with Knuth's seeding; torch's uniform
    float32 is the low 24 bits of each 32-bit draw. A test holds the two against each other.
    """
    draws = np.random.RandomState(TABLE_SEED).randint(0, 2**32, TABLE_SIZE, dtype=np.uint32)
    table: NDArray[np.float32] = (draws & np.uint32(2**24 - 1)).astype(np.float32) / np.float32(
        2**24
    )
    return table


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What a mask does to a text: how many labels it drops, and how long the learned runs are.

    gap_quantiles   lengths of maximal runs of learned labels at 50, 90, 99 and 100 %
    long_share      share of labels that lie in learned runs longer than 100
    zero_share      share of full windows whose product is 0 ("apertus" only; else 0)
    """

    labels: int
    masked: int
    rate: float
    gap_quantiles: tuple[int, int, int, int]
    long_share: float
    zero_share: float


def coverage(
    config: Goldfish, runs: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]
) -> Coverage:
    """Measure the mask of `config` on runs of consecutive labels, each hashed by itself.

    runs   labels and their documents: the whole stream for "stamm", one window after another for
           "apertus", whose code never sees more than a window
    """
    masks, zeros, windows = [], 0, 0
    for labels, document in runs:
        masks.append(keep_mask(config, labels, document))
        if config.hash == "apertus" and len(labels) >= config.h:
            zeros += int(np.sum(_product(labels, config.h) == 0))
            windows += len(labels) - config.h + 1
    keep = np.concatenate(masks) if masks else np.ones(0, dtype=np.bool_)
    edges = np.flatnonzero(~keep)
    gaps = np.diff(np.concatenate(([-1], edges, [len(keep)]))) - 1
    gaps = np.sort(gaps[gaps > 0])
    at = [int(gaps[min(int(q * len(gaps)), len(gaps) - 1)]) if len(gaps) else 0 for q in _QUANTILES]
    return Coverage(
        labels=len(keep),
        masked=len(edges),
        rate=len(edges) / len(keep) if len(keep) else 0.0,
        gap_quantiles=(at[0], at[1], at[2], at[3]),
        long_share=float(gaps[gaps > 100].sum() / len(keep)) if len(keep) else 0.0,
        zero_share=zeros / windows if windows else 0.0,
    )


_QUANTILES = (0.5, 0.9, 0.99, 1.0)


def _product(labels: NDArray[np.int64], h: int) -> NDArray[np.int64]:
    """Products of h consecutive labels, wrapping in int64 as the published code's do."""
    with np.errstate(over="ignore"):
        product = np.ones(len(labels) - h + 1, dtype=np.int64)
        for j in range(h):
            product = product * labels[j : len(labels) - h + 1 + j]
    return product
