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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import mpmath
import sympy
from sympy import Expr

from stamm.activations.derivation.approximate import DOUBLE, SINGLE
from stamm.activations.derivation.formulas import Branch, Derived, number
from stamm.activations.derivation.primitives import Primitive, X
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
        for table in tables_read(branch.formula)
    ]


def tables_read(formula: Expr) -> list[type[TabulatedIntegral]]:
    """The tables that a formula reads at x, each once, by name: constants of integration read none."""
    return _tables(sympy.Tuple(*(t for t in formula.atoms(TabulatedIntegral) if t.has(X))))


def tables_in(derived: Derived) -> list[type[TabulatedIntegral]]:
    """The tables that the kernel of a Derived needs, each once, by name."""
    tables = {t.__name__: t for b in _branches(derived) for t in _tables(b.formula)}
    return [tables[name] for name in sorted(tables)]


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
    Edge       the integral is measured from 0; from the end nearest to it, where 0 lies outside.
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
    tail = asymptote(lambda u: number(gradient, {X.name: u}), side, _CLOSE)
    if tail is None:
        raise ConfigError(
            f"{gradient} approaches no polynomial on the {'left' if side < 0 else 'right'}",
            fix="State it on a finite interval, as in '-20 <= x <= 20: ...', with constants or lines"
            " beyond, or with its known integral",
        )
    return tail


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
            grid = _assembled(sorted(cells, key=lambda cell: cell.low), step, first, last)
            if len(grid.rows[0]) <= _SHORT + 2 or len(cells) > _FEW_CELLS:
                return grid
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
    coefficients = interpolant(lambda u: at(u) / u**order, low, high, DOUBLE)
    return _Cell(low, high, mpmath.mpf(0), order, coefficients)


def _assembled(cells: Sequence[_Cell], step: float, first: float, last: float) -> _Grid:
    """The polynomials of every cell, all with the number of powers that the worst cell needs."""
    origin = min(max(first, 0.0), last)
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


NODES = 28
_SETTLED = 4  # the last coefficients show whether the interpolant has converged
_PROBES = 12, 14  # decimal orders of magnitude at which an order at 0 is read off
_STEEPEST = 64


class NotResolvedError(ArithmeticError):
    """28 Chebyshev points do not resolve a function on an interval to the requested precision."""


@dataclass(frozen=True)
class Interpolant:
    """sum of coefficients[k] T_k((u - middle)/half), T_k a Chebyshev polynomial.

    tails   tails[k]: the sum of the magnitudes of the coefficients from k on
    """

    middle: Any
    half: Any
    coefficients: tuple[Any, ...]
    tails: tuple[Any, ...]

    def powers(self, count: int, about: Any) -> list[Any]:
        """The first `count` terms as coefficients of powers of (u - about)."""
        rows = _shifted((about - self.middle) / self.half, count, mpmath.mp.prec)
        return [
            mpmath.fdot(zip(self.coefficients[i:count], row, strict=True)) / self.half**i
            for i, row in enumerate(rows)
        ]


@lru_cache(maxsize=64)
def _shifted(shift: Any, count: int, precision: int) -> tuple[tuple[Any, ...], ...]:
    """Row i: the coefficient of v**i in T_k(shift + v), for k from i to count - 1."""
    zero, one = mpmath.mpf(0), mpmath.mpf(1)
    polynomials = [[one], [shift, one]]
    for _ in range(2, count):
        before, current = polynomials[-2:]
        after = [2 * shift * c for c in current] + [zero]
        for i, c in enumerate(current):
            after[i + 1] += 2 * c
        for i, c in enumerate(before):
            after[i] -= c
        polynomials.append(after)
    return tuple(tuple(polynomials[k][i] for k in range(i, count)) for i in range(count))


def interpolant(
    function: Callable[[Any], Any], low: Any, high: Any, tolerance: float
) -> Interpolant:
    """The interpolant of a function at 28 Chebyshev points of an interval.

    tolerance   of its last coefficients, relative to the largest
    Raises      NotResolvedError where they are larger, or a value is not finite.
    Checked     tests/unit/activations/test_chebyshev.py
    """
    middle, half = (low + high) / 2, (high - low) / 2
    cosines = _cosines(NODES, mpmath.mp.prec)
    values = [function(middle + half * cosines[2 * i + 1]) for i in range(NODES)]
    if not all(isinstance(v, mpmath.mpf) and mpmath.isfinite(v) for v in values):
        raise NotResolvedError
    coefficients = [
        2 * mpmath.fdot((values[i], _cosine(k * (2 * i + 1))) for i in range(NODES)) / NODES
        for k in range(NODES)
    ]
    coefficients[0] /= 2
    tails = [mpmath.mpf(0)]
    for c in reversed(coefficients):
        tails.append(tails[-1] + abs(c))
    tails.reverse()
    if not tails[NODES - _SETTLED] <= tolerance * tails[0]:
        raise NotResolvedError
    return Interpolant(middle, half, tuple(coefficients), tuple(tails))


