"""Integrals that have no closed form, as tables of polynomials, with polynomials beyond them.

In every cell the gradient is interpolated at Chebyshev points with high precision, and the
interpolant is integrated. The two cells next to 0 are expanded about 0, so that no digit is
lost where the integral vanishes; the others are expanded about their middle. As many powers are
kept as float64 needs. Only the function is read from the table: its slope, and everything derived
from it, remains the stated gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import mpmath
import sympy
from sympy import Expr

from stamm.activations.derivation.approximate import DOUBLE, SINGLE
from stamm.activations.derivation.asymptotes import Asymptote, asymptote
from stamm.activations.derivation.chebyshev import (
    NODES,
    Interpolant,
    NotResolvedError,
    interpolant,
    order_at_zero,
)
from stamm.activations.derivation.formulas import Branch, Derived
from stamm.activations.derivation.primitives import Primitive, X
from stamm.activations.derivation.quadrature import Integral
from stamm.activations.derivation.symbolic import number
from stamm.base.errors import ConfigError
from stamm.base.files import sha256_value

_FEWEST_CELLS, _MOST_CELLS = 32, 4096
_SHORT = 15  # powers; a table with more of them is cut finer while it has few cells
_FEW_CELLS = 256
_DIGITS = 40
_CLOSE = 20  # digits to which a gradient is its asymptote beyond the table
_LENGTH = 8.0  # of the interval of one quadrature of the reference value, in cells


class NumericalIntegral(Primitive):
    """An integral that has no formula: a kernel reads it from a table."""


class TabulatedIntegral(NumericalIntegral):
    """The integral of a gradient of one variable, which a kernel reads from a table.

    gradient      in x, free of parameters
    origin        where the integral is 0
    low, high     where the table begins and ends; inside, cells end at multiples of `step`
    rows          of each cell: the point c it is expanded about, and the coefficients of (u - c)**k
                  from k = 0 on
    single        number of coefficients that are enough for float32
    left, right   coefficients of the integral beyond the table, lowest power first, or ()
    bound         on the error in float64, relative to |F(u)| + |u F'(u)|, before rounding; where F
                  goes to 0 far out, absolute errors up to 1e-18 remain
    """

    gradient: Expr
    origin: float
    low: float
    high: float
    step: float
    rows: tuple[tuple[float, ...], ...]
    single: int
    left: tuple[float, ...]
    right: tuple[float, ...]
    bound: float


@dataclass(frozen=True, kw_only=True)
class TableUse:
    """A table that a derived function uses.

    name       of the table, from a hash of its gradient
    where      the branch that reads it
    cells      how many polynomials it has
    bound      on the relative error in float64 before rounding, as in `TabulatedIntegral`
    low, high  its ends. Beyond them the function is a polynomial
    """

    name: str
    where: str
    cells: int
    bound: float
    low: float
    high: float


def tables_of(derived: Derived) -> list[TableUse]:
    """The tables that branches of the function use, from left to right.

    Checked  tests/unit/activations/test_tables.py
    """
    return [
        TableUse(
            name=table.__name__,
            where=_branch_text(branch),
            cells=len(table.rows),
            bound=table.bound,
            low=table.low,
            high=table.high,
        )
        for branch in _branches(derived)
        for table in _tables(branch.formula)
    ]


def tables_in(derived: Derived) -> list[type[TabulatedIntegral]]:
    """The tables that the kernel of a Derived needs, each once, by name."""
    found = {t.__name__: t for b in _branches(derived) for t in _tables(b.formula)}
    return [found[name] for name in sorted(found)]


def _branches(derived: Derived) -> Iterator[Branch]:
    yield from derived.stable.function
    if derived.up is not None:
        yield from derived.up.function


def _tables(formula: Expr) -> list[type[TabulatedIntegral]]:
    return sorted({type(t) for t in formula.atoms(TabulatedIntegral)}, key=lambda t: t.__name__)


def _branch_text(branch: Branch) -> str:
    low = "" if branch.low == -sympy.oo else f"{branch.low} <{'=' * branch.low_closed} "
    high = "" if branch.high == sympy.oo else f" <{'=' * branch.high_closed} {branch.high}"
    return f"{low}{X}{high}" if low or high else "all x"


@lru_cache(maxsize=64)
def table_of(
    gradient: Expr, low: float | None = None, high: float | None = None
) -> type[TabulatedIntegral]:
    """The table of a gradient's integral, as a function that formulas can hold.

    gradient   in x, free of parameters
    low, high  where the gradient ends, or None when it is unbounded on that side
    Edge       the integral is measured from 0; from the first end, where 0 lies outside.
    Raises     ConfigError when the gradient approaches no polynomial on a side without end, has
               no value somewhere, or bends too sharply for 4096 cells.
    """
    with mpmath.workdps(_DIGITS):
        ends = {-1: low, 1: high}
        tails = {side: _tail(gradient, side) if end is None else None for side, end in ends.items()}
        first, last = (_reach(ends[side], tails[side], side) for side in (-1, 1))
        grid = _grid(gradient, first, last)
        exact = Integral(
            lambda u: number(gradient, {X.name: u}),
            origin=mpmath.mpf(grid.origin),
            segment=mpmath.mpf(_LENGTH * grid.step),
            low=None if low is None else mpmath.mpf(low),
            high=None if high is None else mpmath.mpf(high),
        )
        name = f"table_{sha256_value([sympy.srepr(gradient), low, high])[:8]}"
        members = {
            "__doc__": f"the integral of {gradient} from {grid.origin:g}",
            "slope": staticmethod(lambda u: gradient.xreplace({X: u})),
            "definition": staticmethod(lambda u: made(u)),
            "value": staticmethod(exact),
            "gradient": gradient,
            "origin": grid.origin,
            "low": first,
            "high": last,
            "step": grid.step,
            "rows": tuple(tuple(map(float, row)) for row in grid.rows),
            "single": grid.single,
            "left": _beyond(tails[-1], mpmath.mpf(first), grid.heights[0]),
            "right": _beyond(tails[1], mpmath.mpf(last), grid.heights[-1]),
            "bound": grid.bound,
        }
        made: type[TabulatedIntegral] = type(name, (TabulatedIntegral,), members)
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


@dataclass(frozen=True)
class _Cell:
    """One cell: where it begins and ends, the point it is expanded about, and the gradient there.

    order   at 0: the gradient is u**order times the interpolant; 0 elsewhere
    """

    low: Any
    high: Any
    about: Any
    order: int
    gradient: Interpolant

    @cached_property
    def whole(self) -> list[Any]:
        """The integral with all terms."""
        return self.integral(NODES)

    def rise(self, low: Any, high: Any) -> Any:
        """The integral of the gradient between two points of the cell."""
        start, end = (mpmath.polyval(self.whole[::-1], u - self.about) for u in (low, high))
        return end - start

    def integral(self, count: int) -> list[Any]:
        """Powers of (u - about) of the integral from there, with `count` terms of the gradient."""
        terms = self.gradient.powers(count, self.about)
        shifted = [c / (k + self.order + 1) for k, c in enumerate(terms)]
        return [*[mpmath.mpf(0)] * (self.order + 1), *shifted]


@dataclass(frozen=True)
class _Grid:
    """A whole table. `heights`: the integral at the ends of the cells, from left to right."""

    origin: float
    step: float
    rows: list[list[Any]]
    heights: list[Any]
    single: int
    bound: float


def _grid(gradient: Expr, first: float, last: float) -> _Grid:
    """The table with the largest step that resolves the gradient in every cell."""
    step = 2.0 ** math.floor(math.log2((last - first) / _FEWEST_CELLS))
    hard = mpmath.mpf(first)  # where a coarser table failed
    while True:
        edges = _edges(first, last, step)
        if len(edges) - 1 > _MOST_CELLS:
            raise ConfigError(
                f"a table of {_MOST_CELLS} cells would miss the integral of {gradient}"
                f" near x = {float(hard):g}",
                fix="State it on two pieces where it has a kink, or on a wider scale of x",
            )
        pairs = sorted(itertools.pairwise(edges), key=lambda c: abs(c[0] - hard))
        cells = []
        for low, high in pairs:
            try:
                cells.append(_cell(gradient, low, high, step))
            except NotResolvedError:
                hard = low
                break
            except (ArithmeticError, ValueError, TypeError):
                raise ConfigError(
                    f"{gradient} has no finite value somewhere between {first:g} and {last:g}"
                ) from None
        if len(cells) == len(pairs):
            found = _assembled(sorted(cells, key=lambda cell: cell.low), step, first, last)
            if len(found.rows[0]) <= _SHORT + 2 or len(cells) > _FEW_CELLS:
                return found
        step /= 2


def _edges(first: float, last: float, step: float) -> list[Any]:
    """The ends of the cells: multiples of the step between the ends of the table."""
    inner = range(math.floor(first / step) + 1, math.ceil(last / step))
    return [mpmath.mpf(first), *(i * mpmath.mpf(step) for i in inner), mpmath.mpf(last)]


def _cell(gradient: Expr, low: Any, high: Any, step: float) -> _Cell:
    def at(u: Any) -> Any:
        return number(gradient, {X.name: u})

    if low != 0 and high != 0:
        about = (mpmath.floor(low / step) + mpmath.mpf(1) / 2) * step
        return _Cell(low, high, about, 0, interpolant(at, low, high, DOUBLE))
    order = order_at_zero(at, 1 if low == 0 else -1)
    found = interpolant(lambda u: at(u) / u**order, low, high, DOUBLE)
    return _Cell(low, high, mpmath.mpf(0), order, found)


def _assembled(cells: Sequence[_Cell], step: float, first: float, last: float) -> _Grid:
    """The polynomials of every cell, all with the number of powers that the worst cell needs."""
    origin = 0.0 if first <= 0 <= last else first
    rises = [cell.rise(cell.low, cell.high) for cell in cells]
    start = next((i for i, cell in enumerate(cells) if cell.low >= origin), len(cells))
    heights = [mpmath.mpf(0)]
    for rise in rises[start:]:
        heights.append(heights[-1] + rise)
    for rise in reversed(rises[:start]):
        heights.insert(0, heights[0] - rise)
    scales = [_scale(cell, heights[i]) for i, cell in enumerate(cells)]
    counts, bound = zip(*map(_terms, cells, scales), strict=True)
    length = max(cell.order + 1 + count for cell, count in zip(cells, counts, strict=True))
    rows = []
    for cell, height in zip(cells, heights, strict=False):
        powers = cell.integral(length - cell.order - 1)
        if cell.about != 0:
            powers[0] = height + cell.rise(cell.low, cell.about)
        rows.append([cell.about, *powers])
    single = max(map(_single, cells, rows, scales))
    return _Grid(origin, step, rows, heights, single, float(max(bound)))


def _scale(cell: _Cell, height: Any) -> Any:
    """The least |F(u)| + |u F'(u)| at points of a cell: errors are relative to it.

    At 0, where both vanish like the first power, it is the coefficient of that power.
    """
    if cell.about == 0:
        return abs(cell.whole[cell.order + 1])
    powers = cell.gradient.powers(NODES, cell.about)[::-1]
    points = [cell.low + (cell.high - cell.low) * i / 4 for i in range(5)]
    return min(
        abs(height + cell.rise(cell.low, u)) + abs(u * mpmath.polyval(powers, u - cell.about))
        for u in points
    )


def _terms(cell: _Cell, scale: Any) -> tuple[int, Any]:
    """Number of terms of the interpolant that float64 needs, and the error that remains."""
    width = 1 if cell.about == 0 else cell.high - cell.low
    for count in range(1, NODES + 1):
        error = cell.gradient.tails[count] * width / scale
        if error <= DOUBLE:
            return count, error
    return NODES, error


def _single(cell: _Cell, row: Sequence[Any], scale: Any) -> int:
    """Number of coefficients of a row that float32 needs."""
    first = cell.order + 1 if cell.about == 0 else 0
    reach = max(abs(cell.low - cell.about), abs(cell.high - cell.about))
    sizes = [abs(c) * reach ** (k - first) for k, c in enumerate(row[1:])]
    return next(
        (n for n in range(first + 1, len(sizes)) if mpmath.fsum(sizes[n:]) <= SINGLE * scale),
        len(sizes),
    )


def _beyond(tail: Asymptote | None, node: Any, height: Any) -> tuple[float, ...]:
    """Coefficients of the integral beyond a node; () where the gradient ends."""
    if tail is None:
        return ()
    powers = [height - tail.integral(node)]
    powers += [c / (k + 1) for k, c in enumerate(tail.coefficients)]
    while len(powers) > 1 and powers[-1] == 0:
        powers.pop()
    return tuple(float(power) for power in powers)
