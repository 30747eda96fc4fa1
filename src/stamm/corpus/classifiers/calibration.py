"""Platt calibration: a logistic curve from margins to probabilities, fitted on held-out texts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
_STEPS = 100


@dataclass(frozen=True, kw_only=True)
class CalibrationCurve:
    """probability = sigmoid(slope * margin + offset)."""

    slope: float
    offset: float

    def probability(self, margin: float) -> float:
        """The probability of label 1 at even odds, in [0, 1]."""
        return sigmoid(self.slope * margin + self.offset)


def sigmoid(value: float) -> float:
    """1 / (1 + exp(-value)), without overflow."""
    if value >= 0:
        return 1.0 / (1.0 + math.exp(-value))
    return math.exp(value) / (1.0 + math.exp(value))


def fit_calibration(margins: Vector, labels: NDArray[np.int8]) -> CalibrationCurve | None:
    """Fit the maximum-likelihood curve with both labels weighted equally; None if it would fall.

    Equal weights make scores comparable between languages whose labelled sets have very different
    shares of label 1; in a corpus where label 1 is rarer, a score overstates its probability.

    Source   Platt 1999 (targets smoothed by one pseudo-count each), Lin, Lin and Weng
             2007 (Newton's method with halved steps).
    Edge     None when a label is missing, or when the slope is not positive: margins that do not
             rise with the label are useless in that language.
    Checked  tests/unit/corpus/classifiers/test_classifier_calibration.py
    """
    ones, zeros = int((labels == 1).sum()), int((labels == 0).sum())
    if ones == 0 or zeros == 0:
        return None
    targets = np.where(labels == 1, (ones + 1) / (ones + 2), 1 / (zeros + 2))
    weights = np.where(labels == 1, 0.5 / ones, 0.5 / zeros)

    def loss(slope: float, offset: float) -> float:
        value = slope * margins + offset
        return float((weights * (np.logaddexp(0.0, value) - targets * value)).sum())

    slope, offset = 0.0, 0.0
    best = loss(slope, offset)
    for _ in range(_STEPS):
        value = np.clip(slope * margins + offset, -500, 500)
        chance = 1 / (1 + np.exp(-value))
        error = weights * (chance - targets)
        bend = weights * chance * (1 - chance)
        g0, g1 = float((error * margins).sum()), float(error.sum())
        h00 = float((bend * margins * margins).sum()) + 1e-12
        h01, h11 = float((bend * margins).sum()), float(bend.sum()) + 1e-12
        if max(abs(g0), abs(g1)) < 1e-10:
            break
        determinant = h00 * h11 - h01 * h01
        down = ((h11 * g0 - h01 * g1) / determinant, (h00 * g1 - h01 * g0) / determinant)
        step = 1.0
        while (tried := loss(slope - step * down[0], offset - step * down[1])) >= best:
            step /= 2
            if step < 1e-10:
                return _rising(slope, offset)
        slope, offset, best = slope - step * down[0], offset - step * down[1], tried
    return _rising(slope, offset)


def _rising(slope: float, offset: float) -> CalibrationCurve | None:
    return CalibrationCurve(slope=slope, offset=offset) if slope > 0 else None
