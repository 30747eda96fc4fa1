"""Proved expansions far out: a formula on all of t >= L as a short sum of C times a monomial.

A monomial is exp(-w exp(c t) - b t**2 - a t) t**p log(t)**q, and C is an exact number or a range
that holds a bounded function of t. Sums, products, powers, exponentials, logarithms and every
named function have such an expansion with a proved remainder, so the sign of a formula, its limit
and the rate at which it is reached hold on the whole half line and not only where it was sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cmp_to_key, lru_cache
from typing import Any

import mpmath
import sympy
from sympy import Expr, Integer, Rational, Symbol

from stamm.activations.certificates.intervals import (
    Box,
    Enclosure,
    NotEnclosed,
    added,
    constant,
    function_range,
    hull,
    multiplied,
)
from stamm.activations.derivation import primitives as named
from stamm.activations.derivation import special
from stamm.activations.derivation.formulas import elementary
from stamm.activations.derivation.primitives import Primitive, X

_MOST_TERMS = 10
_BITS = 80
_DOUBTFUL = 1e-14
_ONE = (1.0, 1.0)
_ZERO = Integer(0)


@dataclass(frozen=True)
class Monomial:
    """exp(-sum of w exp(c t) - b t**2 - a t) t**p log(t)**q; `towers` holds the pairs (c, w)."""

    towers: tuple[tuple[Expr, Expr], ...] = ()
    square: Expr = _ZERO
    linear: Expr = _ZERO
    power: Expr = _ZERO
    logs: Expr = _ZERO

    def times(self, other: Monomial) -> Monomial:
        """The product of two monomials."""
        towers = dict(self.towers)
        for rate, weight in other.towers:
            towers[rate] = towers.get(rate, Integer(0)) + weight
        kept = sorted(((c, w) for c, w in towers.items() if w != 0), key=lambda pair: -pair[0])
        return Monomial(
            towers=tuple(kept),
            square=self.square + other.square,
            linear=self.linear + other.linear,
            power=self.power + other.power,
            logs=self.logs + other.logs,
        )

    def raised(self, exponent: Expr) -> Monomial:
        """The monomial to a real power."""
        return Monomial(
            towers=tuple((c, w * exponent) for c, w in self.towers),
            square=self.square * exponent,
            linear=self.linear * exponent,
            power=self.power * exponent,
            logs=self.logs * exponent,
        )

    @property
    def trend(self) -> int:
        """1 when it grows without bound, 0 when it is the constant 1, -1 when it vanishes."""
        weights = [w for _, w in self.towers]
        for value in (*weights, self.square, self.linear, -self.power, -self.logs):
            if value != 0:
                return -1 if value > 0 else 1
        return 0

    def highest(self, start: float) -> float:
        """A bound on a vanishing monomial for all t >= start, start > 1.

        Raises   NotEnclosed when it need not fall from `start` on.
        """
        return 1.0 if self.trend == 0 else self._fall(start)[0]

    def integral(self, start: float) -> float:
        """A bound on its integral from `start` to infinity; infinite where there is none.

        A monomial whose logarithm falls at least at rate r integrates to at most its value over r.
        """
        if self.trend >= 0:
            return math.inf
        value, rate = self._fall(start)
        if rate > 0.0:
            return value / rate * (1.0 + 1e-12)
        power = float(self.power)
        plain = self == Monomial(power=self.power)
        return value * start / (-power - 1.0) * (1.0 + 1e-12) if plain and power < -1 else math.inf

    def _fall(self, start: float) -> tuple[float, float]:
        """(a bound for all t >= start, the least rate at which its logarithm falls there)."""
        with mpmath.workprec(_BITS):
            t = mpmath.mpf(start)
            square, linear = _number(self.square), _number(self.linear)
            power, logs = _number(self.power), _number(self.logs)
            if square < 0:
                raise NotEnclosed("a growing square is not bounded here")
            slope = max(power + max(logs, 0) / mpmath.log(t), 0) / t - linear - 2 * square * t
            exponent = -square * t * t - linear * t
            for rate, weight in self.towers:
                if weight < 0:
                    raise NotEnclosed("exponentials of exponentials compete")
                tower = _number(weight) * mpmath.exp(_number(rate) * t)
                slope -= _number(rate) * tower
                exponent -= tower
            if slope > 0:
                raise NotEnclosed("it still rises at the start")
            value = mpmath.exp(max(exponent, -1e6)) * t**power * mpmath.log(t) ** logs
            highest = max(float(value * (1 + mpmath.mpf(2) ** -40)), 5e-324)
            return highest, min(float(-slope), 1e300)


CONSTANT = Monomial()


@dataclass(frozen=True)
class Coefficient:
    """An exact number, or a bounded function of t of which only a range is known."""

    box: Box
    exact: Expr | None = None

    def plus(self, other: Coefficient) -> Coefficient:
        """The sum; exact when both are."""
        if self.exact is not None and other.exact is not None:
            return exactly(self.exact + other.exact)
        return Coefficient(added(self.box, other.box))

    def times(self, other: Coefficient) -> Coefficient:
        """The product; exact when both are."""
        if self.exact is not None and other.exact is not None:
            return exactly(self.exact * other.exact)
        return Coefficient(multiplied(self.box, other.box))

    @property
    def sign(self) -> int:
        """Its sign where it has one.

        Raises   NotEnclosed when the range holds 0.
        """
        if self.box[0] > 0:
            return 1
        if self.box[1] < 0:
            return -1
        raise NotEnclosed("the leading coefficient may vanish")


@lru_cache(maxsize=4096)
def exactly(value: Expr) -> Coefficient:
    """An exact coefficient; a sum that cancels is found to be 0.

    Raises   NotEnclosed for a tiny irrational number that cannot be distinguished from 0.
    """
    value = sympy.expand(value)
    box = constant(value)
    if not value.is_Rational and abs(box[0]) < _DOUBTFUL:
        if sympy.simplify(value) != 0:
            raise NotEnclosed(f"{value} may be 0")
        value, box = _ZERO, (0.0, 0.0)
    return Coefficient(box, value)


@dataclass(frozen=True)
class Tail:
    """The sum of coefficient times monomial, valid for every t >= start."""

    start: float
    terms: Mapping[Monomial, Coefficient] = field(default_factory=dict)

    def plus(self, other: Tail) -> Tail:
        """The sum of two expansions."""
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            terms[monomial] = (
                terms[monomial].plus(coefficient) if monomial in terms else coefficient
            )
        return self._made(terms)

    def times(self, other: Tail) -> Tail:
        """The product of two expansions."""
        terms: dict[Monomial, Coefficient] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                monomial, coefficient = left.times(right), a.times(b)
                known = terms.get(monomial)
                terms[monomial] = coefficient if known is None else known.plus(coefficient)
        return self._made(terms)

    def scaled(self, factor: Expr | Box) -> Tail:
        """The expansion times an exact number or a function within a range."""
        by = Coefficient(factor) if isinstance(factor, tuple) else exactly(factor)
        return self._made({m: c.times(by) for m, c in self.terms.items()})

    def number(self, value: Expr | Box) -> Tail:
        """A constant, or a bounded function, as an expansion on the same half line."""
        by = Coefficient(value) if isinstance(value, tuple) else exactly(value)
        return self._made({CONSTANT: by})

    def shifted(self, value: Expr) -> Tail:
        """The expansion plus an exact number."""
        return self.plus(self.number(value))

    @property
    def ordered(self) -> list[tuple[Monomial, Coefficient]]:
        """The terms, the dominating one first."""
        return [(m, self.terms[m]) for m in sorted(self.terms, key=_DOMINANCE)]

    def leading(self) -> tuple[Monomial, Coefficient, Tail]:
        """(m, c, r) with the expansion equal to c m (1 + r), where r vanishes at infinity.

        Raises   NotEnclosed when there is no term, or c may be 0.
        """
        if not self.terms:
            raise NotEnclosed("it is zero")
        (monomial, coefficient), *others = self.ordered
        coefficient.sign  # noqa: B018  # refuses a coefficient that may vanish
        inverse = Coefficient(_reciprocal(coefficient.box))
        if coefficient.exact is not None:
            inverse = exactly(1 / coefficient.exact)
        under = monomial.raised(Integer(-1))
        rest = {m.times(under): c.times(inverse) for m, c in others}
        return monomial, coefficient, self._made(rest)

    def range(self) -> Box:
        """A range that holds all values for t >= start, infinite where the expansion grows.

        Raises   NotEnclosed when a term need not be monotone from the start on.
        """
        total: Box = (0.0, 0.0)
        for monomial, coefficient in self.terms.items():
            if monomial.trend > 0:
                reach: Box = (1.0 / monomial.raised(Integer(-1)).highest(self.start), math.inf)
                total = added(total, multiplied(coefficient.box, reach))
            elif monomial.trend == 0:
                total = added(total, coefficient.box)
            else:
                reach = (0.0, monomial.highest(self.start))
                total = added(total, multiplied(coefficient.box, reach))
        return total

    def integral(self, start: float) -> Box:
        """A range of its integral from `start` to any larger t, at least the start of the tail.

        Raises   NotEnclosed when a term need not be monotone from there on.
        """
        total: Box = (0.0, 0.0)
        grows = False
        for monomial, coefficient in self.terms.items():
            if monomial.trend < 0:
                reach: Box = (0.0, monomial.integral(start))
                total = added(total, multiplied(coefficient.box, reach))
            else:
                grows = True
        if grows:  # the sign of the integrand is that of the leading term
            return (0.0, math.inf) if self.sign() > 0 else (-math.inf, 0.0)
        return hull(total, (0.0, 0.0))

    def sign(self) -> int:
        """The sign of every value for t >= start; 0 when the expansion is zero.

        Raises   NotEnclosed when the sign is not settled there.
        """
        if not self.terms:
            return 0
        _, coefficient, rest = self.leading()
        if rest.range()[0] <= -1.0:
            raise NotEnclosed("the remainder may outweigh the leading term")
        return coefficient.sign

    def limit(self) -> Box:
        """The limit as a range: a point where it exists, infinite where the expansion grows."""
        total: Box = (0.0, 0.0)
        growing = [(m, c) for m, c in self.ordered if m.trend > 0]
        if growing:
            end = growing[0][1].sign * math.inf
            return end, end
        if CONSTANT in self.terms:
            total = self.terms[CONSTANT].box
        return total

    def exact_limit(self) -> Expr | None:
        """The limit as an exact number; None when it is infinite or only a range is known."""
        if any(m.trend > 0 for m in self.terms):
            return None
        return self.terms[CONSTANT].exact if CONSTANT in self.terms else _ZERO

    def raised(self, exponent: Expr) -> Tail:
        """The expansion to a constant power; its values must be positive unless that is whole.

        (1 + r)**s = 1 + s r + s(s-1)/2 r**2 + s(s-1)(s-2)/6 r**3 (1 + xi)**(s-3), xi between 0, r.
        """
        s = exponent
        if s.is_Integer and 0 <= s <= 8:
            result = self.number(Integer(1))
            for _ in range(int(s)):
                result = result.times(self)
            return result
        monomial, coefficient, r = self.leading()
        if coefficient.sign < 0 and not s.is_Integer:
            raise NotEnclosed("a real power of a negative number")
        head = self._power_of(coefficient, s)
        front = self._made({monomial.raised(s): head})
        if not r.terms:
            return front
        low, high = _one_plus(r)
        between = hull(*[_power_box(end, s - 3) for end in (low, high, 1.0)])
        square = r.times(r)
        last = square.times(r).scaled(s * (s - 1) * (s - 2) / 6).scaled(between)
        series = r.scaled(s).plus(square.scaled(s * (s - 1) / 2)).plus(last)
        return front.times(series.shifted(Integer(1)))

    def log(self) -> Tail:
        """The logarithm of an expansion with positive values; see `raised` for the remainder."""
        monomial, coefficient, r = self.leading()
        if coefficient.sign < 0 or monomial.logs != 0:
            raise NotEnclosed("a logarithm without an expansion")
        terms = {Monomial(linear=-c): exactly(-w) for c, w in monomial.towers}
        for value, key in (
            (-monomial.square, Monomial(power=Integer(2))),
            (-monomial.linear, Monomial(power=Integer(1))),
            (monomial.power, Monomial(logs=Integer(1))),
        ):
            terms[key] = exactly(value)
        if coefficient.exact is not None:
            terms[CONSTANT] = exactly(sympy.log(coefficient.exact))
        else:
            low, high = (math.log(end) for end in coefficient.box)
            terms[CONSTANT] = Coefficient((math.nextafter(low, -9e9), math.nextafter(high, 9e9)))
        head = self._made(terms)
        if not r.terms:
            return head
        low, high = _one_plus(r)
        between = hull(*[_power_box(end, Integer(-3)) for end in (low, high, 1.0)])
        square = r.times(r)
        last = square.times(r).scaled(Rational(1, 3)).scaled(between)
        return head.plus(r).plus(square.scaled(Rational(-1, 2))).plus(last)

    def exp(self) -> Tail:
        """The exponential: growing terms must be exact and of degree at most 2, or exp(c t)."""
        front = CONSTANT
        head = Coefficient(_ONE, Integer(1))
        small: dict[Monomial, Coefficient] = {}
        for monomial, coefficient in self.terms.items():
            if monomial.trend < 0:
                small[monomial] = coefficient
            elif monomial.trend == 0:
                head = _exponential(coefficient)
            elif coefficient.exact is None:
                raise NotEnclosed("an exponential of a term that is not exact")
            else:
                front = front.times(_exponent(monomial, coefficient.exact))
        front_tail = self._made({front: head})
        if not small:
            return front_tail
        d = self._made(small)
        low, high = d.range()
        between = hull(_ONE, (_exp(low, -1), _exp(high, 1)))
        square = d.times(d)
        series = d.plus(square.scaled(Rational(1, 2)))
        series = series.plus(square.times(d).scaled(Rational(1, 6)).scaled(between))
        return front_tail.times(series.shifted(Integer(1)))

    def _power_of(self, coefficient: Coefficient, s: Expr) -> Coefficient:
        if coefficient.exact is not None:
            return exactly(coefficient.exact**s)
        ends = [_power_box(end, s) for end in coefficient.box]
        return Coefficient(hull(*ends))

    def _made(self, terms: Mapping[Monomial, Coefficient]) -> Tail:
        """The expansion without zeros; beyond ten terms, the least are folded into a range."""
        kept = {m: c for m, c in terms.items() if c.exact is None or c.exact != 0}
        made = Tail(self.start, kept)
        if len(kept) <= _MOST_TERMS:
            return made
        order = made.ordered
        (last, coefficient), *tiny = order[_MOST_TERMS - 1 :]
        box = coefficient.box
        for monomial, part in tiny:
            ratio = monomial.times(last.raised(Integer(-1))).highest(self.start)
            box = added(box, multiplied(part.box, (0.0, ratio)))
        return Tail(self.start, {**dict(order[: _MOST_TERMS - 1]), last: Coefficient(box)})


def _number(value: Expr) -> Any:
    """An exact number with the working precision of mpmath."""
    if value.is_Rational:
        return mpmath.mpf(int(value.p)) / int(value.q)
    return sympy.N(value, 30)._to_mpmath(_BITS)


def _compared(a: Monomial, b: Monomial) -> int:
    return -a.times(b.raised(Integer(-1))).trend


_DOMINANCE = cmp_to_key(_compared)


def _exponent(monomial: Monomial, c: Expr) -> Monomial:
    """The monomial that exp(c m) is, for the few m that have one."""
    if monomial == Monomial(power=Integer(1)):
        return Monomial(linear=-c)
    if monomial == Monomial(power=Integer(2)):
        return Monomial(square=-c)
    if monomial == Monomial(logs=Integer(1)):
        return Monomial(power=c)
    if monomial.linear < 0 and monomial == Monomial(linear=monomial.linear):
        return Monomial(towers=((-monomial.linear, -c),))
    raise NotEnclosed("an exponential of a term of another kind")


def _exponential(coefficient: Coefficient) -> Coefficient:
    if coefficient.exact is not None:
        return exactly(sympy.exp(coefficient.exact))
    low, high = coefficient.box
    return Coefficient((_exp(low, -1), _exp(high, 1)))


def _exp(value: float, direction: int) -> float:
    with mpmath.workprec(_BITS):
        result: Any = mpmath.exp(max(value, -1e6)) * (1 + direction * mpmath.mpf(2) ** -50)
        return float(result) if result < 1e308 else math.inf


def _one_plus(r: Tail) -> Box:
    low, high = added(r.range(), _ONE)
    if not low > 0.0:
        raise NotEnclosed("the remainder is not small enough")
    return low, high


def _reciprocal(box: Box) -> Box:
    return math.nextafter(1.0 / box[1], -math.inf), math.nextafter(1.0 / box[0], math.inf)


def _power_box(value: float, exponent: Expr) -> Box:
    with mpmath.workprec(_BITS):
        result = mpmath.power(value, _number(exponent))
        if not mpmath.isfinite(result) or not isinstance(result, mpmath.mpf):
            raise NotEnclosed("a power without a range")
        slack = abs(result) * mpmath.mpf(2) ** -50
        return float(result - slack), float(result + slack)


_HALF = Rational(1, 2)
_ROOT = Symbol("t", positive=True)


def expansion(formula: Expr, side: int, start: float) -> Tail:
    """The formula in x on all of x >= start (side 1) or x <= -start (side -1), in t = |x|.

    start    above 1
    Raises   NotEnclosed when a part has no expansion that is valid from `start` on.
    Checked  tests/unit/activations/test_certificate_intervals.py
    """
    line = Tail(start, {})
    moved = line.plus(
        Tail(start, {Monomial(power=Integer(1)): line.number(Integer(side)).terms[CONSTANT]})
    )
    return _expanded(formula, moved, {})


def _expanded(formula: Expr, x: Tail, known: dict[Expr, Tail]) -> Tail:
    if formula not in known:
        known[formula] = _new(formula, x, known)
    return known[formula]


def _new(formula: Expr, x: Tail, known: dict[Expr, Tail]) -> Tail:
    if formula == X:
        return x
    if not formula.free_symbols:
        return x.number(formula)
    if formula.is_Add or formula.is_Mul:
        first, *others = [_expanded(part, x, known) for part in formula.args]
        for part in others:
            first = first.plus(part) if formula.is_Add else first.times(part)
        return first
    if formula.is_Pow:
        if formula.exp.free_symbols:
            raise NotEnclosed("a variable exponent")
        return _expanded(formula.base, x, known).raised(formula.exp)
    if len(formula.args) != 1:
        raise NotEnclosed(f"{type(formula).__name__} has no expansion")
    return applied_far(type(formula), _expanded(formula.args[0], x, known))


def applied_far(kind: Any, u: Tail) -> Tail:
    """A function of one argument, of an expansion.

    Raises   NotEnclosed when no expansion is known.
    """
    if kind in (named.absolute, sympy.Abs):
        return u.scaled(Integer(u.sign()))
    if kind in (named.signum, sympy.sign):
        return u.number(Integer(u.sign()))
    growing = bool(u.terms) and u.ordered[0][0].trend > 0
    if not growing:
        return _near_a_limit(kind, u)
    if kind in (sympy.sin, sympy.cos):
        return u.number((-1.0, 1.0))
    if kind in _FAR:
        return _FAR[kind](u, u.sign())
    if isinstance(kind, type) and issubclass(kind, Primitive):
        defined = kind.definition(X)
        if not defined.has(kind):
            return _expanded(defined, u, {})
    raise NotEnclosed(f"{getattr(kind, '__name__', kind)} has no expansion")


def _near_a_limit(kind: Any, u: Tail) -> Tail:
    """F(c + d) = F(c) + F'(c) d + F''(xi) d**2/2, where d vanishes."""
    constant = u.terms.get(CONSTANT)
    rest = Tail(u.start, {m: c for m, c in u.terms.items() if m != CONSTANT})
    if constant is not None and constant.exact is None:
        return u.number(function_range(kind)(u.range()))
    at = Integer(0) if constant is None or constant.exact is None else constant.exact
    function = kind(X)
    value = elementary(function).subs(X, at)
    if not rest.terms:
        return u.number(value)
    low, high = hull(u.range(), u.number(at).range())
    slope = sympy.diff(function, X)
    bend = Enclosure(sympy.diff(slope, X) / 2)(low, high)
    linear = rest.scaled(elementary(slope).subs(X, at))
    return linear.plus(rest.times(rest).scaled(bend)).shifted(value)


