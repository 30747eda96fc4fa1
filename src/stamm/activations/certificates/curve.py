"""An activation at fixed parameter values, cut into cells on which its derivatives are formulas."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import mpmath
import sympy
from sympy import Expr, Rational

from stamm.activations.certificates.intervals import (
    Box,
    Enclosure,
    NotEnclosed,
    added,
    constant,
    hull,
    multiplied,
)
from stamm.activations.certificates.tails import Tail, expansion
from stamm.activations.derivation.formulas import Branch, Derived, elementary, number
from stamm.activations.derivation.parametric import ParametricIntegral
from stamm.activations.derivation.primitives import X, absolute, signum
from stamm.activations.derivation.stable_forms import sample_points, split
from stamm.activations.derivation.tables import NumericalIntegral

KINKED = (sympy.Abs, sympy.sign, absolute, signum)
LONGEST = 40  # operations in a formula that is worth simplifying
_JUMPING = (sympy.sign, signum)
ORDERS = ("function", "slope", "curvature")
_RESOLUTIONS = (40, 400, 4000)  # digits
_STARTS = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


class Cell:
    """low < x < high, where f, f', f'' and f''' are one formula each.

    low, high           doubles, infinite at the ends of the line; a knot that no double equals is
                        replaced by the next double outside, so that cells cover the line
    exact_low, exact_high   the same ends as exact numbers
    formulas            f, f', f'', f''' in x alone
    """

    def __init__(self, exact_low: Expr, exact_high: Expr, formulas: tuple[Expr, ...]) -> None:
        self.exact_low, self.exact_high = exact_low, exact_high
        self.low = -math.inf if exact_low == -sympy.oo else constant(exact_low)[0]
        self.high = math.inf if exact_high == sympy.oo else constant(exact_high)[1]
        self.formulas = formulas
        self._enclosures: dict[int, Enclosure] = {}
        self._values: dict[tuple[int, int], Expr] = {}

    def box(self, order: int, low: float, high: float) -> Box:
        """A range of the derivative of that order on part of the cell.

        Edge     at an end of the cell, the range of the exact one-sided limit where it is finite.
        Raises   NotEnclosed when none is known.
        """
        if low == high and low in (self.low, self.high):
            value = self.value(order, -1 if low == self.low else 1)
            if value.is_finite and value.is_real:
                return constant(value)
        if order and self.formulas[order - 1].has(*_JUMPING):
            raise NotEnclosed("the derivative of a sign is not a function")
        if order not in self._enclosures:
            self._enclosures[order] = Enclosure(self.formulas[order])
        return self._enclosures[order](low, high)

    def value(self, order: int, end: int) -> Expr:
        """The exact limit of a derivative at the low end (-1) or the high end (1)."""
        if (order, end) not in self._values:
            at = self.exact_low if end < 0 else self.exact_high
            limit = value_at(self.formulas[order], at, -end) if at.is_finite else sympy.nan
            self._values[order, end] = sympy.S.Zero if vanishes(limit) else limit
        return self._values[order, end]

    def is_zero_at(self, order: int, end: int) -> bool:
        """Whether the derivative is proved to vanish at the low end (-1) or the high end (1)."""
        return bool(self.value(order, end) == 0)

    def far_sign(self, order: int, side: int) -> tuple[float, int] | None:
        """(start, sign): the sign of a derivative on the part of the cell beyond |x| = start.

        From the expansion of the cell's own formula, which holds on the half line, hence on the
        cell, where products of tiny numbers would underflow. None when there is none.
        """
        far = -self.low if side < 0 else self.high
        for start in _STARTS:
            if start >= min(far, _STARTS[-1]):
                return None
            try:
                sign = expansion(self.formulas[order], side, start).sign()
            except NotEnclosed:
                continue
            return (start, sign) if sign else None
        return None

    def open_sign(self, order: int, low: float, high: float) -> int | None:
        """The sign of a derivative on a box without its end 0, factor by factor.

        None when a factor other than a power of x has no sign, or 0 is not an end of the box.
        """
        if low != 0.0 and high != 0.0:
            return None
        side, sign = (1 if low == 0.0 else -1), 1
        for factor in sympy.Mul.make_args(self.formulas[order]):
            base, exponent = factor.as_base_exp()
            if base == X and not exponent.free_symbols:
                if side < 0 and not exponent.is_Integer:
                    return None
                sign *= side if side < 0 and exponent % 2 == 1 else 1
                continue
            a, b = Enclosure(factor)(low, high)
            if not (a > 0.0 or b < 0.0):
                return None
            sign *= 1 if a > 0.0 else -1
        return sign


class CertifiedCurve:
    """f and its derivatives at given parameter values.

    values   effective value of every parameter
    cells    from left to right; 0 and every knot are ends of cells
    pieces   f, f' and f'' by piece, as integrated: all three with the same ends
    knots    where two pieces meet, or a |u| in f, f' or f'' folds, as exact numbers
    folded   whether a |u| or sign(u) is left whose folds could not be located
    Checked  tests/unit/activations/test_certificate_bounds.py
    """

    def __init__(self, derived: Derived, values: Mapping[str, float]) -> None:
        self.values = dict(values)
        stable = [unfolded(self._numeric(getattr(derived.stable, name))) for name in ORDERS]
        exact = [unfolded(self._numeric(getattr(derived.exact, name))) for name in ORDERS]
        knots = distinct([b.high for branches in exact for b in branches[:-1]])
        exact = [cut_at(branches, knots) for branches in exact]
        self.pieces: list[list[Branch]] = exact
        self.knots: list[Expr] = [b.high for b in exact[0][:-1]]
        kinks = {part for branches in exact for b in branches for part in b.formula.atoms(*KINKED)}
        self.folded = any(part.has(X) for part in kinks)
        ends = {b.high for branches in (*stable, *exact) for b in branches[:-1]} | {sympy.S.Zero}
        order = [-sympy.oo, *sorted(ends, key=_size), sympy.oo]
        self.cells = [
            self._cell(low, high, stable, exact) for low, high in itertools.pairwise(order)
        ]
        self._tails: dict[tuple[int, int], Tail | None] = {}

    def derivative(self, position: int, order: int) -> Expr:
        """f, or a derivative of any order, on a piece as one formula without folds.

        Edge   where f is read from a table, which is one formula on both sides of a fold, the
               derivatives come from f'.
        """
        function = self.pieces[0][position].formula
        if order == 0 or not function.has(NumericalIntegral):
            return sympy.diff(function, X, order)
        return sympy.diff(self.pieces[1][position].formula, X, order - 1)

    def smooth_parts(self) -> list[Expr]:
        """For each piece a formula that is smooth where f is: f' where f is read from a table."""
        return [
            self.derivative(i, 1) if piece.formula.has(NumericalIntegral) else piece.formula
            for i, piece in enumerate(self.pieces[0])
        ]

    def _numeric(self, branches: Sequence[Branch]) -> list[Branch]:
        return [
            Branch(
                **{
                    **vars(b),
                    "low": at_values(b.low, self.values),
                    "high": at_values(b.high, self.values),
                    "formula": at_values(b.formula, self.values),
                }
            )
            for b in branches
        ]

    def _cell(
        self,
        low: Expr,
        high: Expr,
        stable: Sequence[Sequence[Branch]],
        exact: Sequence[Sequence[Branch]],
    ) -> Cell:
        """A cell with the stable formulas where they are the exact ones in another form.

        A stable formula may give 0 for a value below the smallest double, such as 1e-400.
        """
        middle = _middle(low, high)
        formulas = []
        for forms, true in zip(stable, exact, strict=True):
            form, right = (
                next(b.formula for b in branches if _size(b.low) <= middle <= _size(b.high))
                for branches in (forms, true)
            )
            formulas.append(form if _agree(form, right, low, high) else right)
        return Cell(low, high, (*formulas, sympy.diff(formulas[2], X)))

    @cached_property
    def reach(self) -> float:
        """The |x| beyond which every tail with an expansion keeps its sign and there is no knot."""
        starts = [
            tail.start
            for side in (-1, 1)
            for order in (0, 1, 2)
            if (tail := self.tail(order, side)) is not None
        ]
        return max([_STARTS[0], self._beyond, *starts])

    @property
    def _beyond(self) -> float:
        ends = [abs(end) for c in self.cells for end in (c.low, c.high) if math.isfinite(end)]
        return float(2 ** math.ceil(math.log2(max(ends) + 1.0)))

    def tail(self, order: int, side: int) -> Tail | None:
        """The expansion of a derivative on one side, from where its sign is settled.

        None when there is none: the formula does not fit the scheme.
        """
        if (order, side) not in self._tails:
            self._tails[order, side] = self._found_tail(order, side)
        return self._tails[order, side]

    def _found_tail(self, order: int, side: int) -> Tail | None:
        formula = self.cells[-1 if side > 0 else 0].formulas[order]
        bounded: Tail | None = None  # without a sign, as a sine has none
        for start in _STARTS:
            if start < self._beyond:
                continue
            try:
                tail = expansion(formula, side, start)
                tail.range()
                bounded = bounded or tail
                tail.sign()
            except NotEnclosed:
                continue
            return tail
        return bounded

    def tail_sign(self, order: int, side: int) -> int | None:
        """The sign of a derivative on the whole half line beyond `reach`; None when not settled."""
        tail = self.tail(order, side)
        try:
            if tail is None and order == 0:
                low, high = self.far_range(0, side)
                return 1 if low > 0.0 else -1 if high < 0.0 else None
            return None if tail is None else tail.sign()
        except NotEnclosed:
            return None

    def far_parts(self, order: int, side: int) -> list[Box | Expr]:
        """Ranges and exact numbers whose hull holds f or f' (order 0, 1) beyond `reach`.

        The value at `reach` and the limit, where the next derivative keeps its sign between them;
        else the range of the expansion. Where f has none, f' may: f is its value at `reach` and
        the integral of f' from there.

        Raises   NotEnclosed when there is no expansion.
        """
        tail, start = self.tail(order, side), self.reach
        if tail is not None and self.tail_sign(order + 1, side) is None:
            return [tail.range()]
        here = self.at(order, side * start)
        if tail is not None:
            exact = tail.exact_limit()
            return [here, tail.limit() if exact is None else exact]
        slope = self.tail(1, side) if order == 0 else None
        if slope is None:
            raise NotEnclosed(f"no expansion far to the {'left' if side < 0 else 'right'}")
        return [here, added(here, multiplied((side, side), slope.integral(start)))]

    def far_range(self, order: int, side: int) -> Box:
        """The hull of `far_parts`.

        Raises   NotEnclosed when there is no expansion.
        """
        parts = self.far_parts(order, side)
        return hull(*[part if isinstance(part, tuple) else constant(part) for part in parts])

    def limit(self, order: int, side: int) -> Box:
        """The limit of f or f' on one side, as a range; infinite where it grows.

        Raises   NotEnclosed when it has no expansion there.
        """
        tail = self.tail(order, side)
        if tail is not None:
            return tail.limit()
        end = self.far_parts(order, side)[-1]
        low, high = end if isinstance(end, tuple) else constant(end)
        if math.isinf(low) != math.isinf(high):
            return (low, low) if math.isinf(low) else (high, high)
        return low, high

    def cell_at(self, x: float) -> Cell:
        """The cell that holds x; at a knot, the one on its left."""
        return next(cell for cell in self.cells if x <= cell.high)

    def at(self, order: int, x: float) -> Box:
        """A range of a derivative at one point."""
        return self.cell_at(x).box(order, x, x)


