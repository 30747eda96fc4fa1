"""Numerical proof that a spec is an affine map of another: gradients to 30 digits, one value.

Two functions whose gradients agree differ by a constant, and by constants between jumps; so the
gradients are compared at many points, and the functions at one point between any two jumps. Both
are taken from the specs as stated, independently of the derivation.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath
from sympy import Expr, Symbol

from stamm.activations.derivation.formulas import number, to_sympy
from stamm.activations.derivation.primitives import X, absolute, signum
from stamm.activations.spec import Spec
from stamm.activations.spec.expressions import parse

DIGITS = 30
_WORKING = 50
_NEAR = 1e-7  # a number this near to a short fraction is tried as that fraction
_DENOMINATOR = 1000
_STEP = mpmath.mpf(10) ** -20
_MOST_STEPS = 7
_MEANT = 1e-5  # knots this near are the same knot before refinement
# Irregular places on both sides, denser near 0, none of which is a likely knot.
_PLACES = tuple(
    sign * (mpmath.mpf(k) ** 2 * 37 + 11 * k + 3) / 1217 for k in range(20) for sign in (1, -1)
)

Numbers = Sequence[Any]


@dataclass(frozen=True)
class Symbolic:
    """A spec's stated gradient as SymPy expressions: (low, high, formula) from left to right.

    kinks   where the argument of a sign or an absolute value is 0, if it is linear in x
    """

    pieces: tuple[tuple[Expr | None, Expr | None, Expr], ...]
    kinks: tuple[Expr, ...]
    anchor: tuple[Expr, Expr]
    jumps: tuple[tuple[Expr, Expr], ...]


@lru_cache(maxsize=128)
def symbolic(spec: Spec) -> Symbolic:
    """The stated gradient of a spec, ready to be valued at any precision."""
    symbols = {p.name: Symbol(p.name, real=True) for p in spec.parameters}

    def read(text: str) -> Expr:
        return to_sympy(parse(text), symbols)

    pieces = [
        (
            None if ends.low is None else read(ends.low),
            None if ends.high is None else read(ends.high),
            read(piece.formula),
        )
        for piece, ends in zip(spec.pieces, spec.intervals, strict=True)
    ]
    values = spec.initial_values()
    pieces.sort(key=lambda p: -mpmath.inf if p[0] is None else number(p[0], values))
    return Symbolic(
        pieces=tuple(pieces),
        kinks=tuple(dict.fromkeys(kink for _, _, formula in pieces for kink in _kinks(formula))),
        anchor=(read(spec.anchor[0]), read(spec.anchor[1])),
        jumps=tuple((read(jump.at), read(jump.by)) for jump in spec.jumps),
    )


def _kinks(formula: Expr) -> list[Expr]:
    arguments = [call.args[0] for call in formula.atoms(signum, absolute)]
    lines = [(a.subs(X, 0), a.diff(X)) for a in arguments if not a.diff(X).has(X)]
    return sorted((-height / slope for height, slope in lines if slope != 0), key=str)


def _real(expression: Expr, values: Mapping[str, Any]) -> Any:
    """As `number`. Raises ArithmeticError where it is not real, as log(-1): a trial left the domain."""
    try:
        value = number(expression, values)
    except TypeError:  # mpmath does not compare complex numbers
        value = mpmath.mpc(0, 1)
    if value.imag:
        raise ArithmeticError(f"{expression} is not real here")
    return value.real


@dataclass(frozen=True)
class Exact:
    """A spec at given parameter values, to the working precision."""

    spec: Spec
    values: Mapping[str, Any]

    def knots(self) -> list[Any]:
        """The knots: where one piece ends and the next begins, or a sign changes inside one."""
        stated = symbolic(self.spec)
        ends = [*(high for _, high, _ in stated.pieces), *stated.kinks]
        return [_real(end, self.values) for end in ends if end is not None]

    def slope(self, x: Any) -> Any:
        """f'(x); at a knot that of the piece on its left."""
        pieces = symbolic(self.spec).pieces
        for _, high, formula in pieces[:-1]:
            if high is not None and x <= _real(high, self.values):
                return _real(formula, {**self.values, X.name: x})
        return _real(pieces[-1][2], {**self.values, X.name: x})

    def function(self, x: Any) -> Any:
        """f(x), by quadrature from the anchor, with the jumps on the way."""
        stated = symbolic(self.spec)
        start, height = (_real(part, self.values) for part in stated.anchor)
        if x == start:
            return height
        low, high = min(x, start), max(x, start)
        inner = sorted(knot for knot in self.knots() if low < knot < high)
        total = mpmath.quad(self.slope, [low, *inner, high])
        for at, by in stated.jumps:
            if low < _real(at, self.values) < high:
                total += _real(by, self.values)
        return height + (total if x > start else -total)


