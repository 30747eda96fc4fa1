"""MinHash signatures: the share of equal values of two texts estimates their Jaccard similarity.

Implemented here because signatures are stored and compared over years: the same text gave three
different digests in rensa 0.3, 0.4 and 0.5.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from stamm.base.hashing import splitmix64
from stamm.corpus.dedup.config import DedupConfig
from stamm.corpus.dedup.shingles import WordHashes, hash_shingles

Signature = NDArray[np.uint32]

# Value of the signature of a text without words; a minimum over a text does not reach it.
EMPTY_VALUE = np.uint32(0xFFFFFFFF)
_BLOCK = 512  # shingles hashed at once; an array of 512 by 112 values fits the L2 cache


def minhash(words: WordHashes, config: DedupConfig) -> Signature:
    """The minimum of each hash over the shingles of a text, shape (hashes,).

    hash_j(shingle) = the upper 32 bits of a_j * shingle + b_j modulo 2^64, a_j odd

    Edge     with fewer words than a shingle has, the text is one shingle. Without words every value is
             EMPTY_VALUE.
    Source   Broder 1997 (min-wise hashing); Dietzfelbinger 1996 (multiply, add and shift)
    Checked  tests/unit/corpus/dedup/test_minhash.py
    """
    factors, offsets = _hashes(config.hashes)
    least = np.full(config.hashes, 2**64 - 1, np.uint64)
    if len(words.hashes):
        runs = hash_shingles(words.hashes, min(config.shingle_words, len(words.hashes)))
        for begin in range(0, len(runs), _BLOCK):
            table = runs[begin : begin + _BLOCK, None] * factors
            table += offsets
            np.minimum(least, table.min(axis=0), out=least)
    return (least >> np.uint64(32)).astype("<u4")


def similarity(one: Signature, other: Signature) -> float:
    """The estimated Jaccard similarity of two texts: the share of equal values.

    Its standard error is sqrt(s (1 - s) / hashes), 0.04 at most near s = 0.8 with 112.
    """
    return float(np.mean(one == other))


@functools.cache
def _hashes(count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    draws = splitmix64(np.arange(2 * count, dtype=np.uint64))
    return draws[:count] | np.uint64(1), draws[count:]
