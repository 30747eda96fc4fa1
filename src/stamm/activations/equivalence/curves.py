"""A spec's function and gradient on many points at once, in double precision.

The function is the stated gradient integrated numerically between neighbouring points, with every
knot among them; nothing is derived, so a hundred specs can be compared in seconds.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stamm.activations.spec import Spec
from stamm.activations.spec.expressions import FUNCTIONS, VARIABLE, interpret, leaf_value
from stamm.activations.spec.gradient_checks import value_of

Array = NDArray[np.float64]
Values = Mapping[str, float]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)
_WIDEST = 0.3  # four nodes integrate a gate over this width to about 1e-12


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A scalar function point by point; where it has no value the result is NaN."""

    def safe(x: float) -> float:
        try:
            return function(x)
        except (ArithmeticError, ValueError):
            return math.nan

    return lambda x: np.fromiter(map(safe, x.ravel().tolist()), float, x.size).reshape(x.shape)


def _logistic(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


_VECTORISED: Mapping[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "sign": np.sign,
    "sin": np.sin,
    "cos": np.cos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "softplus": lambda x: np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))),
    "gompertz": lambda x: np.exp(-np.exp(-x)),
    "gompertz_pdf": lambda x: np.exp(-np.maximum(x, -700.0) - np.exp(-np.maximum(x, -700.0))),
    "logistic": _logistic,
    "normal_pdf": lambda x: np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi),
    "cauchy_cdf": lambda x: np.arctan2(1.0, -x) / math.pi,
    "cauchy_pdf": lambda x: 1.0 / (math.pi * (1.0 + x * x)),
}
_CALLED: Mapping[str, Callable[[Array], Array]] = {
    name: _VECTORISED[name] if name in _VECTORISED else _each(function)
    for name, function in FUNCTIONS.items()
}


def evaluate_array(tree: ast.expr, values: Mapping[str, Any]) -> Any:
    """The formula's value at every point; NaN or infinity where it has none.

    values   numbers by name, and the points by the name of the variable
    """
    return interpret(
        tree,
        lambda node: leaf_value(node, values),
        lambda name, argument: _CALLED[name](np.asarray(argument, dtype=float)),
        divide=np.divide,
        power=lambda base, exponent: np.power(np.asarray(base, dtype=float), exponent),
    )


@dataclass(frozen=True)
class SpecCurve:
    """A spec as a curve: its f at given parameter values on many points."""

    spec: Spec

    def function(self, points: Array, values: Values) -> Array:
        """f at each point, in the order given.

        Shapes   points (N,), in any order; result (N,).
        Edge     NaN where the parameters leave a gap, or the gradient has no finite value.
        """
        spec = self.spec
        try:
            pieces = self._ordered(values)
            start, height = (value_of(text, values) for text in spec.anchor)
            jumps = [(value_of(j.at, values), value_of(j.by, values)) for j in spec.jumps]
        except (ArithmeticError, ValueError):
            return np.full_like(points, math.nan)
        knots = [high for _, high, _ in pieces[:-1]]
        if any(high < low for low, high in itertools.pairwise([-math.inf, *knots])):
            return np.full_like(points, math.nan)
        edges = _edges(points, start, knots)
        with np.errstate(all="ignore"):
            total = np.concatenate([[0.0], np.cumsum(self._gaps(edges, pieces, values))])
            for at, by in jumps:
                total = total + by * (edges > at)
            found = total - total[np.searchsorted(edges, start)] + height
        result: Array = found[np.searchsorted(edges, points)]
        return result

    def knots(self, values: Values) -> list[float]:
        """Where one piece ends and the next begins; none where a knot has no value."""
        try:
            return [high for _, high, _ in self._ordered(values)[:-1]]
        except (ArithmeticError, ValueError):
            return []

    def _ordered(self, values: Values) -> list[tuple[float, float, ast.expr]]:
        """(low, high, formula) of each piece, from left to right."""
        return sorted(
            (
                (
                    -math.inf if ends.low is None else value_of(ends.low, values),
                    math.inf if ends.high is None else value_of(ends.high, values),
                    tree,
                )
                for ends, tree in zip(self.spec.intervals, self.spec.trees, strict=True)
            ),
            key=lambda piece: piece[0],
        )

    def _gaps(
        self, edges: Array, pieces: Sequence[tuple[float, float, ast.expr]], values: Values
    ) -> Array:
        """The integral of the gradient between neighbouring edges."""
        half = np.diff(edges)[:, None] / 2
        nodes = (edges[:-1] + edges[1:])[:, None] / 2 + half * _NODES
        slopes = np.empty_like(nodes)
        begin = 0
        for _, high, tree in pieces:
            end = len(nodes) if math.isinf(high) else int(np.searchsorted(edges, high))
            end = min(max(end, begin), len(nodes))
            if end > begin:
                at = {**values, VARIABLE: nodes[begin:end]}
                slopes[begin:end] = evaluate_array(tree, at)
            begin = end
        done: Array = (slopes * _WEIGHTS * half).sum(axis=1)
        return done


@lru_cache(maxsize=512)
def curve(spec: Spec) -> SpecCurve:
    """The curve of a spec."""
    return SpecCurve(spec)


def _edges(points: Array, start: float, knots: Sequence[float]) -> Array:
    """Points, start and the knots between them, sorted, no two farther apart than _WIDEST."""
    low, high = min(points.min(), start), max(points.max(), start)
    inside = [knot for knot in knots if low < knot < high]
    edges = np.unique(np.concatenate([points, [start], inside]))
    widths = np.diff(edges)
    counts = np.ceil(widths / _WIDEST).astype(int)
    if counts.max(initial=1) == 1:
        return edges
    steps = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    filled = np.repeat(edges[:-1], counts) + steps * np.repeat(widths / counts, counts)
    return np.append(filled, edges[-1])
