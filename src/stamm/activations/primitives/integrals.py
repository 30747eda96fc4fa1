"""Integrals whose gradient depends on trained parameters: tables that each call makes for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from stamm.activations.primitives.elementary import Parameters
from stamm.base.errors import RunError

Integrand = Callable[[Tensor, Parameters], Tensor]
POINTS = 20


class Side:
    """The cells on one side of the origin.

    edges   distances from the origin, from 0 on; (0.0,) where the gradient ends there
    order   the power of the distance like which the gradient vanishes at the origin
    tail    degree of the polynomial that the gradient approaches beyond; -1 where it ends
    """

    def __init__(self, *, edges: tuple[float, ...], order: int, tail: int) -> None:
        self.edges, self.order, self.tail = edges, order, tail


def integrated(
    u: Tensor, parameters: Parameters, integrand: Integrand, origin: float, left: Side, right: Side
) -> Tensor:
    """The integral of a gradient from the origin to u, for these parameters.

    The gradient is interpolated at 20 Chebyshev points of each cell in the parameters' dtype, and
    integrated: the work of a call is that of some thousand elements for each set of parameters,
    then 21 numbers are read for each element.

    Shapes   u (..., C); a parameter one number or (C,)
    Raises   RunError in place of a fused kernel, which has none of it.
    """
    if not isinstance(u, Tensor):
        raise RunError("a table that each call makes for its parameters has no fused kernel")
    distance = u - origin
    if len(left.edges) == 1:
        return _on_side(torch.clamp(distance, min=0.0), parameters, integrand, origin, right, 1.0)
    if len(right.edges) == 1:
        return _on_side(torch.clamp(distance, max=0.0), parameters, integrand, origin, left, -1.0)
    below = _on_side(torch.clamp(distance, max=0.0), parameters, integrand, origin, left, -1.0)
    above = _on_side(torch.clamp(distance, min=0.0), parameters, integrand, origin, right, 1.0)
    return torch.where(distance > 0.0, above, below)


def _on_side(
    distance: Tensor,
    parameters: Parameters,
    integrand: Integrand,
    origin: float,
    side: Side,
    sign: float,
) -> Tensor:
    """The integral to origin + distance, where `distance` has the sign of the side or is 0."""
    given = [p for p in parameters if isinstance(p, Tensor)]
    shape = torch.broadcast_shapes(*(p.shape for p in given))
    dtype = torch.promote_types(distance.dtype, given[0].dtype)
    like = {"dtype": dtype, "device": distance.device}

    def rates(points: Tensor) -> Tensor:
        """The gradient at distances (..., ) for every parameter: (..., *shape)."""
        spread = points.reshape(*points.shape, *[1] * len(shape)).expand(*points.shape, *shape)
        return integrand(origin + sign * spread, parameters)

    cosines, sums, first, nodes, weights = (torch.tensor(rows, **like) for rows in _rules())
    edges = torch.tensor(side.edges, **like)
    half = (edges[1:] - edges[:-1]) / 2
    points = edges[:-1, None] + half[:, None] * (1 + cosines)
    count, order = len(side.edges) - 1, side.order
    # The first cell: the integral over distance**(order + 1), a mean of the gradient up to each point.
    near = points[0][:, None] * nodes
    means = torch.tensordot(weights, rates(near).movedim(1, 0), dims=1)
    scale = points[0].reshape(POINTS, *[1] * len(shape)) ** order
    rows = [torch.tensordot(first, means / scale, dims=1)]
    height = rows[0].sum(0) * side.edges[1] ** (order + 1)
    if count > 1:
        rises = torch.tensordot(sums, rates(points[1:]).movedim(1, 0), dims=1)
        rises = rises * half[1:].reshape(1, count - 1, *[1] * len(shape))
        heights = height + torch.cat([torch.zeros_like(rises[:1, 0]), rises.sum(0)[:-1]]).cumsum(0)
        cells = torch.cat([rises[:1] + heights, rises[1:]])
        table = torch.cat([rows[0][:, None], cells], dim=1)
        height = heights[-1] + rises.sum(0)[-1]
    else:
        table = rows[0][:, None]

    size = torch.abs(distance)
    inside = torch.clamp(torch.nan_to_num(size), max=side.edges[-1])
    narrow = edges.to(size.dtype)
    cell = torch.bucketize(inside, narrow[1:-1], right=True)
    middle = (narrow[1:] + narrow[:-1]) / 2
    place = torch.clamp((inside - middle[cell]) / half.to(size.dtype)[cell], -1.0, 1.0)
    index, number = cell, 1
    if len(shape) and math.prod(shape) > 1:
        number = math.prod(shape)
        index = cell * number + torch.arange(number, device=distance.device).reshape(shape)
    flat = table.to(size.dtype).reshape(POINTS + 1, -1)
    after, result = torch.zeros_like(place), torch.zeros_like(place)
    for row in range(POINTS, 0, -1):
        after, result = result, flat[row][index] + 2 * place * result - after
    result = flat[0][index] + place * result - after
    power = torch.clamp(distance, -side.edges[1], side.edges[1]) ** (order + 1)
    inner = result * power * sign**order if order % 2 else result * power
    result = torch.where(cell == 0, inner, sign * result)
    if side.tail >= 0:
        last = side.edges[-1]
        ends = rates(torch.tensor([last, 2 * last], **like)).to(size.dtype)
        beyond = torch.clamp(size - last, min=0.0)
        rate = ends[0] + torch.zeros_like(size)
        if side.tail:
            rate = rate + (ends[1] - ends[0]) * (beyond / (2 * last))
        result = torch.where(
            (beyond > 0.0) & (rate != 0.0), sign * (height.to(size.dtype) + beyond * rate), result
        )
    return torch.where(torch.isnan(distance), distance, result)


@lru_cache(maxsize=1)
def _rules() -> tuple[list[list[float]] | list[float], ...]:
    """Chebyshev points, and matrices from values there to coefficients of Chebyshev polynomials.

    The first matrix gives those of the integral from -1, the second those of the interpolant; then
    points and weights of Gauss and Legendre on [0, 1].
    """
    angles = [math.pi * (2 * i + 1) / (2 * POINTS) for i in range(POINTS)]
    series = [
        [(1.0 if k == 0 else 2.0) * math.cos(k * a) / POINTS for a in angles] for k in range(POINTS)
    ]
    integral = [[0.0] * POINTS for _ in range(POINTS + 1)]
    for i in range(POINTS):
        c = [series[k][i] for k in range(POINTS)] + [0.0, 0.0]
        integral[1][i] = c[0] - c[2] / 2
        for k in range(2, POINTS + 1):
            integral[k][i] = (c[k - 1] - c[k + 1]) / (2 * k)
        integral[0][i] = -math.fsum((-1) ** k * integral[k][i] for k in range(1, POINTS + 1))
    nodes, weights = [], []
    for i in range(POINTS):
        t = math.cos(math.pi * (i + 0.75) / (POINTS + 0.5))
        for _ in range(8):  # Newton
            before, value = 1.0, t
            for n in range(2, POINTS + 1):
                before, value = value, ((2 * n - 1) * t * value - (n - 1) * before) / n
            slope = POINTS * (t * value - before) / (t * t - 1)
            t -= value / slope
        nodes.append((1 + t) / 2)
        weights.append(1 / ((1 - t * t) * slope**2))
    return [math.cos(a) for a in angles], integral, [*series, [0.0] * POINTS], nodes, weights
