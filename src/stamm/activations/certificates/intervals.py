"""Interval evaluation: a range that holds every value a formula takes on a box.

Ends are doubles and every operation widens outward: sums, products and quotients by one unit in
the last place of a correctly rounded result unless it is exact, functions by one unit of a value that was computed
with 80 bits. Infinite ends are allowed; zero times infinity is zero, as for a range of reals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mpmath
import sympy
from sympy import Expr

from stamm.activations.derivation import primitives as named
from stamm.activations.derivation import special
from stamm.activations.derivation.formulas import applied
from stamm.activations.derivation.primitives import Primitive, X

Box = tuple[float, float]
LINE: Box = (-math.inf, math.inf)
_BITS = 80
_TINY = 5e-324
_SINGLE_PRECISION_OF_PI = 1e-9  # how near an extremum of a sine counts as inside


class NotEnclosed(Exception):  # noqa: N818  # the outcome of a proof attempt, not a fault
    """No range is known: an unknown function, or an argument outside a domain."""


@dataclass(frozen=True)
class _Shape:
    """Monotonicity of a function: its direction left and right of `turn`, its limits, its domain."""

    left: int
    right: int
    at_minus: float
    at_plus: float
    domain: Box = LINE
    turn: float = 0.0


def _rising(low: float, high: float, domain: Box = LINE) -> _Shape:
    return _Shape(1, 1, low, high, domain)


_SHAPES: Mapping[Any, _Shape] = {
    sympy.exp: _rising(0.0, math.inf),
    sympy.log: _rising(math.nan, math.inf, (0.0, math.inf)),
    sympy.sinh: _rising(-math.inf, math.inf),
    sympy.asinh: _rising(-math.inf, math.inf),
    sympy.tanh: _rising(-1.0, 1.0),
    sympy.atan: _rising(-math.pi / 2, math.pi / 2),
    sympy.asin: _rising(math.nan, math.nan, (-1.0, 1.0)),
    sympy.acosh: _rising(math.nan, math.inf, (1.0, math.inf)),
    sympy.erf: _rising(-1.0, 1.0),
    sympy.erfc: _Shape(-1, -1, 2.0, 0.0),
    sympy.cosh: _Shape(-1, 1, math.inf, math.inf),
    sympy.Abs: _Shape(-1, 1, math.inf, math.inf),
    sympy.sign: _rising(-1.0, 1.0),
    named.expm1: _rising(-1.0, math.inf),
    named.phi2: _Shape(-1, 1, math.inf, math.inf),
    named.log1p: _rising(math.nan, math.inf, (-1.0, math.inf)),
    named.softplus: _rising(0.0, math.inf),
    named.logistic: _rising(0.0, 1.0),
    named.logistic_odd: _rising(-0.5, 0.5),
    named.normal_pdf: _Shape(1, -1, 0.0, 0.0),
    named.normal_cdf: _rising(0.0, 1.0),
    named.normal_odd: _rising(-0.5, 0.5),
    named.cauchy_pdf: _Shape(1, -1, 0.0, 0.0),
    named.cauchy_cdf: _rising(0.0, 1.0),
    named.cauchy_odd: _rising(-0.5, 0.5),
    named.cauchy_slope: _rising(0.0, 1.0),
    named.gompertz: _rising(0.0, 1.0),
    named.gompertz_pdf: _Shape(1, -1, 0.0, 0.0),
    # Between the turning point and the double next to it the value changes by less than a bit.
    named.gompertz_pdf_rise: _Shape(1, -1, 0.0, 0.0, LINE, -math.log(2.0)),
    special.softplus_integral: _rising(0.0, math.inf),
    special.logistic_moment: _Shape(-1, 1, 0.0, math.inf),
    special.gompertz_integral: _rising(0.0, math.inf),
    special.gompertz_upper_integral: _Shape(-1, -1, math.inf, 0.0),
    special.mish_gate_integral: _rising(0.0, math.inf),
    special.log_cosh: _Shape(-1, 1, math.inf, math.inf),
    named.absolute: _Shape(-1, 1, math.inf, math.inf),
    named.signum: _rising(-1.0, 1.0),
}
_DOUBLY_EXPONENTIAL = (
    named.gompertz,
    named.gompertz_pdf,
    named.gompertz_pdf_rise,
    special.gompertz_integral,
    special.gompertz_upper_integral,
)


class Enclosure:
    """A formula in x, ready to be enclosed on many boxes; equal parts are evaluated once.

    Raises   NotEnclosed when it holds a function without a known range.
    Checked  tests/unit/activations/test_certificate_intervals.py
    """

    def __init__(self, formula: Expr) -> None:
        self._start: list[Box] = [(0.0, 0.0)]
        self._steps: list[tuple[Callable[..., Box], tuple[int, ...], int]] = []
        self._known: dict[Expr, int] = {X: 0}
        self._result = self._compiled(formula)

    def __call__(self, low: float, high: float) -> Box:
        """A range that holds the formula's values for low <= x <= high.

        Raises   NotEnclosed where part of the box lies outside a function's domain.
        """
        registers = self._start.copy()
        registers[0] = (low, high)
        for step, inputs, output in self._steps:
            registers[output] = step(*[registers[i] for i in inputs])
        return registers[self._result]

    def _compiled(self, formula: Expr) -> int:
        if formula not in self._known:
            self._known[formula] = self._new(formula)
        return self._known[formula]

    def _new(self, formula: Expr) -> int:
        if not formula.free_symbols:
            self._start.append(constant(formula))
            return len(self._start) - 1
        if formula.is_Symbol:
            raise NotEnclosed(f"{formula} has no value")
        if formula.is_Add or formula.is_Mul:
            step = added if formula.is_Add else multiplied
            parts = [self._compiled(part) for part in formula.args]
            result = parts[0]
            for part in parts[1:]:
                result = self._step(step, result, part)
            return result
        if formula.is_Pow:
            return self._power(formula)
        if len(formula.args) != 1:
            raise NotEnclosed(f"{type(formula).__name__} has no known range")
        return self._step(function_range(type(formula)), self._compiled(formula.args[0]))

    def _power(self, formula: Expr) -> int:
        base, exponent = formula.args
        if exponent.free_symbols:
            raise NotEnclosed(f"{formula} has a variable exponent")
        if exponent.is_Integer:
            power = int(exponent)
            return self._step(lambda box: _integer_power(box, power), self._compiled(base))
        bits = constant(exponent)
        return self._step(lambda box: _real_power(box, exponent, bits), self._compiled(base))

    def _step(self, step: Callable[..., Box], *inputs: int) -> int:
        self._start.append((0.0, 0.0))
        self._steps.append((step, inputs, len(self._start) - 1))
        return len(self._start) - 1


@lru_cache(maxsize=4096)
def constant(formula: Expr) -> Box:
    """The range of one number, a few units in the last place wide, or exact where it is a double.

    Raises   NotEnclosed when it is not real and finite.
    """
    if formula.is_Integer and abs(formula) < 2**53:
        return float(formula), float(formula)
    if formula.is_Rational and sympy.Rational(float(formula)) == formula:
        return float(formula), float(formula)
    value = sympy.N(formula, 30)
    if not value.is_Float and not value.is_Rational:
        raise NotEnclosed(f"{formula} is not a real number")
    return _outward(float(value), float(value))


def hull(*boxes: Box) -> Box:
    """The least range that holds all of them."""
    return min(b[0] for b in boxes), max(b[1] for b in boxes)


def added(a: Box, b: Box) -> Box:
    """The range of a sum."""
    return _sum(a[0], b[0], -math.inf), _sum(a[1], b[1], math.inf)


def negated(a: Box) -> Box:
    """The range of minus a value."""
    return -a[1], -a[0]


def multiplied(a: Box, b: Box) -> Box:
    """The range of a product."""
    ends = [(_product(x, y), x, y) for x in a for y in b]
    low, high = min(ends), max(ends)
    return _widened(*low, -math.inf), _widened(*high, math.inf)


def function_range(kind: Any) -> Callable[[Box], Box]:
    """The rule for the range of a function of one argument.

    Raises   NotEnclosed when none is known.
    """
    if kind in (sympy.sin, sympy.cos):
        return lambda box: _wave(kind, box)
    if kind in _SHAPES:
        shape = _SHAPES[kind]
        return lambda box: _shaped(kind, shape, box)
    unknown: Any = kind
    if isinstance(kind, type) and issubclass(kind, Primitive):
        return _by_slope(unknown)
    raise NotEnclosed(f"{getattr(kind, '__name__', kind)} has no known range")


@lru_cache(maxsize=64)
def _by_slope(kind: Any) -> Callable[[Box], Box]:
    """The range of a primitive of which only its value and its slope are known.

    Between its ends where the slope keeps its sign; else F(m) + slope (u - m) by the mean value
    theorem, with m inside the box.
    """
    formula = kind.slope(X)
    if formula.has(kind):
        raise NotEnclosed(f"{kind.__name__} has no known range")
    slope = Enclosure(formula)

    def bounded(box: Box) -> Box:
        low, high = box
        if low == high:
            return _value(kind, low)
        rise = slope(low, high)
        if rise[0] >= 0.0:
            return _value(kind, low)[0], _value(kind, high)[1]
        if rise[1] <= 0.0:
            return _value(kind, high)[0], _value(kind, low)[1]
        middle = 0.0 if low < 0.0 < high else low + (high - low) / 2.0
        if math.isinf(middle):
            return LINE
        step = added(box, (-middle, -middle))
        return added(_value(kind, middle), multiplied(rise, step))

    return bounded


def _shaped(kind: Any, shape: _Shape, box: Box) -> Box:
    low, high = box
    if low < shape.domain[0] or high > shape.domain[1]:
        raise NotEnclosed(f"{kind.__name__} of a number outside its domain")
    ends = _at(kind, low), _at(kind, high)
    enclosure = hull(*ends) if low != high else ends[0]
    if shape.left != shape.right and low < shape.turn < high:
        enclosure = hull(enclosure, _at(kind, shape.turn))
    return enclosure


@lru_cache(maxsize=65536)
def _at(kind: Any, u: float) -> Box:
    """The range of a function at one number, which may be infinite."""
    shape = _SHAPES[kind]
    if math.isinf(u):
        limit = shape.at_plus if u > 0 else shape.at_minus
        return (limit, limit) if limit in (0.0, 1.0, -1.0) else _outward(limit, limit)
    if u == shape.domain[0] and kind in (sympy.log, named.log1p):
        return -math.inf, -math.inf
    if kind in _DOUBLY_EXPONENTIAL and u < -1000.0:
        return 0.0, _TINY
    return _value(kind, u)


@lru_cache(maxsize=65536)
def _value(kind: Any, u: float) -> Box:
    """The range of a function at one finite number."""
    if math.isinf(u):
        return LINE
    with mpmath.workprec(_BITS):
        argument = mpmath.mpf(u)
        value = kind.value(argument) if issubclass(kind, Primitive) else _applied(kind, argument)
        double = _double(value)
        return _outward(double, double, positive=value > 0, negative=value < 0)


def _applied(kind: Any, argument: Any) -> Any:
    return applied(kind(X), [argument])


def _double(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _outward(low: float, high: float, positive: bool = False, negative: bool = False) -> Box:
    """One unit wider on both sides; an exact 0 stays, and an underflowed value keeps its sign."""
    if low == high == 0.0 and not positive and not negative:
        return 0.0, 0.0
    down = math.nextafter(low, -math.inf)
    up = math.nextafter(high, math.inf)
    return (max(down, 0.0) if positive else down), (min(up, 0.0) if negative else up)


def _sum(a: float, b: float, toward: float) -> float:
    if a == 0.0:
        return b
    if b == 0.0:
        return a
    total = a + b
    if not math.isfinite(total):
        return toward if math.isnan(total) else math.nextafter(total, toward)
    # Knuth's error term: a sum without rounding error is not widened.
    part = total - a
    error = (a - (total - part)) + (b - part)
    return total if error == 0.0 else math.nextafter(total, toward)


def _product(a: float, b: float) -> float:
    return 0.0 if a == 0.0 or b == 0.0 else a * b


def _widened(product: float, a: float, b: float, toward: float) -> float:
    if a == 0.0 or b == 0.0 or abs(a) == 1.0 or abs(b) == 1.0:
        return product
    if product == 0.0:  # it underflowed: its sign is still known
        positive = (a > 0) == (b > 0)
        away = positive == (toward > 0)
        return math.copysign(_TINY, toward) if away else 0.0
    return math.nextafter(product, toward)


def _wave(kind: Any, box: Box) -> Box:
    low, high = box
    if not high - low < 2 * math.pi or max(abs(low), abs(high)) > 1e6:
        return -1.0, 1.0
    with mpmath.workprec(_BITS):
        function = mpmath.sin if kind is sympy.sin else mpmath.cos
        values = [float(function(mpmath.mpf(u))) for u in box]
    enclosure = _outward(min(values), max(values))
    peak = math.pi / 2 if kind is sympy.sin else 0.0
    slack = _SINGLE_PRECISION_OF_PI
    top = 1.0 if _meets(low - slack, high + slack, peak) else min(enclosure[1], 1.0)
    bottom = -1.0 if _meets(low - slack, high + slack, peak + math.pi) else max(enclosure[0], -1.0)
    return bottom, top


def _meets(low: float, high: float, point: float) -> bool:
    """Whether point + 2 pi k lies between low and high for a whole k."""
    return point + 2 * math.pi * math.ceil((low - point) / (2 * math.pi)) <= high


def _integer_power(box: Box, power: int) -> Box:
    if power < 0:
        low, high = _integer_power(box, -power)
        if low < 0.0 < high:
            return LINE
        if low == 0.0 == high:
            raise NotEnclosed("division by zero")
        return _inverse(high, -math.inf, low), _inverse(low, math.inf, high)
    low, high = box
    if power % 2 == 0:
        if low < 0.0 < high:
            return 0.0, _raised(max(-low, high), power, math.inf)
        low, high = sorted((abs(low), abs(high)))
        return max(0.0, _raised(low, power, -math.inf)), _raised(high, power, math.inf)
    return _raised(low, power, -math.inf), _raised(high, power, math.inf)


def _inverse(value: float, toward: float, other: float) -> float:
    if value == 0.0:  # one end is 0: the reciprocal is unbounded on the side of the other end
        return math.inf if other > 0 else -math.inf
    if math.isinf(value):
        return 0.0
    return (
        math.nextafter(1.0 / value, toward)
        if abs(value) > _TINY
        else math.copysign(math.inf, value)
    )


def _raised(value: float, power: int, toward: float) -> float:
    if value in (0.0, 1.0) or power == 1:
        return value
    try:
        result = value * value if power == 2 else value**power
    except OverflowError:
        result = math.copysign(math.inf, value) if power % 2 else math.inf
    if math.isinf(result) and not math.isinf(value):
        biggest = math.copysign(1.7976931348623157e308, result)
        return result if (result > 0) == (toward > 0) else biggest
    step = result
    for _ in range(2):
        step = math.nextafter(step, toward)
    if result == 0.0:
        return min(step, 0.0) if value < 0 and power % 2 else max(step, 0.0)
    return step


def _real_power(box: Box, exponent: Expr, bits: Box) -> Box:
    if box[0] < 0.0:
        raise NotEnclosed("a real power of a negative number")
    falling = bits[1] < 0.0
    ends = [_real_raised(end, exponent, falling) for end in box]
    return hull(*ends)


@lru_cache(maxsize=65536)
def _real_raised(value: float, exponent: Expr, falling: bool) -> Box:
    if value == 0.0 or math.isinf(value):
        zero = (value == 0.0) != falling
        return (0.0, 0.0) if zero else (math.inf, math.inf)
    if value == 1.0:
        return 1.0, 1.0
    with mpmath.workprec(_BITS):
        power = (
            mpmath.mpf(int(exponent.p)) / int(exponent.q)
            if exponent.is_Rational
            else (sympy.N(exponent, 30)._to_mpmath(_BITS))
        )
        double = _double(mpmath.power(mpmath.mpf(value), power))
        return _outward(double, double, positive=True)