def _mirrored(u: Tail) -> Tail:
    return u.scaled(Integer(-1))


def _logistic(u: Tail, sign: int) -> Tail:
    small = u.scaled(Integer(-sign)).exp()
    share = small.shifted(Integer(1)).raised(Integer(-1))
    return share if sign > 0 else small.times(share)


def _softplus(u: Tail, sign: int) -> Tail:
    folded = u.scaled(Integer(-sign)).exp().shifted(Integer(1)).log()
    return u.plus(folded) if sign > 0 else folded


def _normal_pdf(u: Tail, _: int) -> Tail:
    return u.times(u).scaled(-_HALF).exp().scaled(1 / sympy.sqrt(2 * sympy.pi))


def _normal_cdf(u: Tail, sign: int) -> Tail:
    """The lower tail at -v is pdf(v) (1/v - 1/v**3 + theta 3/v**5), theta in [0, 1]."""
    inverse = u.scaled(Integer(sign)).raised(Integer(-1))
    cube = inverse.times(inverse).times(inverse)
    ratio = inverse.plus(_mirrored(cube)).plus(
        cube.times(inverse).times(inverse).scaled((0.0, 3.0))
    )
    lower = _normal_pdf(u, sign).times(ratio)
    return lower if sign < 0 else _mirrored(lower).shifted(Integer(1))


