"""A spec's function on many points at once, in double precision, and fits of one function to another.

The function is the stated gradient integrated numerically between neighbouring points, with every
knot among them; nothing is derived, so a hundred specs can be compared in seconds.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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


def _pointwise(function: Callable[[float], float]) -> Callable[[Array], Array]:
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
    name: _VECTORISED[name] if name in _VECTORISED else _pointwise(function)
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


def values_of(spec: Spec, points: Array, values: Values) -> Array:
    """f at each point, in the order given.

    Shapes   points (N,), in any order; result (N,).
    Edge     NaN where the parameters leave a gap, or the gradient has no finite value.
    """
    try:
        pieces = _ordered(spec, values)
        start, height = (value_of(text, values) for text in spec.anchor)
        jumps = [(value_of(j.at, values), value_of(j.by, values)) for j in spec.jumps]
    except (ArithmeticError, ValueError):
        return np.full_like(points, math.nan)
    knots = [high for _, high, _ in pieces[:-1]]
    if any(high < low for low, high in itertools.pairwise([-math.inf, *knots])):
        return np.full_like(points, math.nan)
    edges = _edges(points, start, knots)
    with np.errstate(all="ignore"):
        total = np.concatenate([[0.0], np.cumsum(_gaps(edges, pieces, values))])
        for at, by in jumps:
            total = total + by * (edges > at)
        integral = total - total[np.searchsorted(edges, start)] + height
    result: Array = integral[np.searchsorted(edges, points)]
    return result


def knots_of(spec: Spec, values: Values) -> list[float]:
    """Where one piece ends and the next begins; none where a knot has no value."""
    try:
        return [high for _, high, _ in _ordered(spec, values)[:-1]]
    except (ArithmeticError, ValueError):
        return []


def _ordered(spec: Spec, values: Values) -> list[tuple[float, float, ast.expr]]:
    """(low, high, formula) of each piece, from left to right."""
    return sorted(
        (
            (
                -math.inf if ends.low is None else value_of(ends.low, values),
                math.inf if ends.high is None else value_of(ends.high, values),
                tree,
            )
            for ends, tree in zip(spec.intervals, spec.trees, strict=True)
        ),
        key=lambda piece: piece[0],
    )


def _gaps(edges: Array, pieces: Sequence[tuple[float, float, ast.expr]], values: Values) -> Array:
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
        return values_of(self.spec, POINTS, self.values) * ROOT_WEIGHTS

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


_STEP = 1e-7  # of the difference quotient
_LARGEST = 1e9


def project(model: Array, line: Array, target: Array) -> tuple[float, Array]:
    """The c for which c*model plus a straight line is nearest to the target, and the residual.

    model    the model's curve, weighted, (N,)
    line     an orthonormal basis of the weighted straight lines, (N, 2)
    target   the target without its best straight line, weighted, (N,)
    Edge     a model that is itself a straight line, or has no finite values, leaves the target.
    """
    if not np.isfinite(model).all() or np.abs(model).max() > _LARGEST:
        return 0.0, np.full_like(target, 1e3)
    bent = model - line @ (line.T @ model)
    size = float(bent @ bent)
    if size <= 1e-24 * max(float(model @ model), 1e-300):
        return 0.0, target
    c = float(bent @ target) / size
    return c, target - c * bent


def search(
    residual: Callable[[Array], Array],
    start: Sequence[float],
    allowed: Callable[[Array], bool],
    *,
    steps: int,
    enough: float = 1e-13,
) -> tuple[Array, float]:
    """The numbers near `start` with the smallest norm of the residual, and that norm.

    Levenberg's damping, with Marquardt's scale; a step that leaves what is `allowed`, or does not
    help, is shortened.
    """
    u = np.array(start, dtype=float)
    r = residual(u)
    best = float(r @ r)
    damping = 1e-3
    for _ in range(steps):
        if not math.isfinite(best) or best <= enough**2:
            break
        columns = []
        for i in range(len(u)):
            moved = u.copy()
            moved[i] += _STEP * max(1.0, abs(u[i]))
            columns.append((residual(moved) - r) / (moved[i] - u[i]))
        jacobian = np.stack(columns, axis=1)
        normal = jacobian.T @ jacobian
        if not np.isfinite(normal).all():
            break
        scale = np.diag(np.diag(normal) + 1e-12)
        improved = False
        for _ in range(8):
            move = np.linalg.solve(normal + damping * scale, -jacobian.T @ r)
            trial = u + move
            if allowed(trial):
                s = residual(trial)
                now = float(s @ s)
                if now < best:
                    improved = True
                    break
            damping = min(damping * 6 + 1e-12, 1e8)
        if not improved:
            break
        gain = 1 - now / best
        u, r, best = trial, s, now
        damping = max(damping / 12, 1e-14)
        if gain < 1e-6 and best > 1e-16:
            break
    return u, math.sqrt(best)
