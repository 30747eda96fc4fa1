"""Intervals against worked examples."""

from __future__ import annotations

import math

import pytest

from stamm.statistics.estimates import difference_estimate, mean_estimate


def test_mean_of_a_worked_example() -> None:
    found = mean_estimate([1.0, 2.0, 3.0, 4.0])
    half = 3.182446 * math.sqrt(5 / 3 / 4)
    assert found.mean == 2.5
    assert found.low == pytest.approx(2.5 - half, rel=1e-6)
    assert found.high == pytest.approx(2.5 + half, rel=1e-6)


def test_a_single_value_has_no_interval() -> None:
    assert mean_estimate([3.0]).low is None
    assert difference_estimate([3.0], [1.0, 2.0]).high is None


def test_difference_of_equal_groups_is_the_two_sample_interval() -> None:
    # equal sizes and variances: Welch's degrees of freedom are n1 + n2 - 2 = 6
    found = difference_estimate([1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0])
    half = 2.446912 * math.sqrt(2 * 5 / 3 / 4)
    assert found.mean == -1.0
    assert found.low == pytest.approx(-1.0 - half, rel=1e-6)
    assert found.high == pytest.approx(-1.0 + half, rel=1e-6)


def test_difference_of_constants_is_exact() -> None:
    found = difference_estimate([2.0, 2.0], [5.0, 5.0, 5.0])
    assert (found.low, found.mean, found.high) == (-3.0, -3.0, -3.0)