def _atan(u: Tail, sign: int) -> Tail:
    """pi/2 - (v - v**3/3 + theta v**5/5) for v = 1/u > 0, theta in [0, 1]; odd."""
    inverse = u.scaled(Integer(sign)).raised(Integer(-1))
    cube = inverse.times(inverse).times(inverse)
    fifth = cube.times(inverse).times(inverse).scaled((0.0, 0.2000001))
    angle = inverse.plus(cube.scaled(Rational(-1, 3))).plus(fifth)
    return _mirrored(angle).shifted(sympy.pi / 2).scaled(Integer(sign))


def _tanh(u: Tail, sign: int) -> Tail:
    twice = u.scaled(Integer(2))
    return _logistic(twice, sign).scaled(Integer(2)).shifted(Integer(-1))


def _erf(u: Tail, sign: int) -> Tail:
    return _normal_cdf(u.scaled(sympy.sqrt(2)), sign).scaled(Integer(2)).shifted(Integer(-1))


def _erfc(u: Tail, sign: int) -> Tail:
    return _normal_cdf(u.scaled(-sympy.sqrt(2)), -sign).scaled(Integer(2))


def _cauchy_cdf(u: Tail, sign: int) -> Tail:
    return _atan(u, sign).scaled(1 / sympy.pi).shifted(_HALF)


