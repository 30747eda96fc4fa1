"""Statistics of rewards against their definitions, pair by pair."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stamm.align.rewards.score import constant_prompts, rank_correlation, tied_pairs


def test_rank_correlation_of_known_orders() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 100, 1000, 10000]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [3, 2, 1, 0]) == pytest.approx(-1)
    # 1 - 6 sum d^2 / (n (n^2 - 1)) without ties
    assert rank_correlation([1, 2, 3, 4, 5], [2, 1, 4, 5, 3]) == pytest.approx(1 - 6 * 8 / 120)
    # ranks 1.5, 1.5, 3 and 1, 2.5, 2.5: covariance 0.75, variances 1.5
    assert rank_correlation([0, 0, 7], [1, 2, 2]) == pytest.approx(0.5)
    for first, second in (([], []), ([1], [2]), ([1, 1], [1, 2]), ([1, 2], [3, 3])):
        assert rank_correlation(first, second) is None


def test_rank_correlation_depends_on_the_order_alone() -> None:
    generator = np.random.default_rng(1)
    first, second = generator.normal(size=(2, 50)).round(1)
    found = rank_correlation(first.tolist(), second.tolist())
    assert found is not None
    assert rank_correlation(np.exp(first).tolist(), (second**3).tolist()) == pytest.approx(found)
    assert rank_correlation(first.tolist(), (-second).tolist()) == pytest.approx(-found)


def test_ties_are_counted_pair_by_pair() -> None:
    generator = np.random.default_rng(2)
    rewards = generator.integers(3, size=60).astype(float).tolist()
    prompts = generator.integers(9, size=60).tolist()
    pairs = [
        rewards[i] == rewards[j]
        for i, j in itertools.combinations(range(60), 2)
        if prompts[i] == prompts[j]
    ]
    assert tied_pairs(rewards, prompts) == pytest.approx(sum(pairs) / len(pairs))
    assert tied_pairs([1.0, 1.0], [0, 1]) is None
    assert tied_pairs([], []) is None


def test_prompts_with_one_reward_only() -> None:
    rewards, prompts = [1.0, 1.0, 0.0, 1.0, 0.5, 2.0, 2.0, 2.0], [0, 0, 1, 1, 2, 3, 3, 3]
    assert constant_prompts(rewards, prompts) == pytest.approx(2 / 3)
    assert constant_prompts([1.0], [0]) is None
    assert constant_prompts([], []) is None
