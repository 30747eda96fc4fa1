"""What a table means for a verdict: the function is held to the table, and the table to the integral."""

from __future__ import annotations

import math
from collections.abc import Mapping

import sympy
from sympy import Expr

from stamm.activations.cache import known_kernel_source
from stamm.activations.cost import shipped_source
from stamm.activations.derivation.derive import Branches, Derived, derive
from stamm.activations.derivation.symbolic import number
from stamm.activations.derivation.tables import Table, TableUse, tables_of
from stamm.activations.spec import Spec

_CALL = "primitives.hermite("  # what a kernel that reads a table holds


def table_sentences(derived: Derived) -> tuple[str, ...]:
    """What to say of every table that the function rests on; nothing where there is none.

    Checked  tests/unit/activations/test_tabulated.py
    """
    outer = derived.stable.function
    inner = () if derived.up is None else derived.up.function
    read = any(b.formula.has(Table) for of in derived.stable.parameter_slopes for b in of)
    slopes = "its slope in x is exact" if read else "its slopes are exact"
    # `tables_of` goes through the same branches in the same order.
    places = [("f", b) for b in outer for _ in b.formula.atoms(Table)]
    places += [("h(up)", b) for b in inner for _ in b.formula.atoms(Table)]
    return tuple(
        f"{name} rests on {_told(use, branch.formula)}; {slopes}"
        for (name, branch), use in zip(places, tables_of(derived), strict=True)
    )


def tabulated(spec: Spec) -> tuple[str, ...]:
    """`table_sentences` of a spec; one whose kernel is at hand and reads no table is not derived."""
    source = shipped_source(spec) or known_kernel_source(spec.content_hash)
    return () if source is not None and _CALL not in source else table_sentences(derive(spec))


def table_bound(branches: Branches, values: Mapping[str, float]) -> float:
    """How far tables may put a piecewise formula from what is integrated; 0 without tables.

    values   effective value of every parameter: a factor before a table scales its error
    """
    return max((_share(branch.formula, values) for branch in branches), default=0.0)


def _share(formula: Expr, values: Mapping[str, float]) -> float:
    tables: list[Table] = list(formula.atoms(Table))
    return math.fsum(
        abs(float(number(_factor(formula, table), values))) * table.bound for table in tables
    )


def _factor(formula: Expr, part: Expr) -> Expr:
    """What a table's value is multiplied by: no x is in it."""
    held = sympy.Dummy("table")
    return sympy.diff(sympy.expand(formula.xreplace({part: held})), held)


def _told(use: TableUse, formula: Expr) -> str:
    part = next(t for t in formula.atoms(Table) if type(t).__name__ == use.name)
    factor = abs(_factor(formula, part))
    share, rest = factor.as_independent(*factor.free_symbols, as_Add=False)
    if not factor.free_symbols:
        share, rest = factor, sympy.S.One
    bound = _rounded_up(use.bound * float(share)) + (f" {rest}" if rest != 1 else "")
    place = "" if use.where == "all x" else f" for {use.where}"
    nodes = f"a table of {use.cells} cells on [{use.low:g}, {use.high:g}]"
    return f"{nodes}{place}, within {bound} of the integral"


def _rounded_up(bound: float) -> str:
    """One digit, never less than the bound: 7e-7."""
    exponent = math.floor(math.log10(bound))
    digit = math.ceil(bound / 10.0**exponent)
    return f"{digit}e{exponent}" if digit < 10 else f"1e{exponent + 1}"
