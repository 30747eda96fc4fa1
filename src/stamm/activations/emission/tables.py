"""Source text of the tables that one kernel needs."""

from __future__ import annotations

from collections.abc import Sequence

from stamm.activations.derivation.derive import Derived
from stamm.activations.derivation.tables import Table, tables_in

_PER_LINE = 4


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
