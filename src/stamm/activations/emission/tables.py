"""Source text of tables: what every kernel shares, and the nodes of those that one kernel needs."""

from __future__ import annotations

from collections.abc import Sequence

from stamm.activations.derivation.derive import Derived
from stamm.activations.derivation.tables import Table, tables_in

_PER_LINE = 4

HERMITE = '''class Table:
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
    base = _at(values, here)
    rise = _at(values, there) - base
    start, end = way * _at(slopes, here), way * _at(slopes, there)
    bend = (3.0 * rise - 2.0 * start - end) + part * (start + end - 2.0 * rise)
    result = base + part * (start + part * bend)
    if table.left:
        below = torch.clamp(u, max=table.low)
        result = torch.where(u < table.low, _polynomial(table.left, below), result)
    if table.right:
        above = torch.clamp(u, min=table.high)
        result = torch.where(u > table.high, _polynomial(table.right, above), result)
    return result


def _at(row: Tensor, places: Tensor) -> Tensor:
    return row.index_select(0, places.flatten()).view_as(places)


def _polynomial(coefficients: tuple[float, ...], u: Tensor) -> Tensor:
    total = torch.full_like(u, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = coefficient + u * total
    return total
'''


def table_constant(table: type[Table]) -> str:
    """What a table's nodes are called in the module of a kernel."""
    return table.__name__.upper()


def tables_source(derived: Derived) -> str:
    """The module-level definition of every table that the kernel of `derived` calls; "" for none.

    Checked  tests/unit/activations/test_tables.py
    """
    return "".join(f"{_definition(table)}\n" for table in tables_in(derived))


def _definition(table: type[Table]) -> str:
    lines = [
        f"# The integral of {table.gradient} from {table.origin:g}: a table of {table.cells} cells,",
        f"# within {table.bound:.2g} of it; exact polynomials beyond [{table.low:g}, {table.high:g}].",
        f"{table_constant(table)} = primitives.Table(",
        f"    low={table.low!r},",
        f"    step={table.step!r},",
        *_row("values", table.values),
        *_row("slopes", table.slopes),
        f"    left={table.left!r},",
        f"    right={table.right!r},",
        ")",
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, numbers: Sequence[float]) -> list[str]:
    lines = [
        "        " + " ".join(f"{number!r}," for number in numbers[i : i + _PER_LINE])
        for i in range(0, len(numbers), _PER_LINE)
    ]
    return [f"    {name}=(", *lines, "    ),"]
