"""Cubic Hermite tables: functions without a closed form, between nodes and beyond them."""

from __future__ import annotations

import torch
from torch import Tensor

from stamm.activations.primitives.polynomials import horner


class Table:
    """The nodes of a cubic Hermite table: values and slopes at low, low + step, low + 2 step, ...

    left, right   the polynomial beyond the nodes, lowest power first; () where none is needed
    """

    def __init__(
        self,
        *,
        low: float,
        step: float,
        values: tuple[float, ...],
        slopes: tuple[float, ...],
        left: tuple[float, ...] = (),
        right: tuple[float, ...] = (),
    ) -> None:
        self.low, self.step, self.cells = low, step, len(values) - 1
        self.high = low + self.cells * step
        self.left, self.right = left, right
        self.rows = (values, tuple(step * slope for slope in slopes))
        self._nodes: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def nodes(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Values in the first row, step times slopes in the second; made once per device."""
        key = (device, dtype)
        if key not in self._nodes:
            made: Tensor = torch.tensor(self.rows, device=device, dtype=dtype)
            if type(made) is not Tensor:  # made under a mode, such as that of fake tensors
                return made
            self._nodes[key] = made
        return self._nodes[key]


def _nodes(table: Table, device: torch.device, dtype: torch.dtype) -> Tensor:
    # A compiler takes the nodes up as constants. (torch's decorator for that costs seconds to load.)
    if torch.compiler.is_compiling():
        made: Tensor = torch.tensor(table.rows, device=device, dtype=dtype)
        return made
    return table.nodes(device, dtype)


def hermite(u: Tensor, table: Table) -> Tensor:
    """The table's value: cubic between nodes, polynomial beyond them, NaN for NaN.

    The cubic is written about the nearer of its two nodes, so that digits are kept where the
    value at a node is 0. Error: the bound that stands with the table.
    """
    values, slopes = _nodes(table, u.device, u.dtype)
    inside = torch.clamp(u, min=table.low, max=table.high)
    place = torch.nan_to_num((inside - table.low) / table.step)
    nearer = torch.clamp(torch.floor(place + 0.5), max=float(table.cells))
    way = torch.where(place < nearer, -1.0, 1.0)
    way = torch.where(nearer == table.cells, -torch.ones_like(way), way)
    here = nearer.long()
    there = (nearer + way).long()
    part = (inside - (table.low + nearer * table.step)) / (way * table.step)
    base = torch.take(values, here)
    rise = torch.take(values, there) - base
    start, end = way * torch.take(slopes, here), way * torch.take(slopes, there)
    bend = (3.0 * rise - 2.0 * start - end) + part * (start + end - 2.0 * rise)
    result = base + part * (start + part * bend)
    if table.left:
        below = torch.clamp(u, max=table.low)
        result = torch.where(u < table.low, horner(below, table.left), result)
    if table.right:
        above = torch.clamp(u, min=table.high)
        result = torch.where(u > table.high, horner(above, table.right), result)
    return result