def unfolded(branches: Sequence[Branch]) -> list[Branch]:
    """The branches cut where a linear u changes sign, with |u| and sign(u) written without bars.

    Edge   a |u| of another u stays as it is.
    """
    result: list[Branch] = []
    for branch in branches:
        folds = {root for root in map(_fold, branch.formula.atoms(*KINKED)) if root is not None}
        inside = [r for r in folds if _size(branch.low) < _size(r) < _size(branch.high)]
        low, low_closed = branch.low, branch.low_closed
        for end in [*sorted(inside, key=_size), branch.high]:
            last = end == branch.high
            result.append(
                Branch(
                    low=low,
                    low_closed=low_closed,
                    high=end,
                    high_closed=branch.high_closed if last else True,
                    formula=_without_bars(branch.formula, _middle(low, end)),
                )
            )
            low, low_closed = end, False
    return result


def distinct(ends: Sequence[Expr]) -> list[Expr]:
    """The ends from left to right, each number once."""
    unique: list[Expr] = []
    for end in sorted(ends, key=_size):
        if not unique or not _same(end, unique[-1]):
            unique.append(end)
    return unique


def cut_at(branches: Sequence[Branch], ends: Sequence[Expr]) -> list[Branch]:
    """The branches cut at every end inside one of them."""
    result: list[Branch] = []
    for branch in branches:
        inside = [
            end
            for end in ends
            if _size(branch.low) < _size(end) < _size(branch.high)
            and not _same(end, branch.low)
            and not _same(end, branch.high)
        ]
        result += split(branch, inside)
    return result


