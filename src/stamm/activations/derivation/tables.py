"""Integrals that have no closed form, as C1 cubic tables between polynomials.

Values at the nodes are Gauss-Legendre integrals of the gradient at high precision, slopes are the
gradient itself. Only the function is read from the table: its slope, and all that follows from
it, stays the stated gradient. On a cell of width h the cubic errs by h**4/384 max|g'''| at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import mpmath
import sympy
from sympy import Expr

from stamm.activations.derivation.asymptotes import Asymptote, asymptote
from stamm.activations.derivation.primitives import Primitive, X
from stamm.activations.derivation.quadrature import Integral, node_values
from stamm.activations.derivation.symbolic import number
from stamm.base.errors import ConfigError
from stamm.base.files import sha256_value

if TYPE_CHECKING:
    from stamm.activations.derivation.derive import Derived
    from stamm.activations.derivation.stabilise import Branch

TARGET = 1e-6  # the largest error a table may have
CELLS = 256  # at least so many, and as many more as the target asks for
_MOST_CELLS = 4096
_DIGITS = 40
_CLOSE = 17  # digits to which a gradient is its asymptote beyond the table
_SEGMENT = 32  # cells per quadrature when the truth is asked for
_MARGIN = 1.05  # the largest third derivative found among samples may be missed by this much


class Table(Primitive):
    """The integral of a gradient of one variable, read from a table by the machine.

    gradient      in x, free of parameters
    origin        where the integral is 0: a node
    low, step     node i lies at low + i step; `high` is the last
    cells         how many intervals between nodes
    values        the integral at the nodes; `slopes`, the gradient there
    left, right   coefficients of the integral beyond the nodes, lowest power first, or ()
    bound         on the absolute error between nodes, before rounding
    """

    gradient: Expr
    origin: float
    low: float
    high: float
    step: float
    cells: int
    values: tuple[float, ...]
    slopes: tuple[float, ...]
    left: tuple[float, ...]
    right: tuple[float, ...]
    bound: float


@dataclass(frozen=True, kw_only=True)
class TableUse:
    """A table that a derived function rests on.

    name    of the table, from a hash of its gradient
    where   the branch that reads it
    cells   how many intervals between nodes
    bound   on the absolute error of the table; a factor in front of it scales the error
    low     the first node; `high`, the last. Beyond them the function is a polynomial
    """

    name: str
    where: str
    cells: int
    bound: float
    low: float
    high: float


def tables_of(derived: Derived) -> list[TableUse]:
    """Which branches of the function rest on tables, from left to right.

    Checked  tests/unit/activations/test_tables.py
    """
    return [
        TableUse(
            name=table.__name__,
            where=_told(branch),
            cells=table.cells,
            bound=table.bound,
            low=table.low,
            high=table.high,
        )
        for branch in _branches(derived)
        for table in _tables(branch.formula)
    ]


def tables_in(derived: Derived) -> list[type[Table]]:
    """The tables that the kernel of a Derived needs, each once, by name."""
    found = {t.__name__: t for b in _branches(derived) for t in _tables(b.formula)}
    return [found[name] for name in sorted(found)]


def _branches(derived: Derived) -> Iterator[Branch]:
    yield from derived.stable.function
    if derived.up is not None:
        yield from derived.up.function


def _tables(formula: Expr) -> list[type[Table]]:
    return sorted({type(t) for t in formula.atoms(Table)}, key=lambda t: t.__name__)


def _told(branch: Branch) -> str:
    low = "" if branch.low == -sympy.oo else f"{branch.low} <{'=' * branch.low_closed} "
    high = "" if branch.high == sympy.oo else f" <{'=' * branch.high_closed} {branch.high}"
    return f"{low}{X}{high}" if low or high else "all x"


@lru_cache(maxsize=64)
def table_of(gradient: Expr, low: float | None = None, high: float | None = None) -> type[Table]:
    """The table of a gradient's integral, as a function that formulas can hold.

    gradient   in x, free of parameters
    low, high  where the gradient ends, or None when it goes on without end
    Edge       without finite ends nodes lie at multiples of a power of two, which are exact in
               float32, and the integral is measured from 0; else it may start at the first node.
    Raises     ConfigError when the gradient approaches no polynomial on a side without end, has
               no value somewhere, or bends too sharply for 4096 cells.
    """
    with mpmath.workdps(_DIGITS):
        tails: dict[int, Asymptote | None] = {}
        ends = {-1: low, 1: high}
        for side, end in ends.items():
            tails[side] = _tail(gradient, side) if end is None else None
        first, last = (_reach(ends[side], tails[side], side) for side in (-1, 1))
        low_node, step, cells, bound = _grid(gradient, first, last, ends)
        start = round(-low_node / step)
        start = start if 0 <= start <= cells and low_node + start * step == 0 else 0
        origin = low_node + start * step
        exact = Integral(
            lambda u: number(gradient, {X.name: u}),
            origin=mpmath.mpf(origin),
            segment=mpmath.mpf(_SEGMENT * step),
            low=None if low is None else mpmath.mpf(low),
            high=None if high is None else mpmath.mpf(high),
        )
        nodes = [mpmath.mpf(low_node) + i * mpmath.mpf(step) for i in range(cells + 1)]
        try:
            heights = node_values(gradient, nodes, start=start)
            slopes = tuple(float(number(gradient, {X.name: node})) for node in nodes)
        except (ArithmeticError, ValueError, TypeError):
            raise _undefined(gradient, nodes) from None
        name = f"table_{sha256_value([sympy.srepr(gradient), low, high])[:8]}"
        members = {
            "__doc__": f"the integral of {gradient} from {origin:g}",
            "slope": staticmethod(lambda u: gradient.xreplace({X: u})),
            "definition": staticmethod(lambda u: made(u)),
            "value": staticmethod(exact),
            "gradient": gradient,
            "origin": origin,
            "low": low_node,
            "high": low_node + cells * step,
            "step": step,
            "cells": cells,
            "values": tuple(float(value) for value in heights),
            "slopes": slopes,
            "left": _beyond(tails[-1], nodes[0], heights[0]),
            "right": _beyond(tails[1], nodes[-1], heights[-1]),
            "bound": bound,
        }
        made: type[Table] = type(name, (Table,), members)
        return made


def _tail(gradient: Expr, side: int) -> Asymptote:
    found = asymptote(lambda u: number(gradient, {X.name: u}), side, _CLOSE)
    if found is None:
        raise ConfigError(
            f"{gradient} approaches no polynomial on the {'left' if side < 0 else 'right'}",
            fix="State it on a finite interval, or with its known integral",
        )
    return found


def _reach(end: float | None, tail: Asymptote | None, side: int) -> float:
    return float(side * tail.reach) if tail is not None else float(end or 0.0)


def _grid(
    gradient: Expr, first: float, last: float, ends: dict[int, float | None]
) -> tuple[float, float, int, float]:
    """The first node, the step, the number of cells and the bound on the error."""
    step = 2.0 ** math.floor(math.log2((last - first) / CELLS))
    while True:
        low = first if ends[-1] is not None else step * math.floor(first / step)
        cells = math.ceil((last - low) / step)
        if ends[1] is not None:
            step = (last - low) / cells
        bound = float(mpmath.mpf(step) ** 4 / 384 * _bend(gradient, low, step, cells, ends))
        if bound <= TARGET:
            return low, step, cells, bound
        finer = 2 ** max(1, math.ceil(math.log2(bound / TARGET) / 4))
        if finer * cells > _MOST_CELLS:
            raise ConfigError(
                f"a table of {cells} cells would miss the integral of {gradient} by {bound:.1g}",
                fix="State it on two pieces where it has a kink, or on a wider scale of x",
            )
        step /= finer


def _bend(
    gradient: Expr, low: float, step: float, cells: int, ends: dict[int, float | None]
) -> Any:
    """The largest |g'''| among samples in every cell, closer to finite ends."""
    start, width = mpmath.mpf(low), mpmath.mpf(step)
    points = [start + width * (i + mpmath.mpf(k) / 4) for i in range(cells) for k in (1, 3)]
    for k in range(1, 6):
        inset = width / mpmath.mpf(8) ** k
        points += [start + inset] if ends[-1] is not None else []
        points += [start + cells * width - inset] if ends[1] is not None else []

    def third(u: Any, delta: Any) -> Any:
        a, b, c, d = (number(gradient, {X.name: u + k * delta}) for k in (-2, -1, 1, 2))
        return abs((d - 2 * c + 2 * b - a) / (2 * delta**3))

    try:
        largest = max(third(u, width * mpmath.mpf(10) ** -7) for u in points)
    except (ArithmeticError, ValueError, TypeError):
        largest = mpmath.nan
    if not mpmath.isfinite(largest):
        raise _undefined(gradient, points)
    return _MARGIN * largest


def _undefined(gradient: Expr, points: list[Any]) -> ConfigError:
    low, high = float(min(points)), float(max(points))
    return ConfigError(f"{gradient} has no finite value somewhere between {low:g} and {high:g}")


def _beyond(tail: Asymptote | None, node: Any, height: Any) -> tuple[float, ...]:
    """Coefficients of the integral beyond a node; () where the gradient ends."""
    if tail is None:
        return ()
    powers = [height - tail.integral(node)]
    powers += [c / (k + 1) for k, c in enumerate(tail.coefficients)]
    while len(powers) > 1 and powers[-1] == 0:
        powers.pop()
    return tuple(float(power) for power in powers)
