"""The new spec as the target of a fit: its curve under the normal density, minus straight lines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stamm.activations.equivalence.curves import Array, curve
from stamm.activations.spec import Spec

# Off the round numbers, where knots are; beyond the ends the root of the density is below 3e-4.
POINTS = np.linspace(-5.6, 5.6, 81) + 0.0137
ROOT_WEIGHTS = np.sqrt(np.exp(-0.5 * POINTS**2) / math.sqrt(2 * math.pi) * 0.14)
_STRAIGHT = 1e-10


def weighted_line(every: int = 1) -> Array:
    """An orthonormal basis of the weighted straight lines on every n-th point, (N, 2)."""
    columns = np.stack([POINTS, np.ones_like(POINTS)], axis=1) * ROOT_WEIGHTS[:, None]
    basis: Array = np.linalg.qr(columns[::every])[0]
    return basis


LINE = weighted_line()


def without_line(weighted: Array, line: Array) -> Array:
    """A weighted curve less the straight line that is nearest to it."""
    rest: Array = weighted - line @ (line.T @ weighted)
    return rest


def line_of(weighted: Array) -> tuple[float, float]:
    """Slope and height at 0 of the straight line that is nearest to a weighted curve."""
    columns = np.stack([POINTS, np.ones_like(POINTS)], axis=1) * ROOT_WEIGHTS[:, None]
    slope, height = np.linalg.lstsq(columns, weighted, rcond=None)[0]
    return float(slope), float(height)


@dataclass(frozen=True)
class Target:
    """The new spec at given parameter values, and its weighted curve."""

    spec: Spec
    values: Mapping[str, float]

    @cached_property
    def curve(self) -> Array:
        """f, times the root of the normal density."""
        return curve(self.spec).function(POINTS, self.values) * ROOT_WEIGHTS

    @cached_property
    def bend(self) -> Array:
        """The curve without its best straight line."""
        return without_line(self.curve, LINE)

    @cached_property
    def straight(self) -> bool:
        """Whether the function is a straight line as far as can be seen."""
        return bool(np.linalg.norm(self.bend) <= _STRAIGHT * np.linalg.norm(self.curve))

    @cached_property
    def size(self) -> float:
        """The norm that distances are relative to: of the bend, or of all where nothing bends."""
        part = self.curve if self.straight else self.bend
        largest = max(float(np.abs(part).max()), 1e-300)  # squares of large numbers overflow
        return largest * float(np.linalg.norm(part / largest)) or 1e-300