def order_at_zero(function: Callable[[Any], Any], side: int) -> int:
    """The power of u like which a function goes to 0 at 0 from one side; 0 where it does not.

    Raises   NotResolvedError where it vanishes faster than u**64, or has no value.
    """
    near, nearer = (abs(function(side * mpmath.mpf(10) ** -digits)) for digits in _PROBES)
    if not (mpmath.isfinite(near) and mpmath.isfinite(nearer) and nearer > 0):
        raise NotResolvedError
    order = int(mpmath.nint(mpmath.log10(near / nearer) / (_PROBES[1] - _PROBES[0])))
    if not 0 <= order <= _STEEPEST:
        raise NotResolvedError
    return order


def _cosine(turns: int) -> Any:
    """cos(pi turns/(2 NODES))."""
    turns %= 4 * NODES
    return _cosines(NODES, mpmath.mp.prec)[min(turns, 4 * NODES - turns)]


@lru_cache(maxsize=8)
def _cosines(nodes: int, precision: int) -> tuple[Any, ...]:
    """cos(pi k/(2 nodes)) for k = 0 .. 2 nodes, to the working precision."""
    with mpmath.workprec(precision + 10):
        return tuple(mpmath.cos(mpmath.pi * k / (2 * nodes)) for k in range(2 * nodes + 1))


_CLASS = 20  # precisions are rounded up to multiples of it, so that integrals can be kept


class Integral:
    """The integral of a gradient from `origin`, to the working precision; results are kept.

    segment   the length over which one quadrature is well-behaved
    low       where the gradient ends on the left, or None when it has an asymptote there
    high      the same on the right
    """

    def __init__(
        self, gradient: Gradient, *, origin: Any, segment: Any, low: Any | None, high: Any | None
    ) -> None:
        self._gradient, self._origin, self._segment = gradient, origin, segment
        self._ends = {-1: low, 1: high}
        self._knots: dict[tuple[int, int], Any] = {}
        self._tails: dict[tuple[int, int], tuple[Asymptote, Any]] = {}

    def __call__(self, u: Any) -> Any:
        """The integral from `origin` to u."""
        digits = _CLASS * math.ceil((mpmath.mp.dps + 2) / _CLASS)
        with mpmath.workdps(digits + 10):
            side = 1 if u > self._origin else -1
            if self._ends[side] is None:
                tail, height = self._tail(side, digits)
                if abs(u) > tail.reach:
                    return +(height + tail.integral(u))
            result = self._to(u, digits)
        return +result

    def _tail(self, side: int, digits: int) -> tuple[Asymptote, Any]:
        """The asymptote on a side and the constant that its integral is above it by."""
        key = (side, digits)
        if key not in self._tails:
            tail = asymptote(self._gradient, side, digits)
            if tail is None:
                raise ArithmeticError(f"the gradient has no asymptote to {digits} digits")
            end = side * tail.reach
            self._tails[key] = tail, self._to(end, digits) - tail.integral(end)
        return self._tails[key]

    def _to(self, u: Any, digits: int) -> Any:
        knot = int(mpmath.nint((u - self._origin) / self._segment))
        start = self._origin + knot * self._segment
        for side, end in self._ends.items():  # a knot beyond an end does not exist
            if end is not None and (start - end) * side > 0:
                knot, start = knot - side, start - side * self._segment
        return self._knot(knot, digits) + self._quadrature(start, u)

    def _knot(self, knot: int, digits: int) -> Any:
        if knot == 0:
            return mpmath.mpf(0)
        step = 1 if knot > 0 else -1
        done = knot
        while done != 0 and (done, digits) not in self._knots:
            done -= step
        total = self._knots.get((done, digits), mpmath.mpf(0))
        while done != knot:
            ends = (self._origin + k * self._segment for k in (done, done + step))
            total += self._quadrature(*ends)
            done += step
            self._knots[done, digits] = total
        return total

    def _quadrature(self, low: Any, high: Any) -> Any:
        if low == high:
            return mpmath.mpf(0)
        return mpmath.quad(self._gradient, [low, high], method="gauss-legendre")


