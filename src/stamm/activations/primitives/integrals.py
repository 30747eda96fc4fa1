"""Integrals whose gradient depends on trained parameters: tables that each call makes for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stamm.activations.primitives.elementary import Parameters
from stamm.base.errors import RunError

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
    u: Tensor,
    parameters: Parameters,
    integrand: Callable[[Tensor, Parameters], Tensor],
    origin: float,
    left: Side,
    right: Side,
) -> Tensor:
    """The integral of a gradient from the origin to u, for these parameters.

    The gradient is interpolated at 20 Chebyshev points of each cell in the parameters' dtype, and
    integrated: a call costs as much as 1,000 to 10,000 elements for each set of parameters,
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
    integrand: Callable[[Tensor, Parameters], Tensor],
    origin: float,
    side: Side,
    sign: float,
) -> Tensor:
    """The integral to origin + distance, where `distance` has the sign of the side or is 0."""
    given = [p for p in parameters if isinstance(p, Tensor)]
    shape = torch.broadcast_shapes(*(p.shape for p in given))  # type: ignore[no-untyped-call]
    dtype = distance.dtype
    for parameter in given:
        dtype = torch.promote_types(dtype, parameter.dtype)

    def constant(numbers: Any) -> Tensor:
        return torch.tensor(numbers, dtype=dtype, device=distance.device)

    def rates(points: Tensor) -> Tensor:
        """The gradient at distances (..., ) for every parameter: (..., *shape)."""
        spread = points.reshape(*points.shape, *[1] * len(shape)).expand(*points.shape, *shape)
        return integrand(origin + sign * spread, parameters)

    cosines, sums, first, nodes, weights = (constant(rows) for rows in _RULES)
    edges = constant(side.edges)
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
    if torch.Size(shape).numel() > 1:
        number = torch.Size(shape).numel()
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
        ends = rates(constant([last, 2 * last])).to(size.dtype)
        beyond = torch.clamp(size - last, min=0.0)
        rate = ends[0] + torch.zeros_like(size)
        if side.tail:
            rate = rate + (ends[1] - ends[0]) * (beyond / (2 * last))
        result = torch.where(
            (beyond > 0.0) & (rate != 0.0), sign * (height.to(size.dtype) + beyond * rate), result
        )
    return torch.where(torch.isnan(distance), distance, result)


# cos(pi k/40) for k from 0 to 20; then points and weights of Gauss and Legendre on [0, 1].
_COSINES = (
    1.0,
    0.996917333733128,
    0.9876883405951378,
    0.9723699203976766,
    0.9510565162951535,
    0.9238795325112867,
    0.8910065241883679,
    0.8526401643540922,
    0.8090169943749475,
    0.7604059656000309,
    0.7071067811865476,
    0.6494480483301837,
    0.5877852522924731,
    0.5224985647159489,
    0.4539904997395468,
    0.3826834323650898,
    0.30901699437494745,
    0.23344536385590542,
    0.15643446504023087,
    0.07845909572784494,
    0.0,
)
_NODES = (
    0.9965642995925474,
    0.9819859636389568,
    0.956117214125663,
    0.9195584859111094,
    0.8731659532300754,
    0.8180268403632576,
    0.7554335009754135,
    0.6868530443577098,
    0.6138929255708225,
    0.5382632605667487,
    0.46173673943325133,
    0.38610707442917747,
    0.3131469556422902,
    0.24456649902458646,
    0.1819731596367425,
    0.1268340467699246,
    0.0804415140888906,
    0.04388278587433705,
    0.018014036361043106,
    0.0034357004074525377,
)
_WEIGHTS = (
    0.008807003569576059,
    0.02030071490019347,
    0.031336024167054534,
    0.04163837078835238,
    0.05096505990862022,
    0.059097265980759206,
    0.06584431922458832,
    0.07104805465919102,
    0.07458649323630187,
    0.07637669356536292,
    0.07637669356536292,
    0.07458649323630187,
    0.07104805465919102,
    0.06584431922458832,
    0.059097265980759206,
    0.05096505990862022,
    0.04163837078835238,
    0.031336024167054534,
    0.02030071490019347,
    0.008807003569576059,
)


def _cosine(turns: int) -> float:
    """cos(pi turns/40)."""
    turns = min(turns % 80, 80 - turns % 80)
    return _COSINES[turns] if turns <= POINTS else -_COSINES[2 * POINTS - turns]


def _rules() -> tuple[list[list[float]] | list[float] | tuple[float, ...], ...]:
    """Chebyshev points, and matrices from values there to coefficients of Chebyshev polynomials.

    The first matrix gives those of the integral from -1, the second those of the interpolant; then
    points and weights of Gauss and Legendre.
    """
    turns = range(1, 2 * POINTS, 2)
    series = [
        [(1.0 if k == 0 else 2.0) * _cosine(k * t) / POINTS for t in turns] for k in range(POINTS)
    ]
    rows = [*series, [0.0] * POINTS, [0.0] * POINTS]
    integral = [[c - d / 2 for c, d in zip(rows[0], rows[2], strict=True)]]
    integral += [
        [(c - d) / (2 * k) for c, d in zip(rows[k - 1], rows[k + 1], strict=True)]
        for k in range(2, POINTS + 1)
    ]
    start = [
        -sum((-1) ** (k + 1) * row[i] for k, row in enumerate(integral)) for i in range(POINTS)
    ]
    return [_cosine(t) for t in turns], [start, *integral], rows[: POINTS + 1], _NODES, _WEIGHTS


_RULES = _rules()
