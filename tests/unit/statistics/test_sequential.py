"""Looks at a comparison before its end: error rates and power, simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from stamm.statistics.intervals import differences
from stamm.statistics.sequential import (
    nominal_levels,
    reached,
    sequential_p,
    shares_of,
    spent,
)
from stamm.statistics.student_t import t_quantile

REPEATS = 40_000


def rejected(looks: Sequence[int], level: float, mean: float) -> float:
    """Share of simulated experiments whose paired t test rejects at any look."""
    draws = np.random.default_rng(11).normal(mean, 1.0, (REPEATS, looks[-1]))
    found = np.zeros(REPEATS, bool)
    for count, nominal in zip(looks, nominal_levels(shares_of(looks), level), strict=True):
        seen = draws[:, :count]
        t = np.abs(seen.mean(1)) * math.sqrt(count) / seen.std(1, ddof=1)
        found |= t > t_quantile(1 - nominal, count - 1)
    return float(found.mean())


@pytest.mark.parametrize("looks", [(8, 16), (4, 8, 12), (8, 12, 16)])
@pytest.mark.parametrize("level", [0.05, 0.025])
def test_looking_early_does_not_raise_the_error_rate(looks: tuple[int, ...], level: float) -> None:
    wrong = rejected(looks, level, 0.0)
    error = math.sqrt(level * (1 - level) / REPEATS)
    assert wrong <= level + 3 * error
    assert wrong >= 0.75 * level  # a bound that spends less would waste seeds


def test_full_levels_at_each_look_would_raise_it() -> None:
    """The simulation can tell: without spending, three looks at 0.05 are wrong far more often."""
    draws = np.random.default_rng(11).normal(0.0, 1.0, (REPEATS, 12))
    found = np.zeros(REPEATS, bool)
    for count in (4, 8, 12):
        t = np.abs(draws[:, :count].mean(1)) * math.sqrt(count) / draws[:, :count].std(1, ddof=1)
        found |= t > t_quantile(0.95, count - 1)
    assert found.mean() > 0.08


def test_the_spending_function_by_hand() -> None:
    # z(1 - 0.0125) = 2.2414; at half of the seeds 4 (1 - Phi(3.1698)) = 0.00305
    assert spent(0.5, 0.05) == pytest.approx(0.003051, abs=2e-6)
    assert nominal_levels((0.5, 1.0), 0.05) == pytest.approx((0.003051, 0.046949), abs=2e-6)
    assert nominal_levels((1.0,), 0.05) == (0.05,)
    assert math.fsum(nominal_levels((0.25, 0.5, 0.8, 1.0), 0.01)) == pytest.approx(0.01)


def test_a_sequential_p_is_the_level_at_which_its_look_rejects() -> None:
    shares = (0.5, 0.75, 1.0)
    for look in range(3):
        for p_value in (1e-6, 0.003, 0.04, 0.2):
            found = sequential_p(p_value, look, shares)
            if found < 1:
                assert nominal_levels(shares, found)[look] == pytest.approx(p_value, rel=1e-6)
            assert found >= p_value
    assert sequential_p(0.03, 0, (1.0,)) == 0.03
    assert sequential_p(0.9, 1, shares) == 1.0


def test_which_look_is_reached() -> None:
    assert [reached((4, 8), n) for n in (0, 3, 4, 7, 8, 9)] == [None, None, 0, 0, 1, 1]


def family_errors(truth: Sequence[float], looks: tuple[int, ...]) -> tuple[float, float]:
    """Share of experiments with a wrong verdict, and of true differences found, at any look."""
    draw, shares = np.random.default_rng(5), shares_of(looks)
    wrong = right = 0
    repeats = 500
    for _ in range(repeats):
        shared = draw.normal(0.0, 3.0, looks[-1])
        values = [shared + mean + draw.normal(0.0, 1.0, looks[-1]) for mean in truth]
        shown: set[str] = set()
        for look, count in enumerate(looks):
            arms = {str(i): dict(enumerate(v[:count].tolist())) for i, v in enumerate(values)}
            found = differences(arms, "0", 0.95, shares, look)
            shown |= {one.name for one in found if one.shown}
        wrong += any(truth[int(name)] == truth[0] for name in shown)
        right += sum(truth[int(name)] != truth[0] for name in shown)
    return wrong / repeats, right / repeats / max(sum(one != truth[0] for one in truth), 1)


def test_the_family_wise_error_over_arms_and_looks() -> None:
    error = math.sqrt(0.05 * 0.95 / 500)
    wrong, _ = family_errors((0.0, 0.0, 0.0), (6, 12))
    assert 0.015 <= wrong <= 0.05 + 3 * error
    wrong, right = family_errors((0.0, 0.0, -2.5), (6, 12))
    assert wrong <= 0.05 + 3 * error
    assert right > 0.95