@lru_cache(maxsize=8)
def legendre(order: int, digits: int) -> tuple[tuple[Any, Any], ...]:
    """Points and weights of Gauss-Legendre quadrature on [-1, 1]."""
    rule = []
    with mpmath.workdps(digits + 10):
        for i in range(order):
            t = mpmath.cos(mpmath.pi * (i + mpmath.mpf(3) / 4) / (order + mpmath.mpf(1) / 2))
            for _ in range(3 + digits.bit_length()):  # Newton doubles the digits
                before, value = mpmath.mpf(1), t
                for n in range(2, order + 1):
                    before, value = value, ((2 * n - 1) * t * value - (n - 1) * before) / n
                slope = order * (t * value - before) / (t * t - 1)
                t -= value / slope
            rule.append((t, 2 / ((1 - t * t) * slope**2)))
    return tuple(rule)


Gradient = Callable[[Any], Any]
_NEAREST, _FARTHEST = 64, 16384  # where a polynomial is searched for, in doublings
_CHECKED = (1.25, 1.75, 3)
_FAST = 100  # an algebraic approach never agrees to so many digits within _FARTHEST
_MARCH = 256


@dataclass(frozen=True)
class Asymptote:
    """The polynomial that a gradient approaches on one side, lowest power first.

    reach   beyond this distance from 0 they agree to the digits that were asked for, relative to
            1 + |polynomial|
    """

    coefficients: tuple[Any, ...]
    reach: Any

    def at(self, u: Any) -> Any:
        """The polynomial's value."""
        return mpmath.polyval(self.coefficients[::-1], u) if self.coefficients else mpmath.mpf(0)

    def integral(self, u: Any) -> Any:
        """The polynomial's integral from 0."""
        powers = [c / (k + 1) for k, c in enumerate(self.coefficients)]
        return mpmath.polyval([*powers[::-1], 0], u)


def asymptote(gradient: Gradient, side: int, digits: int) -> Asymptote | None:
    """The polynomial of degree 2 or less that the gradient approaches exponentially, or None.

    side   -1 for the left, 1 for the right
    Edge   an approach like 1/x, which never reaches many digits, counts as none.
    """
    fast = _fitted(gradient, side, max(digits, _FAST))
    if fast is None:
        return None
    coefficients, far = fast
    if digits < _FAST:
        near = _fitted(gradient, side, digits + 5)
        far = near[1] if near is not None else far
    candidate = Asymptote(coefficients, mpmath.mpf(far))
    step = candidate.reach / _MARCH
    with mpmath.workdps(digits + 20):
        at = candidate.reach
        while at > step and _agree(gradient, candidate, side * (at - step), digits):
            at -= step
    return Asymptote(coefficients, at)


def _fitted(gradient: Gradient, side: int, digits: int) -> tuple[tuple[Any, ...], Any] | None:
    """Coefficients, and the distance from which on the polynomial holds to the digits."""
    far = _NEAREST
    with mpmath.workdps(digits + 30):
        while far <= _FARTHEST:
            candidate = _through(gradient, side * mpmath.mpf(far), digits)
            if candidate is not None and all(
                _agree(gradient, candidate, side * far * mpmath.mpf(k), digits) for k in _CHECKED
            ):
                return candidate.coefficients, far
            far *= 2
    return None


def _through(gradient: Gradient, far: Any, digits: int) -> Asymptote | None:
    """The parabola through the gradient at far, 3/2 far and 2 far, without rounding noise."""
    points = [far, far * 3 / 2, far * 2]
    values = [_finite(gradient, point) for point in points]
    if None in values:
        return None
    first = (values[1] - values[0]) / (points[1] - points[0])
    second = (values[2] - values[1]) / (points[2] - points[1])
    c2 = (second - first) / (points[2] - points[0])
    c1 = first - c2 * (points[0] + points[1])
    c0 = values[0] - points[0] * (c1 + c2 * points[0])
    size = max(1, *map(abs, values)) * mpmath.mpf(10) ** -digits
    terms = [c if abs(c * far**k) > size else mpmath.mpf(0) for k, c in enumerate((c0, c1, c2))]
    while terms and terms[-1] == 0:  # a leading zero times infinity would be NaN
        terms.pop()
    return Asymptote(tuple(terms), far)


def _agree(gradient: Gradient, candidate: Asymptote, u: Any, digits: int) -> bool:
    value, polynomial = _finite(gradient, u), candidate.at(u)
    if value is None:
        return False
    return bool(abs(value - polynomial) <= mpmath.mpf(10) ** -digits * (1 + abs(polynomial)))


def _finite(gradient: Gradient, u: Any) -> Any:
    try:
        value = gradient(u)
    except (ArithmeticError, ValueError, MemoryError):
        return None
    return value if isinstance(value, mpmath.mpf) and mpmath.isfinite(value) else None