def _cauchy_pdf(u: Tail, _: int) -> Tail:
    return u.times(u).shifted(Integer(1)).raised(Integer(-1)).scaled(1 / sympy.pi)


def _exponentials(u: Tail, other: int) -> Tail:
    return u.exp().plus(_mirrored(u).exp().scaled(Integer(other))).scaled(_HALF)


def _asinh(u: Tail, sign: int) -> Tail:
    size = u.scaled(Integer(sign))
    root = size.times(size).shifted(Integer(1)).raised(_HALF)
    return size.plus(root).log().scaled(Integer(sign))


def _positive_log(u: Tail, sign: int) -> Tail:
    if sign < 0:
        raise NotEnclosed("a logarithm of a negative number")
    return u.log()


def _softplus_integral(u: Tail, sign: int) -> Tail:
    """v - v**2/4 + theta v**3/9 for v = exp(u) < 1, theta in [0, 1]; F(u) + F(-u) is known."""
    small = u.scaled(Integer(-sign)).exp()
    square = small.times(small)
    total = small.plus(square.scaled(Rational(-1, 4)))
    total = total.plus(square.times(small).scaled((0.0, 0.1111112)))
    if sign < 0:
        return total
    return _mirrored(total).plus(u.times(u).scaled(_HALF)).shifted(sympy.pi**2 / 6)