def _same(first: Expr, second: Expr) -> bool:
    """Whether two ends are one number, to thirty digits."""
    a, b = _size(first), _size(second)
    if mpmath.isinf(a) or mpmath.isinf(b):
        return bool(a == b)
    return bool(abs(a - b) <= (abs(a) + abs(b)) * mpmath.mpf(10) ** -30)


def _fold(part: Expr) -> Expr | None:
    """Where the argument of |u| or sign(u) changes its sign, when it is linear in x."""
    argument = part.args[0]
    slope = sympy.diff(argument, X)
    if slope.free_symbols or slope == 0:
        return None
    return -argument.subs(X, 0) / slope


def _without_bars(formula: Expr, at: Any) -> Expr:
    def sign(argument: Expr) -> Expr:
        with mpmath.workdps(40):
            return sympy.Integer(1 if number(argument, {X.name: at}) > 0 else -1)

    for part in sorted(formula.atoms(*KINKED), key=sympy.default_sort_key):
        if _fold(part) is not None or not part.has(X):
            argument = part.args[0]
            factor = argument if isinstance(part, (sympy.Abs, absolute)) else sympy.S.One
            formula = formula.subs(part, sign(argument) * factor)
    return formula


def at_values(formula: Expr, values: Mapping[str, float]) -> Expr:
    """The formula with every parameter replaced by its value as an exact decimal number."""
    known = {
        symbol: Rational(repr(float(values[symbol.name])))
        for symbol in formula.free_symbols
        if symbol != X
    }
    return formula.xreplace(known).replace(
        lambda part: isinstance(part, ParametricIntegral), lambda part: type(part).as_table(part)
    )


