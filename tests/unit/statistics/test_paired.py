"""Paired differences over documents and paradigms, on numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from stamm.statistics.paired import paired_difference

Items = dict[str, tuple[int, float]]


def items(*values: tuple[int, float]) -> Items:
    return {f"d{i}": value for i, value in enumerate(values)}


def test_a_difference_by_hand() -> None:
    # differences 1 and 2 nats on 10 tokens each: D = 0.15, residuals -0.5 and 0.5
    found = paired_difference(items((10, 30.0), (10, 40.0)), items((10, 31.0), (10, 42.0)))
    assert found is not None
    assert (found.mean, found.count) == (pytest.approx(0.15), 2)
    assert found.standard_error == pytest.approx((2 / 1 * 0.5) ** 0.5 / 20)
    assert found.half_width == pytest.approx(12.7062 * found.standard_error, rel=1e-5)


def test_bars_that_overlap_may_hide_a_difference() -> None:
    # Accuracies from 0.5 to 0.9, and one more right answer in each paradigm: the spread between
    # paradigms is no part of the difference.
    right = [50.0, 60.0, 70.0, 80.0, 90.0]
    first = items(*((100, value) for value in right))
    second = items(*((100, value + 1) for value in right))
    found = paired_difference(first, second)
    assert found is not None
    assert (found.mean, found.standard_error) == (pytest.approx(0.01), 0.0)


def test_other_items_other_units_or_a_single_item_give_none() -> None:
    one = items((10, 30.0), (10, 40.0))
    assert paired_difference(one, items((10, 30.0))) is None
    assert paired_difference(one, items((10, 30.0), (11, 40.0))) is None
    assert paired_difference(items((10, 1.0)), items((10, 2.0))) is None
    assert paired_difference(one, items((10, math.nan), (10, 40.0))) is None