def _logistic_moment(u: Tail, sign: int) -> Tail:
    return u.times(_softplus(u, sign)).plus(_mirrored(_softplus_integral(u, sign)))


def _gompertz_integral(u: Tail, sign: int) -> Tail:
    """E1(z) for z = exp(-u).

    Right   u - gamma + z - z**2/4 + theta z**3/18, z < 1, theta in [0, 1]
    Left    exp(-z)/z (1 - 1/z + theta 2/z**2)
    """
    z = _mirrored(u).exp()
    if sign > 0:
        return u.plus(_gompertz_upper_integral(u, sign)).shifted(-sympy.EulerGamma)
    inverse = z.raised(Integer(-1))
    square = inverse.times(inverse)
    series = _mirrored(inverse).plus(square.scaled((0.0, 2.0))).shifted(Integer(1))
    return _mirrored(z).exp().times(inverse).times(series)


def _gompertz_upper_integral(u: Tail, sign: int) -> Tail:
    if sign < 0:
        return _gompertz_integral(u, sign).plus(_mirrored(u)).shifted(sympy.EulerGamma)
    z = _mirrored(u).exp()
    square = z.times(z)
    series = z.plus(square.scaled(Rational(-1, 4)))
    return series.plus(square.times(z).scaled((0.0, 0.0555556)))


