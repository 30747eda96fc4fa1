"""Fairness over languages: every language counts once, and the better end depends on the metric."""

from __future__ import annotations

import pytest

from stamm.evaluate.fairness import language_fairness


def test_figures_count_every_language_once() -> None:
    values = {"deu": 2.0, "eng": 1.0, "fra": 3.0, "": 9.0}
    bits = language_fairness("bits_per_byte", values)
    accuracy = language_fairness("acc", values)
    assert bits is not None and accuracy is not None
    assert (bits["languages"], bits["mean"]) == (3, 2.0)
    assert (bits["best"], bits["best_value"], bits["worst"], bits["worst_value"]) == (
        "eng", 1.0, "fra", 3.0,
    )  # fmt: skip
    assert (accuracy["best"], accuracy["worst"]) == ("fra", "eng")
    # sum of |x - y| over all pairs / (2 * 9 * 2): (1 + 2 + 1) * 2 / 36
    assert bits["gini"] == pytest.approx(8 / 36)


def test_equal_values_are_fair_and_one_language_has_no_fairness() -> None:
    even = language_fairness("acc", {"b": 0.5, "a": 0.5})
    assert even is not None
    assert (even["gini"], even["best"], even["worst"]) == (0.0, "a", "b")
    assert language_fairness("acc", {"eng": 0.5, "": 0.1}) is None
    negative = language_fairness("log_prob", {"a": -2.0, "b": -1.0})
    assert negative is not None
    assert (negative["gini"], negative["best"]) == (None, "b")
