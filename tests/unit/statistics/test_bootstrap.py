"""The bootstrap's intervals cover the truth as often as they say, over prompts and over seeds."""

from __future__ import annotations

import numpy as np
import pytest

from stamm.statistics.bootstrap import Bootstrap

SIMULATIONS = 300


@pytest.mark.parametrize(
    ("seeds", "prompts", "seed_spread", "prompt_spread"),
    [(1, 60, 0.0, 1.0), (4, 60, 1.0, 0.3), (4, 60, 0.02, 1.0), (3, 40, 0.3, 1.0)],
)
def test_95_percent_intervals_cover_the_truth(
    seeds: int, prompts: int, seed_spread: float, prompt_spread: float
) -> None:
    random = np.random.default_rng(7)
    bootstrap = Bootstrap(prompts, seeds, 400, seed=1, confidence=0.95)
    covered = shown = 0
    for _ in range(SIMULATIONS):
        value_SP = (
            0.4
            + seed_spread * random.standard_normal((seeds, 1))
            + prompt_spread * random.standard_normal((1, prompts))
            + 0.2 * random.standard_normal((seeds, prompts))
        )
        found = bootstrap.ratio(value_SP)
        assert found.low is not None and found.high is not None
        covered += found.low <= 0.4 <= found.high
        shown += bootstrap.p_value(bootstrap.draws(value_SP), 0.4) < 0.05
    # Two standard errors of a coverage of 0.95 over 300 simulations are 0.025.
    assert covered / SIMULATIONS >= 0.91
    assert shown / SIMULATIONS <= 0.09


def test_the_interval_of_one_seed_is_near_the_standard_error() -> None:
    value_SP = np.random.default_rng(3).standard_normal((1, 400))
    found = Bootstrap(400, 1, 4000, seed=0, confidence=0.95).ratio(value_SP)
    half = 1.96 * value_SP.std(ddof=1) / 20
    assert found.mean == pytest.approx(value_SP.mean())
    assert found.high is not None and found.low is not None
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.06)


def test_few_seeds_get_students_quantile() -> None:
    """Prompts that are all alike: the interval is that of Student's t over three seeds."""
    value_SP = np.repeat([[1.0], [2.0], [4.0]], 5, axis=1)
    bootstrap = Bootstrap(5, 3, 20_000, seed=0, confidence=0.95)
    found = bootstrap.draws(value_SP)
    half = 4.302653 / 1.959964 * np.std([1, 2, 4], ddof=1) / np.sqrt(3)
    assert found.std() == pytest.approx(half, rel=0.02)


def test_a_ratio_is_of_sums_and_paired_draws_cancel() -> None:
    top, bottom = np.array([[2.0, 9.0, 1.0]]), np.array([[1.0, 3.0, 0.0]])
    bootstrap = Bootstrap(3, 1, 500, seed=0, confidence=0.9)
    assert bootstrap.estimate(top, bottom) == 3.0
    hard = np.random.default_rng(0).standard_normal((1, 50)) * 100
    wide = Bootstrap(50, 2, 500, seed=0, confidence=0.9)
    moved = wide.draws(np.repeat(hard, 2, axis=0) + 0.5) - wide.draws(hard)
    assert np.allclose(moved, 0.5)


def test_one_prompt_has_no_interval() -> None:
    bootstrap = Bootstrap(1, 1, 100, seed=0, confidence=0.95)
    found = bootstrap.ratio(np.array([[0.7]]))
    assert (found.mean, found.low, found.high) == (0.7, None, None)
    assert bootstrap.p_value(bootstrap.draws(np.array([[0.7]])), 0.5) == 1.0


def test_p_of_no_difference_is_large_and_of_a_clear_one_is_the_smallest() -> None:
    bootstrap = Bootstrap(100, 1, 999, seed=0, confidence=0.95)
    value = np.random.default_rng(1).standard_normal((1, 100))
    assert bootstrap.p_value(bootstrap.draws(value - value.mean()), 0.0) > 0.5
    assert bootstrap.p_value(bootstrap.draws(value + 9), 0.0) == pytest.approx(2 / 1000)
