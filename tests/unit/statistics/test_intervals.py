"""The statistics of a comparison, on numbers whose truth is known."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from stamm.statistics.intervals import differences, holm, interval
from stamm.statistics.power import smallest_shown
from stamm.statistics.student_t import t_quantile

REPEATS = 2000


def test_an_interval_by_hand() -> None:
    # s = 1 of 1, 2, 3; 4.302653 / sqrt(3)
    found = interval([1.0, 2.0, 3.0], 0.95)
    assert found.mean == 2.0
    assert found.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-6)
    assert found.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-6)
    assert interval([1.0], 0.95).low is None
    assert interval([1.0, math.nan], 0.95).low is None
    assert math.isnan(interval([math.inf, -math.inf], 0.95).mean)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_interval_covers_the_truth_as_often_as_it_says(seeds: int) -> None:
    draw = random.Random(20 + seeds)
    held = 0
    for _ in range(REPEATS):
        found = interval([draw.gauss(3.0, 0.5) for _ in range(seeds)], 0.95)
        assert found.low is not None and found.high is not None
        held += found.low <= 3.0 <= found.high
    # four standard errors of a share of 0.95
    assert held / REPEATS == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / REPEATS))


def arms_of(
    draw: random.Random, truth: list[float], seeds: int, noise: float
) -> dict[str, dict[int, float]]:
    """Values by seed: what a seed does to all arms is large, what it does to one is `noise`."""
    shared = {seed: draw.gauss(0.0, 1.0) for seed in range(seeds)}
    return {
        f"arm{i}": {seed: mean + shared[seed] + draw.gauss(0.0, noise) for seed in shared}
        for i, mean in enumerate(truth)
    }


@pytest.mark.parametrize("seeds", [3, 5])
def test_arms_that_are_alike_are_rarely_told_apart(seeds: int) -> None:
    draw = random.Random(7)
    wrong = 0
    for _ in range(REPEATS):
        found = differences(arms_of(draw, [2.0] * 8, seeds, 0.1), "arm0", 0.95)
        wrong += any(one.shown for one in found)
    # The family of seven is wrong at most once in twenty; four standard errors above that fail.
    assert wrong / REPEATS <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / REPEATS)
    assert wrong > 0


def test_of_two_arms_exactly_one_in_twenty_is_a_false_verdict() -> None:
    draw = random.Random(8)
    wrong = sum(
        differences(arms_of(draw, [2.0, 2.0], 3, 0.1), "arm0", 0.95)[0].shown
        for _ in range(REPEATS)
    )
    assert wrong / REPEATS == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / REPEATS))


def test_true_differences_beside_false_ones() -> None:
    """Of six arms three are 2 lower: those are found, the others hardly ever; intervals hold."""
    draw = random.Random(9)
    truth = [2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0]
    wrong = right = held = 0
    for _ in range(REPEATS):
        found = differences(arms_of(draw, truth, 4, 0.1), "arm0", 0.95)
        wrong += any(one.shown for one in found[:3])
        right += sum(one.shown and one.interval.mean < 0 for one in found[3:])
        for one, mean in zip(found, truth[1:], strict=True):
            assert one.interval.low is not None and one.interval.high is not None
            held += one.interval.low <= mean - 2.0 <= one.interval.high
    assert wrong / REPEATS <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / REPEATS)
    assert right / (3 * REPEATS) > 0.9
    assert held / (6 * REPEATS) >= 0.95


def test_an_interval_without_0_belongs_to_a_difference_that_is_shown() -> None:
    draw = random.Random(10)
    kinds = set()
    for _ in range(300):
        truth = [draw.gauss(0.0, 0.3) for _ in range(5)]
        for difference in differences(arms_of(draw, truth, 3, 0.1), "arm0", 0.95):
            low, high = difference.interval.low, difference.interval.high
            assert low is not None and high is not None and difference.adjusted is not None
            excluded = not low <= 0.0 <= high
            assert difference.shown or not excluded
            assert difference.shown == (difference.adjusted <= 0.05)
            kinds.add((difference.shown, excluded))
    assert kinds == {(True, True), (True, False), (False, False)}


@pytest.mark.parametrize(
    ("arms", "tails", "least"),
    # Measured with 20,000 draws: .956, .952, .974, .978. Levels by Holm's rank: .929, .907, .956, .940.
    [(5, "normal", 0.94), (7, "normal", 0.94), (5, "heavy", 0.96), (7, "heavy", 0.96)],
)
def test_all_intervals_together_cover_the_truth(arms: int, tails: str, least: float) -> None:
    """Every arm differs from the baseline, and has another share of its noise: the hardest case for them."""
    draw = np.random.default_rng(5)
    draws, seeds = 2_000, 8 if arms == 5 else 16

    def noise(*shape: int) -> NDArray[np.float64]:
        spread = np.where(draw.random(shape) < 0.1, 5.0, 1.0) if tails == "heavy" else 1.0
        return draw.standard_normal(shape) * spread

    shared, own = noise(draws, seeds), 0.7 * noise(draws, arms, seeds)
    covered = 0
    for number in range(draws):
        values = {"base": dict(enumerate(shared[number].tolist()))}
        for arm, share in enumerate(np.linspace(0.2, 1.5, arms)):
            line = 3.0 + own[number, arm] + share * shared[number]
            values[f"arm{arm}"] = dict(enumerate(line.tolist()))
        ends = [difference.interval for difference in differences(values, "base", 0.95)]
        covered += all(
            one.low is not None and one.high is not None and one.low <= 3.0 <= one.high
            for one in ends
        )
    assert covered / draws >= least


def test_what_can_be_shown_at_all() -> None:
    # t of 0.975 with 2 degrees is 4.303, of 1 - 0.05/14 it is 11.77
    assert smallest_shown((3,), 1, 0.95) == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    assert smallest_shown((3,), 7, 0.95) == pytest.approx(11.769 / math.sqrt(3), abs=1e-3)
    for factor, shown in ((0.99, False), (1.01, True)):
        mean = factor * smallest_shown((3,), 2, 0.95) * 0.5
        arms = {"base": dict.fromkeys(range(3), 0.0), "b": {0: -1.0, 1: 0.0, 2: 1.0}}
        arms["a"] = {0: mean - 0.5, 1: mean, 2: mean + 0.5}
        assert differences(arms, "base", 0.95)[1].shown == shown


def test_holm_by_hand() -> None:
    """p = 0.01, 0.02, 0.04 of three: 0.01 * 3, 0.02 * 2, 0.04, each at least the one before."""
    spread = 0.5
    arms = {"base": dict.fromkeys(range(3), 0.0)}
    for name, chance in (("c", 0.04), ("a", 0.01), ("b", 0.02)):
        mean = t_quantile(1 - chance, 2) * spread / math.sqrt(3)
        arms[name] = {0: mean - spread, 1: mean, 2: mean + spread}
    found = {one.name: one for one in differences(arms, "base", 0.95)}
    assert list(found) == ["c", "a", "b"]
    for name, chance, adjusted in (("a", 0.01, 0.03), ("b", 0.02, 0.04), ("c", 0.04, 0.04)):
        assert found[name].p_value == pytest.approx(chance)
        assert found[name].adjusted == pytest.approx(adjusted)
        assert found[name].shown
    # One arm that is a little worse, and the next is not shown, though 0.04 is below 0.05.
    arms["b"] = {0: 0.1 - spread, 1: 0.1, 2: 0.1 + spread}
    assert [one.shown for one in differences(arms, "base", 0.95)] == [False, True, False]


def test_a_diverged_arm_is_never_shown_and_still_counts() -> None:
    arms = {
        "base": {0: 1.0, 1: 1.1, 2: 1.2},
        "good": {0: 0.5, 1: 0.61, 2: 0.69},
        "gone": {0: math.nan, 1: 1.0, 2: 1.0},
        "infinite": {0: math.inf, 1: 1.0, 2: 1.0},
        "once": {1: 0.1},
        "never": {},
    }
    found = {one.name: one for one in differences(arms, "base", 0.95)}
    assert "never" not in found
    assert [found[name].shown for name in ("gone", "infinite", "once")] == [False] * 3
    good = found["good"]
    assert good.p_value is not None and good.adjusted == pytest.approx(5 * good.p_value)


def test_what_never_varies() -> None:
    same = {"base": {0: 1.0, 1: 1.5}, "twin": {0: 1.0, 1: 1.5}, "lower": {0: 0.5, 1: 1.0}}
    twin, lower = differences(same, "base", 0.95)
    assert not twin.shown
    assert lower.shown


def test_holm_by_hand_and_as_in_differences() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx(
        {"a": 0.03, "b": 0.06, "c": 0.06}
    )
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}
    arms = arms_of(random.Random(1), [0.0, 0.3, 0.1, 0.0], 5, 0.2)
    found = differences(arms, next(iter(arms)), 0.95)
    adjusted = holm({one.name: one.p_value for one in found if one.p_value is not None})
    assert adjusted == pytest.approx({one.name: one.adjusted for one in found})
