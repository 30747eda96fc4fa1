"""Platt calibration against a grid search, and where no curve is fitted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from stamm.corpus.classifiers.classifier import fit_calibration, sigmoid


def test_the_curve_is_the_most_likely_one() -> None:
    random = np.random.default_rng(3)
    labels = (random.random(300) < 0.2).astype(np.int8)
    margins = random.normal(0, 1, 300) + 1.5 * labels
    curve = fit_calibration(margins, labels)
    assert curve is not None
    ones, zeros = int(labels.sum()), int((1 - labels).sum())

    def surprise(slope: float, offset: float) -> float:
        total = 0.0
        for margin, label in zip(margins, labels, strict=True):
            target = (ones + 1) / (ones + 2) if label else 1 / (zeros + 2)
            chance = 1 / (1 + math.exp(-(slope * margin + offset)))
            weight = 0.5 / ones if label else 0.5 / zeros
            total -= weight * (target * math.log(chance) + (1 - target) * math.log(1 - chance))
        return total

    found = surprise(curve.slope, curve.offset)
    for left, right in itertools.product((-0.01, 0.0, 0.01), repeat=2):
        assert surprise(curve.slope + left, curve.offset + right) >= found - 1e-12


def test_separated_labels_give_a_finite_curve() -> None:
    curve = fit_calibration(np.array([-1.0, -2.0, 3.0, 4.0]), np.array([0, 0, 1, 1], dtype=np.int8))
    assert curve is not None
    assert math.isfinite(curve.slope)
    assert curve.probability(3.0) > 0.6 > 0.4 > curve.probability(-1.0)


@pytest.mark.parametrize(
    ("margins", "labels"),
    [([1.0, 2.0], [1, 1]), ([3.0, 2.0, 1.0, 0.0], [0, 0, 1, 1]), ([], [])],
)
def test_no_curve_where_margins_say_nothing(margins: list[float], labels: list[int]) -> None:
    assert fit_calibration(np.array(margins), np.array(labels, dtype=np.int8)) is None


def test_sigmoid_does_not_overflow() -> None:
    assert [sigmoid(-1e6), sigmoid(0.0), sigmoid(1e6)] == [0.0, 0.5, 1.0]