def value_at(formula: Expr, point: Expr, side: int = 1) -> Expr:
    """The exact value of a formula at a point, primitives replaced by their definitions.

    side   from where the limit is taken when the formula has no value there: 1 above, -1 below
    Edge   nan when the limit cannot be found.
    """
    value = elementary(elementary(formula).subs(X, point))  # some are elementary at 0 alone
    if value.has(sympy.nan, sympy.zoo, sympy.oo):
        try:
            value = sympy.limit(elementary(formula), X, point, dir="+" if side > 0 else "-")
        except NotImplementedError:  # it depends on the sign of a parameter
            return sympy.nan
    return value


@lru_cache(maxsize=4096)
def vanishes(value: Expr) -> bool:
    """Whether an exact number or formula is proved to be 0; False for one too long to simplify."""
    if value == 0:
        return True
    if not value.free_symbols:
        with mpmath.workdps(40):
            if not value.is_finite or abs(number(value, {})) > mpmath.mpf(10) ** -25:
                return False
        if value.is_algebraic and sympy.expand(sympy.radsimp(value)) == 0:
            return True
    return int(sympy.count_ops(value)) <= LONGEST and bool(sympy.simplify(value) == 0)


def resolved(value: Expr) -> float | None:
    """An exact number that is not 0 as a double, with as many digits as its terms cancel.

    Edge   0.0 for one below every double, nan for one that is not real, infinity as itself; None
           where thousands of digits do not distinguish it from 0.
    """
    if not value.is_extended_real:
        return math.nan
    if value.is_infinite:
        return float(value)
    for digits in _RESOLUTIONS:
        with mpmath.workdps(digits):
            approximation = number(value, {})
            if abs(approximation) > mpmath.mpf(10) ** (20 - digits):
                return float(approximation)
    return None


@lru_cache(maxsize=4096)
def _size(end: Expr) -> Any:
    if end in (sympy.oo, -sympy.oo):
        return mpmath.inf if end > 0 else -mpmath.inf
    with mpmath.workdps(40):
        return number(end, {})


def _agree(form: Expr, exact: Expr, low: Expr, high: Expr) -> bool:
    """Whether two formulas agree to thirty digits at points of an interval."""
    if form == exact:
        return True
    points = sample_points(_size(low), _size(high))
    with mpmath.workdps(80):
        for point in points[:: max(1, len(points) // 6)]:
            at = {X.name: point}
            a, b = number(form, at), number(exact, at)
            if abs(a - b) > abs(b) * mpmath.mpf(10) ** -30:
                return False
    return True


def _middle(low: Expr, high: Expr) -> Any:
    a, b = _size(low), _size(high)
    if mpmath.isinf(a):
        return mpmath.mpf(0) if mpmath.isinf(b) else b - 1
    return a + 1 if mpmath.isinf(b) else (a + b) / 2
