"""Integrals of f and f' in double precision: Gauss-Legendre panels that never cross a knot."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import mpmath
import sympy

from stamm.activations.certificates.curve import CertifiedCurve
from stamm.activations.derivation.primitives import Primitive, X
from stamm.activations.derivation.tables import TabulatedIntegral
from stamm.activations.spec.expressions import FUNCTIONS

NODES = 20
_GRADED = 24  # panels that halve toward a knot where a formula need not be smooth


def _phi2(u: float) -> float:
    """exp(u) - 1 - u, by its series where the difference cancels."""
    if abs(u) > 0.5:
        return math.expm1(u) - u
    total, term = 0.0, 0.5 * u * u
    for k in range(3, 20):
        total += term
        term *= u / k
    return total


_FLOATS: Mapping[str, Callable[[float], float]] = {
    **FUNCTIONS,
    "phi2": _phi2,
    "logistic_odd": lambda u: 0.5 * math.tanh(0.5 * u),
    "normal_odd": lambda u: 0.5 * math.erf(u / math.sqrt(2.0)),
    "cauchy_odd": lambda u: math.atan(u) / math.pi,
    "cauchy_slope": lambda u: FUNCTIONS["cauchy_cdf"](u) + u * FUNCTIONS["cauchy_pdf"](u),
    "absolute": abs,
    "signum": FUNCTIONS["sign"],
    "Abs": abs,
}


@lru_cache(maxsize=4)
def legendre(count: int) -> tuple[tuple[float, float], ...]:
    """Nodes and weights of Gauss-Legendre quadrature on [-1, 1], by Newton's method."""
    found = []
    for i in range(count):
        x = math.cos(math.pi * (i + 0.75) / (count + 0.5))
        slope = 1.0
        for _ in range(8):
            before, value = 1.0, x
            for k in range(2, count + 1):
                before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
            slope = count * (x * value - before) / (x * x - 1.0)
            x -= value / slope
        found.append((x, 2.0 / ((1.0 - x * x) * slope * slope)))
    return tuple(found)


def panels(ends: Sequence[float], width: float) -> list[tuple[float, float]]:
    """The parts between sorted ends, divided into equal panels no wider than `width`."""
    result = []
    for low, high in itertools.pairwise(ends):
        count = max(1, math.ceil((high - low) / width))
        step = (high - low) / count
        result += [(low + i * step, low + (i + 1) * step) for i in range(count)]
    return result


def nodes(parts: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points and weights of an integral over the panels."""
    rule = legendre(NODES)
    return [
        (0.5 * (low + high) + 0.5 * (high - low) * x, 0.5 * (high - low) * weight)
        for low, high in parts
        for x, weight in rule
    ]


class Sampler:
    """f and f' as fast functions of a double, and where integrals of them must be divided.

    graded   whether panels get smaller towards knots, where a formula need not be smooth
    """

    def __init__(self, curve: CertifiedCurve, *, graded: bool) -> None:
        self._ends = [cell.high for cell in curve.cells[:-1]]
        self._functions = [
            tuple(_compiled(cell.formulas[order]) for order in (0, 1)) for cell in curve.cells
        ]
        self.breaks = sorted(set(self._ends))
        self._graded = graded

    def __call__(self, x: float) -> tuple[float, float]:
        """(f(x), f'(x)); at a knot, as on its left."""
        for end, (function, slope) in zip(self._ends, self._functions, strict=False):
            if x <= end:
                return function(x), slope(x)
        function, slope = self._functions[-1]
        return function(x), slope(x)

    def ends(self, low: float, high: float, width: float) -> list[float]:
        """low, high and every knot between; knots closed in on where f need not be smooth."""
        inner = {b for b in self.breaks if low < b < high}
        if self._graded:
            for knot in sorted(inner):
                for k in range(_GRADED):
                    inner |= {knot + sign * width * 0.5**k for sign in (-1, 1)}
        return [low, *sorted(b for b in inner if low < b < high), high]


def _compiled(formula: Any) -> Callable[[float], float]:
    if not formula.free_symbols:
        value = float(formula)
        return lambda _: value
    functions = dict(_FLOATS)
    for part in formula.atoms(Primitive):
        kind: Any = type(part)
        if kind.__name__ not in functions:
            functions[kind.__name__] = _from_value(kind)
    made: Callable[[float], float] = sympy.lambdify(X, formula, modules=[functions, "math"])
    return made


@lru_cache(maxsize=64)
def _from_value(kind: Any) -> Callable[[float], float]:
    """A primitive as a function of a double: of a table, its polynomials; else by mpmath."""
    if issubclass(kind, TabulatedIntegral):
        return _from_table(kind)

    @lru_cache(maxsize=65536)
    def valued(u: float) -> float:
        with mpmath.workprec(60):
            return float(kind.value(mpmath.mpf(u)))

    return valued


def _from_table(table: type[TabulatedIntegral]) -> Callable[[float], float]:
    """The integral a table holds, in double precision."""
    first = math.floor(table.low / table.step)

    def valued(u: float) -> float:
        row = (0.0, *table.left) if u < table.low else (0.0, *table.right)
        if len(row) == 1 or table.low <= u <= table.high:
            cell = min(max(math.floor(u / table.step) - first, 0), len(table.rows) - 1)
            row = table.rows[cell]
        total = 0.0
        for c in reversed(row[1:]):
            total = c + (u - row[0]) * total
        return total

    return valued
