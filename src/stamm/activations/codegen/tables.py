"""Source text of the tables that one kernel needs."""

from __future__ import annotations

import textwrap

from stamm.activations.derivation.formulas import Derived, Integrand
from stamm.activations.derivation.parametric import ParametricIntegral
from stamm.activations.derivation.tables import TabulatedIntegral, tables_in

_WIDTH = 96


def table_constant(table: type[TabulatedIntegral]) -> str:
    """The name of a table in the module of a kernel."""
    return table.__name__.upper()


def integral_name(kind: type[ParametricIntegral]) -> str:
    """The name of a parametric integral in the module of a kernel."""
    return kind.__name__


def sides_source(integrand: Integrand) -> str:
    """The module-level cells of the table that each call makes of a gradient."""
    lines = [
        f"# Cells of {integrand.kind.__doc__}, left and right.",
        f"{integral_name(integrand.kind).upper()} = (",
    ]
    for side in (integrand.left, integrand.right):
        lines += [
            "    primitives.Side(",
            *textwrap.wrap(
                f"edges={side['edges']!r},",
                _WIDTH,
                initial_indent=" " * 8,
                subsequent_indent=" " * 9,
            ),
            f"        order={side['order']},",
            f"        tail={side['tail']},",
            "    ),",
        ]
    return "\n".join([*lines, ")"]) + "\n"


def tables_source(derived: Derived) -> str:
    """The module-level definition of every table that the kernel of `derived` calls; "" for none.

    Checked  tests/unit/activations/test_tables.py
    """
    return "".join(f"{_definition(table)}\n" for table in tables_in(derived))


def _definition(table: type[TabulatedIntegral]) -> str:
    rows = [line for row in table.rows for line in _row(row)]
    lines = [
        f"# The integral of {table.gradient} from {table.origin:g}: a table of {len(table.rows)} cells,",
        f"# within {table.bound:.2g} of |F| + |x F'|, or 1e-18; polynomials beyond its ends.",
        f"{table_constant(table)} = primitives.Table(",
        f"    low={table.low!r},",
        f"    high={table.high!r},",
        f"    step={table.step!r},",
        f"    single={table.single!r},",
        "    rows=(",
        *rows,
        "    ),",
        f"    left={table.left!r},",
        f"    right={table.right!r},",
        ")",
    ]
    return "\n".join(lines) + "\n"


def _row(numbers: tuple[float, ...]) -> list[str]:
    text = ", ".join(map(repr, numbers))
    indent = " " * 8
    return textwrap.wrap(
        f"({text}),", _WIDTH, initial_indent=indent, subsequent_indent=f"{indent} "
    )
