"""The dual solver against Newton's method on a dense matrix."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from stamm.corpus.classifiers.job import SparseRows, fit_logistic, margins

Dense = NDArray[np.float64]


def sparse(dense: Dense) -> SparseRows:
    starts, columns, values = [0], [], []
    for row in dense:
        filled = np.flatnonzero(row)
        columns.append(filled.astype(np.int32))
        values.append(row[filled].astype(np.float32))
        starts.append(starts[-1] + filled.size)
    return SparseRows(
        starts=np.array(starts),
        columns=np.concatenate(columns),
        values=np.concatenate(values),
        width=dense.shape[1],
    )


def newton(dense: Dense, signs: Dense, costs: Dense) -> Dense:
    x = np.hstack([dense, np.ones((len(dense), 1))])
    w = np.zeros(x.shape[1])
    for _ in range(50):
        chance = 1 / (1 + np.exp(signs * (x @ w)))
        slope = w - x.T @ (costs * signs * chance)
        bend = np.eye(len(w)) + x.T @ (x * (costs * chance * (1 - chance))[:, None])
        w = w - np.linalg.solve(bend, slope)
    return w


@pytest.fixture
def problem() -> tuple[Dense, Dense, Dense]:
    random = np.random.default_rng(7)
    dense = random.integers(-4, 5, (60, 12)) * (random.random((60, 12)) < 0.4) / 4.0
    signs = np.where(dense[:, 0] + dense[:, 1] + random.normal(0, 0.7, 60) > 0, 1.0, -1.0)
    return dense, signs, random.uniform(0.1, 8.0, 60)


def objective(problem: tuple[Dense, Dense, Dense], weights: Dense) -> float:
    dense, signs, costs = problem
    signed = signs * (dense @ weights[:-1] + weights[-1])
    return float(weights @ weights / 2 + costs @ np.logaddexp(0, -signed))


def test_the_optimum_is_that_of_a_dense_solver(problem: tuple[Dense, Dense, Dense]) -> None:
    dense, signs, costs = problem
    fit = fit_logistic(
        sparse(dense), signs.astype(np.int8), costs, tolerance=1e-8, max_passes=500, seed=1
    )
    truth = newton(dense, signs, costs)
    assert fit.gap <= 1e-8
    # The objective bends by at least 1 in every direction: |w - truth|^2 / 2 <= what is left.
    left = 1e-8 * objective(problem, truth)
    assert np.abs(np.append(fit.weights, fit.bias) - truth).max() <= 1.01 * np.sqrt(2 * left)
    expected = dense @ truth[:-1] + truth[-1]
    assert np.abs(margins(sparse(dense), fit.weights, fit.bias) - expected).max() < 0.01


def test_the_gap_bounds_the_distance_to_the_optimum(problem: tuple[Dense, Dense, Dense]) -> None:
    dense, signs, costs = problem
    lowest = objective(problem, newton(dense, signs, costs))
    for passes in (1, 2, 5):
        fit = fit_logistic(
            sparse(dense), signs.astype(np.int8), costs, tolerance=0, max_passes=passes, seed=1
        )
        reached = objective(problem, np.append(fit.weights, fit.bias))
        assert 0 <= reached - lowest <= fit.gap * reached + 1e-9


def test_a_row_without_features_moves_the_bias_only() -> None:
    dense = np.zeros((5, 3))
    fit = fit_logistic(
        sparse(dense),
        np.ones(5, dtype=np.int8),
        np.ones(5),
        tolerance=1e-9,
        max_passes=500,
        seed=1,
    )
    assert not fit.weights.any()
    # b + 5 (sigmoid(b) - 1) = 0
    assert abs(fit.bias - 5 / (1 + np.exp(fit.bias))) < 1e-3


def test_extreme_costs_give_finite_weights() -> None:
    dense = np.array([[1.0, 0.0], [1.0, 0.0]])
    signs = np.array([1, -1], dtype=np.int8)
    costs = np.array([1e6, 1e-3])
    fit = fit_logistic(sparse(dense), signs, costs, tolerance=1e-6, max_passes=100, seed=1)
    assert np.isfinite(fit.weights).all()
    assert fit.weights[0] > 0
