"""Tables of polynomials: functions without a closed form, in cells and beyond them."""

from __future__ import annotations

import torch
from torch import Tensor

from stamm.activations.primitives.polynomials import horner

Rows = tuple[tuple[float, ...], ...]


class Table:
    """One polynomial for each cell, and where the cells are.

    low, high     where the table begins and ends; inside, cells end at multiples of `step`, which
                  is a power of two
    rows          of each cell: the point c it is expanded about, then the coefficients of (u - c)**k
    single        number of coefficients that float32 needs
    left, right   the polynomial beyond the table, lowest power first; () where none is needed
    """

    def __init__(
        self,
        *,
        low: float,
        high: float,
        step: float,
        single: int,
        rows: Rows,
        left: tuple[float, ...] = (),
        right: tuple[float, ...] = (),
    ) -> None:
        self.low, self.high, self.step = low, high, step
        self.first, self.cells = float(low // step), len(rows)
        self.left, self.right = left, right
        columns = tuple(zip(*rows, strict=True))
        self.columns = {torch.float32: columns[: single + 1], torch.float64: columns}
        self._kept: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def made(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The points of expansion in row 0, the coefficients of (u - c)**k in row k + 1."""
        made: Tensor = torch.tensor(self.columns[dtype], device=device, dtype=dtype)
        return made

    def kept(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The same, made once per device."""
        key = (device, dtype)
        if key not in self._kept:
            made = self.made(device, dtype)
            if type(made) is not Tensor:  # made under a mode, such as that of fake tensors
                return made
            self._kept[key] = made
        return self._kept[key]


def tabulated(u: Tensor, table: Table) -> Tensor:
    """The table's value: by the polynomial of the cell that holds u, NaN for NaN.

    As many digits are kept where the value at 0 is 0 as elsewhere.
    Dtypes   float32, float64.
    """
    # A compiler takes the numbers up as constants. (torch's decorator for that costs seconds.)
    build = table.made if torch.compiler.is_compiling() else table.kept
    about, *coefficients = build(u.device, u.dtype)
    inside = torch.clamp(u, min=table.low, max=table.high)
    place = torch.floor(torch.nan_to_num(inside) / table.step) - table.first
    cell = torch.clamp(place, min=0.0, max=float(table.cells - 1)).long()
    part = inside - torch.take(about, cell)
    *lower, top = coefficients
    result = torch.take(top, cell)
    for coefficient in reversed(lower):
        result = torch.take(coefficient, cell) + part * result
    if table.left:
        below = torch.clamp(u, max=table.low)
        result = torch.where(u < table.low, horner(below, table.left), result)
    if table.right:
        above = torch.clamp(u, min=table.high)
        result = torch.where(u > table.high, horner(above, table.right), result)
    return result
