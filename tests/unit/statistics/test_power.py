"""What a plan can show, against simulation and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stamm.statistics.power import POWER, detectable, pooled_spread, seeds_needed
from stamm.statistics.sequential import nominal_levels, shares_of
from stamm.statistics.student_t import t_quantile


@pytest.mark.parametrize(("looks", "comparisons"), [((4,), 1), ((5,), 2), ((8, 16), 2)])
def test_the_detectable_difference_is_detected_at_the_last_look(
    looks: tuple[int, ...], comparisons: int
) -> None:
    effect = detectable(looks, comparisons, 0.95)
    draws = np.random.default_rng(3).normal(effect, 1.0, (40_000, looks[-1]))
    level = nominal_levels(shares_of(looks), 0.05 / comparisons)[-1]
    t = draws.mean(1) * math.sqrt(looks[-1]) / draws.std(1, ddof=1)
    shown = (np.abs(t) > t_quantile(1 - level, looks[-1] - 1)).mean()
    assert shown == pytest.approx(POWER, abs=0.008)


@pytest.mark.parametrize(
    # A standard deviation of 0.02 needs 5 seeds for 0.05 and 13 for 0.02, one of 0.01 needs 3 and 6.
    ("deviation", "difference", "seeds"),
    [(0.02, 0.05, 5), (0.02, 0.02, 13), (0.01, 0.05, 3), (0.01, 0.02, 6), (0.071, 0.05, 22)],
)
def test_seeds_needed_after_holm_over_two(deviation: float, difference: float, seeds: int) -> None:
    assert seeds_needed(difference / deviation, (3,), 2, 0.95) == seeds


def test_seeds_needed_and_the_detectable_difference_agree() -> None:
    for looks in ((6,), (8, 16)):
        effect = detectable(looks, 2, 0.95)
        assert seeds_needed(effect * 1.001, looks, 2, 0.95) == looks[-1]
        assert seeds_needed(effect * 0.97, looks, 2, 0.95) == looks[-1] + 1
    assert seeds_needed(1e-4, (3,), 1, 0.95) is None


def test_the_spread_of_a_pilot() -> None:
    bits = {
        "base": {1: 2.0, 2: 2.1, 3: 1.9},
        "a": {1: 1.9, 2: 2.02, 3: 1.78},  # -0.10, -0.08, -0.12: 0.02
        "b": {1: 2.0, 2: 2.2, 3: 1.8},  # 0, 0.1, -0.1: 0.1
    }
    one = pooled_spread(bits, "base", ["base", "a"])
    assert one is not None and one.arms == ("a",) and one.seeds == 3
    assert one.value == pytest.approx(0.02)
    # chi-square with 2 degrees: sqrt(2 / 7.378) and sqrt(2 / 0.05064)
    assert (one.low, one.high) == pytest.approx((0.02 * 0.5207, 0.02 * 6.285), rel=1e-3)
    both = pooled_spread(bits, "base", ["base", "other"])
    assert both is not None and both.value == pytest.approx(math.sqrt((0.02**2 + 0.1**2) / 2))
    assert pooled_spread({"base": {1: 2.0}, "a": {1: 1.0}}, "base", []) is None
    assert pooled_spread({**bits, "a": {1: math.inf, 2: 1.0}}, "base", ["a"]) is not None