def exactly(spec: Spec, values: Mapping[str, float]) -> Exact:
    """A spec at the decimal numbers that its parameter values are written as: 0.1 is one tenth."""
    with mpmath.workdps(_WORKING):
        return Exact(spec, {name: mpmath.mpf(repr(value)) for name, value in values.items()})


@dataclass(frozen=True)
class AffineClaim:
    """new(x) = c*known(a x + b; parameters) + d x + e, to be proved; numbers are (a, b, c, d, *p).

    free   which of the numbers were fitted; the others are exact as given
    """

    new: Exact
    known: Spec
    free: tuple[bool, ...]

    def old(self, numbers: Numbers) -> Exact:
        """The known function at the parameter values among the numbers."""
        names = [p.name for p in self.known.parameters]
        return Exact(self.known, dict(zip(names, numbers[4:], strict=True)))

    def gap(self, x: Any, numbers: Numbers) -> Any:
        """The difference of the gradients."""
        a, b, c, d = numbers[:4]
        return self.new.slope(x) - c * a * self.old(numbers).slope(a * x + b) - d


def prove(claim: AffineClaim, numbers: Sequence[float]) -> tuple[list[Any], Any] | None:
    """The exact numbers (a, b, c, d, *p) and e of a claim that holds, or None.

    First the fitted numbers are read as short fractions; where that does not hold they are refined
    by Newton's method, and read again. What is returned passed at every point, to 30 digits.
    """
    with mpmath.workdps(_WORKING):
        start = [mpmath.mpf(value) for value in numbers]
        read = _read(start, claim.free, _NEAR)
        constant = _holds(claim, read)
        if constant is not None:
            return read, constant
        try:
            fine = _refined(claim, start)
        except (ArithmeticError, ValueError):
            return None
        for candidate in (_read(fine, claim.free, 1e-25), fine):
            constant = _holds(claim, candidate)
            if constant is not None:
                return candidate, constant
    return None


def _read(numbers: Numbers, free: Sequence[bool], tolerance: float) -> list[Any]:
    """Each free number as a short fraction where it is near enough to one."""
    done = []
    for value, fitted in zip(numbers, free, strict=True):
        near = Fraction(float(value)).limit_denominator(_DENOMINATOR)
        short = mpmath.mpf(near.numerator) / near.denominator
        close = abs(short - value) <= tolerance * max(1, abs(value))
        done.append(short if fitted and close else value)
    return done


def _holds(claim: AffineClaim, numbers: Numbers) -> Any:
    """The constant e when the claim holds, else None."""
    limit = mpmath.mpf(10) ** -DIGITS
    try:
        knots = _knots(claim, numbers)
        for x in _points(knots):
            stated = claim.new.slope(x)
            if abs(claim.gap(x, numbers)) > limit * (1 + abs(stated)):
                return None
        return _constant(claim, numbers, knots)
    except (ArithmeticError, ValueError):
        return None


