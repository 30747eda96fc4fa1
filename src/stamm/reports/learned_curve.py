"""A learned activation as numbers, from the gradient that its spec states.

No formula is repeated here: the gradient is evaluated, and the function is
its integral from the anchor, by quadrature.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stamm.activations import catalog
from stamm.activations.spec import Spec
from stamm.activations.spec.expressions import VARIABLE, evaluate, parse
from stamm.base.errors import ConfigError

# Gauss-Legendre nodes and weights on [-1, 1], three points: exact for polynomials of degree five
_NODES = (-math.sqrt(0.6), 0.0, math.sqrt(0.6))
_WEIGHTS = (5 / 9, 8 / 9, 5 / 9)


@dataclass(frozen=True, kw_only=True)
class LearnedCurve:
    """A function and its gradient on a grid."""

    x: tuple[float, ...]
    value: tuple[float, ...]
    slope: tuple[float, ...]


def known_spec(activation: str | None) -> Spec | None:
    """The catalogue's entry, or None for a name that it does not have."""
    try:
        return catalog.get(activation) if activation else None
    except ConfigError:
        return None


def learned_curve(spec: Spec, effective: Mapping[str, float], x: Sequence[float]) -> LearnedCurve:
    """f and f' at `x`, given effective values of the trainable parameters.

    f(x) = f(x0) + integral of the stated gradient from x0 to x, in steps of at most 1/64 that end
    at the knots of the pieces.

    Edge     at a knot the gradient is that of the piece which holds it.
    Checked  tests/unit/reports/test_drawing.py, against closed forms
    """
    values = {**spec.initial_values(), **effective}
    slope = _Slope(spec, values)
    start, height = (evaluate(parse(text), values) for text in spec.anchor)
    grid = sorted(x)
    at: dict[float, float] = {}
    for side in ([v for v in grid if v >= start], [v for v in reversed(grid) if v < start]):
        place, total = start, height
        for target in side:
            total += slope.integral(place, target)
            place = target
            at[target] = total
    return LearnedCurve(
        x=tuple(grid), value=tuple(at[v] for v in grid), slope=tuple(slope(v) for v in grid)
    )


class _Slope:
    """The stated gradient with the parameters put in."""

    def __init__(self, spec: Spec, values: Mapping[str, float]) -> None:
        self._values = dict(values)
        self._pieces = []
        for piece, interval in zip(spec.pieces, spec.intervals, strict=True):
            low = -math.inf if interval.low is None else evaluate(parse(interval.low), values)
            high = math.inf if interval.high is None else evaluate(parse(interval.high), values)
            tree = parse(piece.formula)
            self._pieces.append((low, interval.low_closed, high, interval.high_closed, tree))
        bounds = {bound for low, _, high, _, _ in self._pieces for bound in (low, high)}
        self._knots = sorted(bound for bound in bounds if math.isfinite(bound))

    def __call__(self, x: float) -> float:
        for low, low_closed, high, high_closed, tree in self._pieces:
            above = x >= low if low_closed else x > low
            below = x <= high if high_closed else x < high
            if above and below:
                return evaluate(tree, {**self._values, VARIABLE: x})
        raise ArithmeticError(f"no piece holds {x!r}")

    def integral(self, start: float, end: float) -> float:
        """The integral of the gradient from `start` to `end`, never across a knot in one step."""
        sign, low, high = (1.0, start, end) if end >= start else (-1.0, end, start)
        borders = [low, *(knot for knot in self._knots if low < knot < high), high]
        total = 0.0
        for left, right in itertools.pairwise(borders):
            steps = max(math.ceil((right - left) * 64), 1)
            half = (right - left) / steps / 2
            for i in range(steps):
                middle = left + (2 * i + 1) * half
                total += half * sum(
                    weight * self(middle + half * node)
                    for node, weight in zip(_NODES, _WEIGHTS, strict=True)
                )
        return sign * total
