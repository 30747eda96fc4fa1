"""Integrals without a closed form whose shape depends on parameters: tables made in each call.

The kernel interpolates the gradient at Chebyshev points of a few cells, for the parameters of the
call, and integrates the interpolant; each element then reads one cell. The slope in a parameter is
the integral of the gradient's slope in it, in the same way, so no difference quotient is taken.
Cells are narrow near the origin and grow with the distance, so one mesh resolves gradients of many
widths.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mpmath
import sympy
from sympy import Expr, Symbol

from stamm.activations.derivation.formulas import Branches, number
from stamm.activations.derivation.primitives import X
from stamm.activations.derivation.tables import NumericalIntegral, asymptote, table_of
from stamm.base.errors import ConfigError
from stamm.base.files import sha256_value

POINTS = 20  # of each cell
_FARTHEST = 2.0**20  # beyond it the gradient is the polynomial that it approaches
_WAYS = (
    (1.0, 8.0, 2.0),
    (0.5, 16.0, 1.5),
    (0.5, 64.0, 1.5),
    (0.25, 64.0, 1.25),
)  # width, as far as, growth
_FIRST = 2.0**-6
_ALLOWED = 1e-14
_CLASS = 20  # digits of a reference value are rounded up to multiples of it
_DIGITS = 60  # a gradient of a saturated function cancels


class ParametricIntegral(NumericalIntegral):
    """The integral of a gradient from `origin` to the first argument; the others are parameters.

    gradient     in x and `names`
    names        the symbols that the other arguments stand for, in order
    origin       where the integral is 0: the point of [low, high] nearest to 0
    low, high    where the gradient ends, or None when it is unbounded on that side
    """

    nargs: Any = None
    gradient: Expr
    names: tuple[Symbol, ...]
    origin: float
    low: float | None
    high: float | None
    reference: Any

    @classmethod
    def eval(cls, *arguments: Expr) -> Expr | None:
        """0 at the origin."""
        return sympy.S.Zero if arguments[0] == sympy.Rational(cls.origin) else None

    def fdiff(self, argindex: int = 1) -> Expr:
        """The gradient itself, or the integral of its slope in a parameter."""
        kind = type(self)
        put = dict(zip(kind.names, self.args[1:], strict=True))
        if argindex == 1:
            return kind.gradient.xreplace({X: self.args[0], **put})
        slope = sympy.diff(kind.gradient, kind.names[argindex - 2])
        return parametric_integral(slope, kind.low, kind.high).xreplace({X: self.args[0], **put})

    def as_table(self) -> Expr:
        """The same integral by a table that is made once, where the parameters are numbers."""
        kind = type(self)
        gradient = kind.gradient.xreplace(dict(zip(kind.names, self.args[1:], strict=True)))
        table = table_of(gradient, kind.low, kind.high)
        above = table(sympy.Rational(kind.origin)) if table.origin != kind.origin else 0
        return table(self.args[0]) - above

    def _eval_mpmath(self) -> Any:
        return lambda *parts: type(self).value(*map(mpmath.mpmathify, parts)), self.args


def parametric_integral(gradient: Expr, low: float | None, high: float | None) -> Expr:
    """The integral of a gradient of x and parameters, as a function that formulas can hold.

    Checked   tests/unit/activations/test_parametric.py
    """
    if gradient == 0:
        return sympy.S.Zero
    kind = _kind(gradient, low, high)
    return kind(X, *kind.names)


@lru_cache(maxsize=256)
def _kind(gradient: Expr, low: float | None, high: float | None) -> type[ParametricIntegral]:
    names = tuple(sorted(gradient.free_symbols - {X}, key=lambda symbol: symbol.name))
    origin = min(max(0.0, -math.inf if low is None else low), math.inf if high is None else high)
    reference = _Reference(gradient, names, origin, low, high)
    members = {
        "__doc__": f"the integral of {gradient} from {origin:g}",
        "gradient": gradient,
        "names": names,
        "origin": origin,
        "low": low,
        "high": high,
        "value": staticmethod(reference),
        "definition": staticmethod(lambda *arguments: made(*arguments)),
        "__module__": __name__,
    }
    name = f"integral_{sha256_value([sympy.srepr(gradient), low, high])[:8]}"
    made: type[ParametricIntegral] = type(name, (ParametricIntegral,), members)
    return made


class _Reference:
    """The integral to the working precision, cell by cell; heights are kept."""

    def __init__(
        self,
        gradient: Expr,
        names: Sequence[Symbol],
        origin: float,
        low: float | None,
        high: float | None,
    ) -> None:
        self._gradient, self._names, self._origin = gradient, names, mpmath.mpf(origin)
        self._ends = {-1: low, 1: high}
        self._edges = {s: distances(end, origin, _WAYS[0]) for s, end in self._ends.items()}
        self._heights: dict[Any, list[Any]] = {}
        self._tails: dict[Any, Any] = {}

    def __call__(self, u: Any, *parameters: Any) -> Any:
        digits = _CLASS * math.ceil((mpmath.mp.dps + 2) / _CLASS)
        with mpmath.workdps(digits + 10):
            side = 1 if u >= self._origin else -1
            key = (side, digits, *parameters)
            values = dict(zip((s.name for s in self._names), parameters, strict=True))

            def at(t: Any) -> Any:
                return number(self._gradient, {**values, X.name: t})

            far = abs(u - self._origin)
            if self._ends[side] is None and far > 64:
                if key not in self._tails:
                    tail = asymptote(at, side, digits)
                    if tail is None:
                        raise ArithmeticError(f"the gradient has no asymptote to {digits} digits")
                    end = side * tail.reach
                    height = self._within(at, end, side, key) - tail.integral(end)
                    self._tails[key] = tail, height
                tail, height = self._tails[key]
                if abs(u) > tail.reach:
                    return +(height + tail.integral(u))
            result = self._within(at, u, side, key)
        return +result

    def _within(self, at: Any, u: Any, side: int, key: Any) -> Any:
        edges, heights = self._edges[side], self._heights.setdefault(key, [mpmath.mpf(0)])
        far = abs(u - self._origin)
        cell = max(bisect.bisect_right(edges, far) - 1, 0)
        while len(heights) <= cell:
            k = len(heights)
            heights.append(heights[-1] + self._rise(at, edges[k - 1], edges[k], side))
        return heights[cell] + self._rise(at, edges[cell], far, side)

    def _rise(self, at: Any, near: Any, far: Any, side: int) -> Any:
        if near == far:
            return mpmath.mpf(0)
        ends = [self._origin + side * mpmath.mpf(near), self._origin + side * mpmath.mpf(far)]
        return mpmath.quad(at, ends, method="gauss-legendre")


def distances(end: float | None, origin: float, way: tuple[float, float, float]) -> list[float]:
    """The edges of cells by their distance from the origin, up to `end` or to 2**20."""
    width, even, growth = way
    limit = _FARTHEST if end is None else abs(end - origin)
    edges = [0.0, _FIRST]
    while edges[-1] < limit:
        at = edges[-1]
        edges.append(2 * at if at < width else at + width if at < even else growth * at)
    return [*(e for e in edges if e < limit), limit] if limit else [0.0]


@dataclass(frozen=True)
class MeshSide:
    """The cells on one side of the origin.

    edges   distances from the origin, from 0 on; 0 alone where the gradient ends there
    order   the power of the distance like which the gradient vanishes at the origin
    tail    degree of the polynomial that the gradient approaches beyond; -1 where the gradient ends
    """

    edges: tuple[float, ...]
    order: int
    tail: int


def sides_of(
    kind: type[ParametricIntegral], settings: Sequence[Mapping[str, float]], *, strict: bool
) -> tuple[MeshSide, MeshSide]:
    """The coarsest cells on the left and right that resolve the gradient at every setting.

    strict   False takes the finest cells where none resolve it
    Raises   ConfigError where the gradient approaches no line, or bends too sharply.
    """
    with mpmath.workdps(_DIGITS):
        return _side(kind, settings, -1, strict), _side(kind, settings, 1, strict)


def _side(
    kind: type[ParametricIntegral],
    settings: Sequence[Mapping[str, float]],
    side: int,
    strict: bool,
) -> MeshSide:
    end = kind.low if side < 0 else kind.high
    if end == kind.origin:
        return MeshSide((0.0,), 0, -1)
    kept = [{s.name: values[s.name] for s in kind.names} for values in settings]
    kept = [dict(items) for items in dict.fromkeys(tuple(v.items()) for v in kept)]
    tail = -1
    for values in kept if end is None else ():

        def gradient(at: Any, values: Mapping[str, float] = values) -> Any:
            return number(kind.gradient, {**values, X.name: at})

        polynomial = asymptote(gradient, side, 20)
        degree = 3 if polynomial is None else max(len(polynomial.coefficients) - 1, 0)
        if polynomial is None or degree > 1 or polynomial.reach > _FARTHEST:
            shown = ", ".join(f"{name} = {value:g}" for name, value in values.items())
            raise ConfigError(
                f"{kind.gradient} approaches no line exponentially on the"
                f" {'left' if side < 0 else 'right'} with {shown}",
                fix="State it on a finite interval, or with its known integral",
            )
        tail = max(tail, degree)
    order = min((_order(kind, values, side) for values in kept), default=0)
    for way in _WAYS:
        edges = distances(end, kind.origin, way)
        finest = not strict and way == _WAYS[-1]
        if finest or all(_resolves(kind, values, side, edges, order) for values in kept):
            return MeshSide(tuple(edges), order, tail)
    raise ConfigError(
        f"{kind.gradient} bends too sharply for a table that each call makes",
        fix="Make the parameter fixed, or state the integral with the piece",
    )


def _order(kind: type[ParametricIntegral], values: Mapping[str, float], side: int) -> int:
    near, nearer = (
        abs(number(kind.gradient, {**values, X.name: kind.origin + side * mpmath.mpf(10) ** -k}))
        for k in (8, 10)
    )
    return max(0, int(mpmath.nint(mpmath.log10(near / nearer) / 2))) if near and nearer else 0


def _resolves(
    kind: type[ParametricIntegral],
    values: Mapping[str, float],
    side: int,
    edges: Sequence[float],
    order: int,
) -> bool:
    """Whether 20 points of every cell give the integral to the last digits of float64."""
    cosines = [mpmath.cos(mpmath.pi * (2 * i + 1) / (2 * POINTS)) for i in range(POINTS)]
    height = mpmath.mpf(0)
    for near, far in itertools.pairwise(edges):
        half = mpmath.mpf(far - near) / 2
        points = [near + half * (1 + c) for c in cosines]
        rates = [number(kind.gradient, {**values, X.name: kind.origin + side * t}) for t in points]
        if near == 0:
            rates = [rate / t**order for rate, t in zip(rates, points, strict=True)]
        last = [
            abs(
                2
                * mpmath.fdot(
                    rates,
                    [mpmath.cos(k * mpmath.pi * (2 * i + 1) / (2 * POINTS)) for i in range(POINTS)],
                )
                / POINTS
            )
            for k in range(POINTS - 3, POINTS)
        ]
        mean = mpmath.fsum(rates) / POINTS
        height += abs(2 * half * mean) * (half**order if near == 0 else 1)
        size = abs(mean) if near == 0 else height + near * abs(mean)
        if mpmath.fsum(last) * (1 if near == 0 else half) > _ALLOWED * size:
            return False
    return True


def parametric_in(*rows: Branches) -> list[type[ParametricIntegral]]:
    """The parametric integrals in piecewise formulas, each once, by name."""
    integrals = {type(p).__name__: type(p) for part in _parts(rows) for p in part}
    return [integrals[name] for name in sorted(integrals)]


def _parts(rows: Sequence[Branches]) -> Iterator[set[Any]]:
    for branches in rows:
        for branch in branches:
            yield branch.formula.atoms(ParametricIntegral)
