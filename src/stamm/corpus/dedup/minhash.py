"""MinHash signatures: 32-bit numbers of which two texts share about as many as their Jaccard
similarity says.

Own arithmetic rather than a library's, since signatures are stored and compared over years: the
same text gave three different digests in rensa 0.3, 0.4 and 0.5.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from stamm.base.hashing import splitmix64
from stamm.corpus.dedup.config import DedupConfig
from stamm.corpus.dedup.shingles import WordHashes, hash_shingles

Signature = NDArray[np.uint32]

# What no minimum over a text reaches in practice: the signature of a text without words.
NOTHING = np.uint32(0xFFFFFFFF)
_BLOCK = 512  # runs hashed at once; the table of 512 by 112 numbers stays in the second-level cache


def minhash(words: WordHashes, config: DedupConfig) -> Signature:
    """The least value of each hash over the runs of words of a text, shape (hashes,).

    hash_j(run) = the upper 32 bits of a_j * run + b_j modulo 2^64, a_j odd

    Edge     fewer words than a run has: the text is one run. No words: every value is NOTHING.
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
