"""What a verdict says of tables: which functions are read from one."""

from __future__ import annotations

import math

from stamm.activations.cache import known_kernel_source
from stamm.activations.cost import shipped_source
from stamm.activations.derivation.derive import Derived, derive
from stamm.activations.derivation.tables import Table, TableUse, tables_of
from stamm.activations.spec import Spec

_CALL = "primitives.tabulated("  # what a kernel that reads a table holds


def table_sentences(derived: Derived) -> tuple[str, ...]:
    """What to say of every table that the function rests on; nothing where there is none.

    Checked  tests/unit/activations/test_tabulated.py
    """
    outer = derived.stable.function
    inner = () if derived.up is None else derived.up.function
    read = any(b.formula.has(Table) for of in derived.stable.parameter_slopes for b in of)
    slopes = "its slope in x is exact" if read else "its slopes are exact"
    # `tables_of` goes through the same branches in the same order.
    places = ["f" for b in outer for _ in b.formula.atoms(Table)]
    places += ["h(up)" for b in inner for _ in b.formula.atoms(Table)]
    return tuple(
        f"{name} rests on {_told(use)}; {slopes}"
        for name, use in zip(places, tables_of(derived), strict=True)
    )


def tabulated(spec: Spec) -> tuple[str, ...]:
    """`table_sentences` of a spec; one whose kernel is at hand and reads no table is not derived."""
    source = shipped_source(spec) or known_kernel_source(spec.content_hash)
    return () if source is not None and _CALL not in source else table_sentences(derive(spec))


def _told(use: TableUse) -> str:
    place = "" if use.where == "all x" else f" for {use.where}"
    nodes = f"a table of {use.cells} cells on [{use.low:g}, {use.high:g}]"
    return f"{nodes}{place}, within {_rounded_up(use.bound)} of |f| + |x f'|, or 1e-18, before rounding"


def _rounded_up(bound: float) -> str:
    """One digit, never less than the bound: 7e-7."""
    exponent = math.floor(math.log10(bound))
    digit = math.ceil(bound / 10.0**exponent)
    return f"{digit}e{exponent}" if digit < 10 else f"1e{exponent + 1}"
