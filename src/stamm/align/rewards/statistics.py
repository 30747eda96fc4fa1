"""Statistics of rewards: ties among answers to one prompt, and correlation with length. Pure functions.

Letters: N answers.
Checked  tests/unit/align/test_reward_statistics.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation in [-1, 1], with mid-ranks for ties; shapes (N,).

    Edge     None where one of the two is constant, and for fewer than two values
    """
    ranks = [_mid_ranks(np.asarray(values, float)) for values in (first, second)]
    if any(len(rank) < 2 or rank.min() == rank.max() for rank in ranks):
        return None
    x, y = (rank - rank.mean() for rank in ranks)
    return float((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()))


def tied_pairs(rewards: Sequence[float], prompts: Sequence[int]) -> float | None:
    """Share of the pairs of answers to the same prompt that have equal rewards, in [0, 1].

    Such a pair has no chosen answer, and the quantiles of its answers are equal.

    prompts   the number of each answer's prompt, (N,)

    Edge      None without two answers to one prompt
    """
    prompt = np.asarray(prompts, np.int64)
    both = np.stack([prompt.astype(float), np.asarray(rewards, float)])
    pairs = _pairs(np.unique(prompt, return_counts=True)[1])
    equal = _pairs(np.unique(both, axis=1, return_counts=True)[1])
    return equal / pairs if pairs else None


def constant_prompts(rewards: Sequence[float], prompts: Sequence[int]) -> float | None:
    """Share of the prompts with two answers or more whose answers all have the same reward.

    They teach a preference loss nothing: all answers are right, or all are wrong.

    Edge      None without such a prompt
    """
    _, place, counts = np.unique(prompts, return_inverse=True, return_counts=True)
    values = np.asarray(rewards, float)
    lowest, highest = np.full(len(counts), np.inf), np.full(len(counts), -np.inf)
    np.minimum.at(lowest, place, values)
    np.maximum.at(highest, place, values)
    several = counts >= 2
    return float((lowest == highest)[several].mean()) if several.any() else None


def _mid_ranks(values: Array) -> Array:
    """Ranks from 1; equal values have the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Array = (last - (counts - 1) / 2)[place]
    return ranks


def _pairs(counts: NDArray[np.int64]) -> int:
    return int((counts * (counts - 1) // 2).sum())
