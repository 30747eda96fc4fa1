"""Losses by size and length: L(N, D) = E + A / N^alpha + B / D^beta, fitted by least squares.

For given powers the law is linear in E, A and B, none of them negative, so only the two powers are searched:
a grid, made finer around its best point. No start value is needed, and the least squares are global up to the grid.

Source   Hoffmann et al. 2022 (2203.15556), appendix D.3, for the form
Checked  tests/unit/statistics/test_scaling_law.py
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_POINTS = 5
POWERS = (0.02, 2.0)  # smallest and largest
_GRID, _LEVELS = 13, 7
_SUBSETS = [s for n in (3, 2, 1) for s in itertools.combinations(range(3), n)]


@dataclass(frozen=True, kw_only=True)
class ScalingLaw:
    """E + A (N0 / N)^alpha + B (D0 / D)^beta, in the unit of the losses.

    floor                          E
    parameter_term, token_term     A and B: what is lost at N0 parameters, and at D0 tokens
    parameter_power, token_power   alpha and beta
    parameters, tokens             N0 and D0, geometric means of the fitted points
    """

    floor: float
    parameter_term: float
    parameter_power: float
    token_term: float
    token_power: float
    parameters: float
    tokens: float

    def loss(self, parameters: float, tokens: float) -> float:
        """The law at a size and a length."""
        by_size = self.parameter_term * (self.parameters / parameters) ** self.parameter_power
        by_length = self.token_term * (self.tokens / tokens) ** self.token_power
        return float(self.floor + by_size + by_length)


def fit_scaling_law(
    parameters: Sequence[float],
    tokens: Sequence[float],
    losses: Sequence[float],
    errors: Sequence[float],
) -> ScalingLaw:
    """The law with the least sum of ((loss - law) / error)^2 over the points.

    errors   standard errors of the losses

    Raises   ValueError for fewer than 5 points, or fewer than two sizes or lengths
    """
    if len(losses) < LEAST_POINTS or min(len(set(parameters)), len(set(tokens))) < 2:
        raise ValueError("a scaling law needs 5 points with two sizes and two lengths")
    n, d = (np.asarray(values, float) for values in (parameters, tokens))
    n0, d0 = np.exp(np.log(n).mean()), np.exp(np.log(d).mean())
    weights, target = 1 / np.asarray(errors, float), np.asarray(losses, float)
    low, high = (np.log(edge) for edge in POWERS)
    middle, half = np.array([(low + high) / 2] * 2), (high - low) / 2
    best: tuple[float, NDArray[np.float64], NDArray[np.float64]] | None = None
    for _ in range(_LEVELS):
        steps = np.linspace(-half, half, _GRID)
        grid = np.stack(np.meshgrid(middle[0] + steps, middle[1] + steps), -1).reshape(-1, 2)
        powers = np.exp(np.clip(grid, low, high))
        rest, terms = _linear(powers, n / n0, d / d0, weights, target)
        index = int(np.argmin(rest))
        if best is None or rest[index] <= best[0]:
            best = float(rest[index]), powers[index], terms[index]
        middle, half = np.log(best[1]), half * 0.35
    _, (alpha, beta), (floor, by_size, by_length) = best  # type: ignore[misc]
    return ScalingLaw(
        floor=float(floor), parameter_term=float(by_size), parameter_power=float(alpha),
        token_term=float(by_length), token_power=float(beta), parameters=float(n0), tokens=float(d0),
    )  # fmt: skip


def _linear(
    powers: NDArray[np.float64],
    n: NDArray[np.float64],
    d: NDArray[np.float64],
    weights: NDArray[np.float64],
    target: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums of squares and (E, A, B) >= 0 for each pair of powers: the best of the subsets without a negative one."""
    columns = np.stack([np.ones((len(powers), len(n))), n ** -powers[:, :1], d ** -powers[:, 1:]], -1)  # fmt: skip
    columns *= weights[:, None]
    aim = target * weights
    best = np.full(len(powers), np.inf)
    terms = np.zeros((len(powers), 3))
    for subset in _SUBSETS:
        some = columns[:, :, subset]
        turned = some.transpose(0, 2, 1)
        square = turned @ some
        # Two columns may be nearly the same.
        square += 1e-13 * np.trace(square, axis1=1, axis2=2)[:, None, None] * np.eye(len(subset))
        solved = np.linalg.solve(square, turned @ aim[:, None])
        rest = ((some @ solved - aim[:, None]) ** 2).sum((1, 2))
        solved = solved[:, :, 0]
        better = (solved >= 0).all(-1) & (rest < best * (1 - 1e-12))
        best = np.where(better, rest, best)
        wide = np.zeros((len(powers), 3))
        wide[:, subset] = solved
        terms = np.where(better[:, None], wide, terms)
    return best, terms
