"""An activation sampled for a figure: its own kernel on a grid that knows the knots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.spec import Spec
from stamm.activations.spec.expressions import VARIABLE, evaluate
from stamm.activations.spec.gradient_checks import value_of

_REACH = 4.0  # a figure goes this far on each side, further where there are knots
_FARTHEST = 12.0
_GRID = 480
_NUDGE = 1e-9  # a piece is drawn up to this distance from its knots
_BISECTIONS = 60


@dataclass(frozen=True, kw_only=True)
class Curves:
    """An activation on a grid, in float64; NaN between pieces, so that jumps are seen as jumps.

    slope              the stated gradient
    backward           the declared surrogate of it, where the spec has one
    curvature          f'' away from the knots; None where the backward pass is a surrogate
    parameter_slopes   df/dp by parameter
    knots, zeros       where pieces meet, and the isolated zeros of the gradient, within the figure
    heights            f at the zeros
    """

    x: tuple[float, ...]
    function: tuple[float, ...]
    slope: tuple[float, ...]
    backward: tuple[float, ...] | None
    curvature: tuple[float, ...] | None
    parameter_slopes: Mapping[str, tuple[float, ...]]
    knots: tuple[float, ...]
    zeros: tuple[float, ...]
    heights: tuple[float, ...]


def sampled(spec: Spec, effective: Mapping[str, float] | None = None) -> Curves:
    """The curves of `spec` at effective values of its trainable parameters, by its own kernel.

    Checked  tests/unit/reports/test_activation_page.py
    """
    values = {**spec.initial_values(), **(effective or {})}
    parameters = tuple(values[p.name] for p in spec.parameters)
    kernel = kernel_of(spec)
    knots = _knots(spec, values)
    x = torch.tensor(_grid(knots), dtype=torch.float64)

    def shown(tensor: Tensor) -> tuple[float, ...]:
        return tuple(torch.where(x.isnan(), x, tensor).tolist())

    slopes = kernel.slopes(x, parameters)
    stated = _stated(spec, values) if spec.surrogate else None
    slope_at: Callable[[float], float] = stated or (
        lambda at: kernel.slopes(torch.tensor([at], dtype=torch.float64), parameters)[0].item()
    )
    slope = tuple(map(stated, x.tolist())) if stated else shown(slopes[0])
    zeros = tuple(_zeros(x.tolist(), slope, knots, slope_at))
    heights = kernel.value(torch.tensor(zeros, dtype=torch.float64), parameters)
    return Curves(
        x=tuple(x.tolist()),
        function=shown(kernel.value(x, parameters)),
        slope=slope,
        backward=shown(slopes[0]) if spec.surrogate else None,
        curvature=None if spec.surrogate else shown(kernel.curvatures(x, parameters)[0]),
        parameter_slopes={
            p.name: shown(part) for p, part in zip(spec.trainable, slopes[1:], strict=True)
        },
        knots=knots,
        zeros=zeros,
        heights=tuple(heights.tolist()),
    )


def _knots(spec: Spec, values: Mapping[str, float]) -> tuple[float, ...]:
    ends = {
        value_of(bound, values)
        for interval in spec.intervals
        for bound in (interval.low, interval.high)
        if bound is not None
    }
    return tuple(sorted(end for end in ends if abs(end) <= _FARTHEST))


def _grid(knots: Sequence[float]) -> list[float]:
    low = min([-_REACH, *(knot - 1 for knot in knots)])
    high = max([_REACH, *(knot + 1 for knot in knots)])
    ends = [low, *knots, high]
    points: list[float] = []
    for start, end in itertools.pairwise(ends):
        count = max(round(_GRID * (end - start) / (high - low)), 8)
        left, right = start + _NUDGE, end - _NUDGE
        points += [math.nan] if points else []
        points += [left + (right - left) * i / count for i in range(count + 1)]
    return points


def _stated(spec: Spec, values: Mapping[str, float]) -> Callable[[float], float]:
    """The stated gradient with the parameters put in: NaN where x is NaN."""

    def end(text: str | None, otherwise: float) -> float:
        return otherwise if text is None else value_of(text, values)

    pieces = [
        (end(at.low, -math.inf), at.low_closed, end(at.high, math.inf), at.high_closed, tree)
        for at, tree in zip(spec.intervals, spec.trees, strict=True)
    ]

    def at(x: float) -> float:
        for low, low_closed, high, high_closed, tree in pieces:
            if (low < x or (low_closed and x == low)) and (x < high or (high_closed and x == high)):
                return evaluate(tree, {**values, VARIABLE: x})
        return math.nan

    return at


def _zeros(
    x: Sequence[float],
    slope: Sequence[float],
    knots: Sequence[float],
    slope_at: Callable[[float], float],
) -> list[float]:
    """The isolated zeros of the gradient that the grid can see."""
    found = [
        knot
        for knot in knots
        if slope_at(knot) == 0 and slope_at(knot - 0.01) != 0 and slope_at(knot + 0.01) != 0
    ]
    for i in range(1, len(x)):
        if slope[i - 1] * slope[i] < 0:
            low, high = x[i - 1], x[i]
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2
                if slope_at(middle) * slope[i] > 0:
                    high = middle
                else:
                    low = middle
            found.append((low + high) / 2)
        elif slope[i] == 0 and 0 < i < len(x) - 1 and slope[i - 1] != 0 and slope[i + 1] != 0:
            found.append(x[i])
    return sorted(found)
