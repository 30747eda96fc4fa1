"""Logistic regression on sparse features by dual coordinate ascent.

Only the order of visits is random, a function of the seed. The distance to the optimum is measured
as the duality gap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stamm.corpus.shuffle import permutation

Vector = NDArray[np.float64]
_NEWTON_STEPS = 30


@dataclass(frozen=True, kw_only=True)
class SparseRows:
    """Rows of a sparse matrix (CSR): row i has columns[starts[i]:starts[i + 1]]."""

    starts: NDArray[np.int64]
    columns: NDArray[np.int32]
    values: NDArray[np.float32]
    width: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.starts.size - 1


@dataclass(frozen=True, kw_only=True)
class LogisticFit:
    """A solution.

    weights   [width]
    bias      weight of a feature that every row has with value 1
    passes    over all rows
    gap       upper bound of (objective - minimum) / objective
    """

    weights: Vector
    bias: float
    passes: int
    gap: float


def fit_logistic(
    rows: SparseRows,
    signs: NDArray[np.int8],
    costs: Vector,
    *,
    tolerance: float,
    max_passes: int,
    seed: int,
) -> LogisticFit:
    """Minimize  |w|^2 / 2 + sum_i costs[i] log(1 + exp(-signs[i] (w . x_i + bias))).

    The bias counts as one more weight. Stops when the duality gap is below `tolerance` of the
    objective, or after `max_passes`.

    Shapes   signs [rows], +1 or -1; costs [rows], positive.
    Source   Yu, Huang and Lin 2011, "Dual coordinate descent methods for logistic regression and
             maximum entropy models", Machine Learning 85; the one-dimensional problem is solved here
             in the logit of the dual variable, where Newton's method cannot leave its bracket.
    Checked  tests/unit/corpus/classifiers/test_classifier_logistic.py: against a dense solver, and the gap at optimum.
    """
    weights = np.zeros(rows.width + 1, dtype=np.float64)
    dual = np.zeros(rows.rows, dtype=np.float64)
    # The dual variable starts at a small share of its bound: at zero the slope of its entropy is
    # infinite.
    dual += 1e-3 * costs
    squares = np.ones(rows.rows, dtype=np.float64)
    for i in range(rows.rows):
        columns, values = _row(rows, i)
        squares[i] += float((values * values).sum())
        step = float(dual[i]) * int(signs[i])
        weights[columns] += step * values
        weights[-1] += step
    gap, passes = math.inf, 0
    while passes < max_passes and gap > tolerance:
        for i in permutation(rows.rows, seed + passes):
            columns, values = _row(rows, int(i))
            sign = int(signs[i])
            margin = float((weights[columns] * values).sum() + weights[-1])
            old = float(dual[i])
            new = _best(float(costs[i]), float(squares[i]), sign * margin, old)
            dual[i] = new
            step = (new - old) * sign
            weights[columns] += step * values
            weights[-1] += step
        passes += 1
        gap = _gap(rows, signs, costs, weights, dual)
    return LogisticFit(weights=weights[:-1], bias=float(weights[-1]), passes=passes, gap=gap)


def margins(rows: SparseRows, weights: Vector, bias: float) -> Vector:
    """w . x + bias of every row."""
    found = np.empty(rows.rows, dtype=np.float64)
    for i in range(rows.rows):
        columns, values = _row(rows, i)
        found[i] = (weights[columns] * values).sum() + bias
    return found


def _row(rows: SparseRows, i: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    part = slice(int(rows.starts[i]), int(rows.starts[i + 1]))
    return rows.columns[part], rows.values[part]


def _best(cost: float, square: float, signed: float, old: float) -> float:
    """The dual variable a in (0, cost) that maximizes the dual along this coordinate.

    Where its slope is zero:  log(a / (cost - a)) + signed + square (a - old) = 0; with
    a = cost sigmoid(t) the left side rises with t at a slope of at least 1.
    """
    low, high = -signed - square * (cost - old), -signed + square * old
    t = min(max(math.log(old / (cost - old)) if 0 < old < cost else 0.0, low), high)
    for _ in range(_NEWTON_STEPS):
        share = _sigmoid(t)
        value = t + signed + square * (cost * share - old)
        if abs(value) < 1e-9:
            break
        if value > 0:
            high = t
        else:
            low = t
        t -= value / (1.0 + square * cost * share * (1.0 - share))
        if not low <= t <= high:
            t = (low + high) / 2
    return cost * _sigmoid(t)


def _sigmoid(t: float) -> float:
    return 1.0 / (1.0 + math.exp(-t)) if t >= 0 else math.exp(t) / (1.0 + math.exp(t))


def _gap(
    rows: SparseRows, signs: NDArray[np.int8], costs: Vector, weights: Vector, dual: Vector
) -> float:
    signed = signs * margins(rows, weights[:-1], float(weights[-1]))
    norm = float((weights * weights).sum()) / 2
    primal = norm + float((costs * np.logaddexp(0.0, -signed)).sum())
    share = np.clip(dual / costs, 1e-300, 1.0)
    rest = np.clip(1.0 - share, 1e-300, 1.0)
    entropy = -float((costs * (share * np.log(share) + rest * np.log(rest))).sum())
    return (primal - (entropy - norm)) / primal