def _constant(claim: AffineClaim, numbers: Numbers, knots: Sequence[Any]) -> Any:
    a, b, c, d = numbers[:4]
    old = claim.old(numbers)

    def rest(x: Any) -> Any:
        return claim.new.function(x) - c * old.function(a * x + b) - d * x

    origin = number(symbolic(claim.new.spec).anchor[0], claim.new.values)
    constant = rest(origin)
    if abs(constant) < mpmath.mpf(10) ** -DIGITS:
        constant = mpmath.mpf(0)
    if claim.new.spec.jumps or claim.known.jumps:
        ends = [knots[0] - 1, *knots, knots[-1] + 1]
        for low, high in itertools.pairwise(ends):
            if abs(rest((low + high) / 2) - constant) > mpmath.mpf(10) ** (5 - DIGITS):
                return None
    return constant


def _knots(claim: AffineClaim, numbers: Numbers) -> list[Any]:
    """The knots of both sides, from left to right, each once."""
    a, b = numbers[:2]
    knots = claim.new.knots() + [(knot - b) / a for knot in claim.old(numbers).knots()]
    done: list[Any] = []
    for knot in sorted(knots):
        if not done or knot - done[-1] > mpmath.mpf(10) ** -DIGITS:
            done.append(knot)
    return done


def _points(knots: Sequence[Any]) -> list[Any]:
    """Where gradients are compared: everywhere, on both sides of each knot, and between any two.

    Two knots that should be equal and differ leave an interval between them, which is tested.
    """
    beside = [knot + by for knot in knots for by in (-0.3, -1e-3, -1e-9, 1e-9, 1e-3, 0.3)]
    between = [(low + high) / 2 for low, high in itertools.pairwise(knots)]
    return [x for x in (*_PLACES, *beside, *between) if x not in knots]


def _misplaced(claim: AffineClaim, numbers: Numbers) -> list[Any]:
    """Distance of each knot of the new function from the matching knot of the known one."""
    a, b = numbers[:2]
    mapped = [(knot - b) / a for knot in claim.old(numbers).knots()]
    gaps = [min((old - knot for old in mapped), key=abs) for knot in claim.new.knots() if mapped]
    return [gap for gap in gaps if abs(gap) < _MEANT]


def _refined(claim: AffineClaim, start: Numbers) -> list[Any]:
    """The free numbers by Newton's method on gradients and knots, slightly damped.

    The damping keeps numbers that can replace one another where they are.
    """
    numbers = list(start)
    places = [i for i, fitted in enumerate(claim.free) if fitted]
    knots = _knots(claim, numbers)
    spread = [x for x in _PLACES if abs(x) < 5]
    beside = [knot + by for knot in knots for by in (-0.3, -0.01, 0.01, 0.3)]
    thin = spread[:: max(1, len(spread) // (2 * len(places) + 8))]
    points = [x for x in (*thin, *beside) if all(abs(x - knot) > 1e-3 for knot in knots)]

    def gaps(trial: Numbers) -> list[Any]:
        return [claim.gap(x, trial) for x in points] + _misplaced(claim, trial)

    for _ in range(_MOST_STEPS):
        here = gaps(numbers)
        size = max(abs(gap) for gap in here)
        if size < mpmath.mpf(10) ** -(DIGITS + 8):
            break
        jacobian = mpmath.matrix(len(here), len(places))
        for column, i in enumerate(places):
            moved = [value + _STEP * (j == i) for j, value in enumerate(numbers)]
            for row, (after, before) in enumerate(zip(gaps(moved), here, strict=True)):
                jacobian[row, column] = (after - before) / _STEP
        normal = jacobian.T * jacobian
        trace = max(abs(normal[k, k]) for k in range(len(places)))
        for k in range(len(places)):
            normal[k, k] += trace * mpmath.mpf(10) ** -22
        if not all(map(mpmath.isfinite, [*normal, *here])):
            raise ArithmeticError("the gradients have no finite difference here")
        move = mpmath.lu_solve(normal, -(jacobian.T * mpmath.matrix(here)))
        for column, i in enumerate(places):
            numbers[i] += move[column]
    return numbers