def _log_cosh(u: Tail, sign: int) -> Tail:
    folded = u.scaled(Integer(-2 * sign)).exp().shifted(Integer(1)).log()
    return u.scaled(Integer(sign)).plus(folded).shifted(-sympy.log(2))


_FAR: Mapping[Any, Callable[[Tail, int], Tail]] = {
    sympy.exp: lambda u, _: u.exp(),
    sympy.log: _positive_log,
    sympy.sinh: lambda u, _: _exponentials(u, -1),
    sympy.cosh: lambda u, _: _exponentials(u, 1),
    sympy.tanh: _tanh,
    sympy.atan: _atan,
    sympy.asinh: _asinh,
    sympy.erf: _erf,
    sympy.erfc: _erfc,
    named.expm1: lambda u, _: u.exp().shifted(Integer(-1)),
    named.phi2: lambda u, _: u.exp().shifted(Integer(-1)).plus(_mirrored(u)),
    named.log1p: lambda u, sign: _positive_log(u.shifted(Integer(1)), sign),
    named.softplus: _softplus,
    named.logistic: _logistic,
    named.logistic_odd: lambda u, sign: _logistic(u, sign).shifted(-_HALF),
    named.normal_pdf: _normal_pdf,
    named.normal_cdf: _normal_cdf,
    named.normal_odd: lambda u, sign: _normal_cdf(u, sign).shifted(-_HALF),
    named.cauchy_pdf: _cauchy_pdf,
    named.cauchy_cdf: _cauchy_cdf,
    named.cauchy_odd: lambda u, sign: _cauchy_cdf(u, sign).shifted(-_HALF),
    named.cauchy_slope: lambda u, sign: _cauchy_cdf(u, sign).plus(u.times(_cauchy_pdf(u, sign))),
    special.softplus_integral: _softplus_integral,
    special.logistic_moment: _logistic_moment,
    special.gompertz_integral: _gompertz_integral,
    special.gompertz_upper_integral: _gompertz_upper_integral,
    special.log_cosh: _log_cosh,
    named.gompertz: lambda u, _: _mirrored(_mirrored(u).exp()).exp(),
    named.gompertz_pdf: lambda u, _: _mirrored(u.plus(_mirrored(u).exp())).exp(),
}
