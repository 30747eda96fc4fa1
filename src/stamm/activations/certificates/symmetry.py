"""Algebraic identities: homogeneity, odd and even parts, and what kind of formula f is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import sympy
from sympy import Expr

from stamm.activations.certificates.curve import LONGEST, CertifiedCurve, value_at, vanishes
from stamm.activations.certificates.intervals import Enclosure, NotEnclosed
from stamm.activations.certificates.rounding import nearest, power, shown, times
from stamm.activations.derivation.formulas import (
    Branch,
    Branches,
    Derived,
    bounds,
    elementary,
    number,
)
from stamm.activations.derivation.primitives import X
from stamm.activations.derivation.stable_forms import sample_points

_POINTS = ("0.137", "0.731", "1.9", "3.3", "7.7")


def homogeneity(curve: CertifiedCurve) -> dict[str, Any]:
    """Whether f(c x) = c**d f(x) for all c > 0, by Euler's identity x f' = d f on each piece."""
    degrees: set[Any] = set()
    for piece in curve.pieces[0]:
        if piece.formula != 0:
            degrees.add(_degree(piece))
    if sympy.nan in degrees:
        claim = "f is positively homogeneous, as far as numbers tell"
        return {"claim": claim, "status": "measured", "degree": None}
    if None in degrees or len(degrees) != 1 or _turns(curve):
        return {"claim": "f is not positively homogeneous", "status": "proved", "degree": None}
    degree = nearest(float(degrees.pop()))
    return {
        "claim": f"f(c x) = {power('c', degree)} f(x) for all c > 0",
        "status": "proved",
        "degree": degree,
    }


def _turns(curve: CertifiedCurve) -> bool:
    """Whether two pieces that meet elsewhere than at 0 are different formulas."""
    formulas = [piece.formula for piece in curve.pieces[0]]
    return any(
        knot != 0 and not vanishes(sympy.expand(right - left))
        for knot, (left, right) in zip(curve.knots, itertools.pairwise(formulas), strict=True)
    )


def _degree(piece: Branch) -> Expr | None:
    """d with x f' = d f on the piece; None where x f'/f takes two values; nan: not simplified."""
    ratio = X * sympy.diff(piece.formula, X) / piece.formula
    with mpmath.workdps(40):
        points = [{X.name: point} for point in sample_points(*bounds(piece, {}))]
        inside = [point for point in points if number(piece.formula, point) != 0][:3]
        values = [number(ratio, point) for point in inside]
    if not values:  # below every number that mpmath distinguishes from 0
        return sympy.nan
    if max(values) - min(values) > mpmath.mpf(10) ** -20:
        return None
    degree = sympy.simplify(elementary(ratio))
    return sympy.nan if degree.free_symbols else degree


def parity(curve: CertifiedCurve) -> dict[str, dict[str, Any]]:
    """odd, even, and the linear odd part f(x) - f(-x) = 2 c x, each with its proof or refutation.

    A gate with G(x) + G(-x) = 1 makes f = x G(x) a line plus an even function: c = 1/2.
    """
    return {
        "odd": _identity(curve, "f(-x) = -f(x)", lambda right, left: right + left),
        "even": _identity(curve, "f(-x) = f(x)", lambda right, left: right - left),
        "linear_odd_part": _linear_odd_part(curve),
    }


def _linear_odd_part(curve: CertifiedCurve) -> dict[str, Any]:
    right, left = _sides(curve, sympy.Integer(1))
    half = elementary((right - left.subs(X, -X)) / 2)
    with mpmath.workdps(40):
        slope = number(half, {X.name: mpmath.mpf("1.9")}) / mpmath.mpf("1.9")
    exact = sympy.nsimplify(sympy.Float(slope, 30), rational=True, tolerance=1e-20)
    identity = _identity(
        curve,
        f"f(x) - f(-x) = {times(float(2 * slope), 'x')}",
        lambda right, left: right - left - 2 * exact * X,
    )
    if identity["holds"]:
        identity["slope"] = nearest(float(slope))
        identity["claim"] += f": E f' = {shown(float(slope))} under every symmetric input"
    else:
        identity["claim"] = "the odd part of f is not a line"
    return identity


def _identity(
    curve: CertifiedCurve, claim: str, zero: Callable[[Expr, Expr], Expr]
) -> dict[str, Any]:
    """Whether an expression in f(x) and f(-x) is 0 for all x > 0.

    Refuted by one point at which 40 digits differ; proved by simplification.
    """
    knots = sorted({abs(knot) for knot in curve.knots} | {sympy.S.Zero})
    places = [(a + b) / 2 for a, b in itertools.pairwise(knots)] + [knots[-1] + 1]
    proved = True
    for position in places:
        right, left = _sides(curve, position)
        difference = zero(elementary(right), elementary(left).subs(X, -X))
        inner = [position, *(_at_least(knots[-1], p) for p in _POINTS if position == places[-1])]
        with mpmath.workdps(40):
            for point in inner:
                at = {X.name: number(sympy.sympify(point), {})}
                scale = 1 + abs(number(right, at))
                if abs(number(difference, at)) > mpmath.mpf(10) ** -25 * scale:
                    why = f"it does not hold at x = {shown(float(point))}"
                    return {"claim": f"not {claim}", "status": "proved", "holds": False, "by": why}
        proved = proved and (difference == 0 or vanishes(difference.rewrite(sympy.exp)))
    status = "proved" if proved else "measured"
    return {"claim": f"{claim} for all x", "status": status, "holds": True}


def _at_least(knot: Expr, point: str) -> Expr:
    return knot + sympy.Rational(point)


def _sides(curve: CertifiedCurve, at: Expr) -> tuple[Expr, Expr]:
    """The formulas of f around x = `at` and x = -`at`."""
    formulas = []
    for x in (at, -at):
        position = sum(1 for knot in curve.knots if knot < x)
        formulas.append(curve.pieces[0][position].formula)
    return formulas[0], formulas[1]


def kind_of(curve: CertifiedCurve) -> dict[str, Any]:
    """The kind of formula f is: "linear", "polynomial", "analytic", or piecewise one of these."""
    formulas = [piece.formula for piece in curve.pieces[0]]
    if curve.folded:
        kind = "not classified: a formula holds |x| or sign(x)"
        return {"claim": f"f is {kind}", "status": "not proved", "kind": None}
    if not all(map(is_analytic, curve.smooth_parts())):
        reason = "a formula holds a power that need not be analytic"
        return {"claim": "kind of f", "status": "not proved", "kind": None, "reason": reason}
    degrees = [
        sympy.degree(formula, X) if formula != 0 and formula.is_polynomial(X) else -1
        for formula in formulas
    ]
    polynomial = all(formula.is_polynomial(X) for formula in formulas)
    kind = "analytic" if not polynomial else "linear" if max(degrees) <= 1 else "polynomial"
    name = kind if len(formulas) == 1 else f"piecewise {kind}"
    pieces = "" if len(formulas) == 1 else f", in {len(formulas)} pieces"
    return {"claim": f"f is {name}{pieces}", "status": "proved", "kind": name}


def is_analytic(formula: Expr) -> bool:
    """Whether every power in x has a whole exponent or a base that is positive on the line."""
    powers = [p for p in elementary(formula).atoms(sympy.Pow) if p.base.has(X)]
    return all(p.exp.is_Integer or _is_positive(p.base) for p in powers)


def _is_positive(base: Expr) -> bool:
    try:
        return bool(base.is_positive) or Enclosure(base)(-math.inf, math.inf)[0] > 0.0
    except NotEnclosed:
        return False


_NAMES = ("f", "f'", "f''")


def everywhere(derived: Derived) -> list[dict[str, Any]]:
    """Facts proved symbolically, parameters left as symbols; no fact is listed without a proof.

    Edge     empty for a spec without parameters, whose whole certificate holds unchanged.
    Checked  tests/unit/activations/test_certificate_shape.py
    """
    if not derived.spec.trainable:
        return []
    exact = derived.exact
    facts = [*_at_zero(exact.function, 0), *_at_zero(exact.slope, 1)]
    for order, branches in enumerate((exact.function, exact.slope, exact.curvature)):
        facts += _knots(branches, order)
    facts += _convexity(exact.function, exact.slope, exact.curvature)
    facts += _linear_odd_part_everywhere(derived)
    return [{"claim": claim, "status": "proved", "by": by} for claim, by in facts]


def _at_zero(branches: Branches, order: int) -> list[tuple[str, str]]:
    """The value at 0, where the same formula value follows from each piece that touches 0."""
    homes = [b for b in branches if _may_touch_zero(b)]
    if any(b.low.free_symbols or b.high.free_symbols for b in homes):
        return []
    values = {_short(value_at(b.formula, sympy.S.Zero)) for b in homes}
    if len(values) != 1:
        return []
    value = values.pop()
    if not value.is_finite:
        return []
    return [(f"{_NAMES[order]}(0) = {value}", "substitution")]


def _may_touch_zero(branch: Branch) -> bool:
    """Whether 0 may lie in the closed piece for some parameter value."""
    return not (branch.low.is_positive or branch.high.is_negative)


def _knots(branches: Branches, order: int) -> list[tuple[str, str]]:
    facts = []
    for left, right in itertools.pairwise(branches):
        height = _height(left, right)
        if height == 0:
            facts.append((f"{_NAMES[order]} has no jump at x = {left.high}", "simplification"))
        elif order == 2 and height.is_finite:
            facts.append((f"f'' jumps by {height} at x = {left.high}", "simplification"))
    return facts


def _height(left: Branch, right: Branch) -> Expr:
    below, above = value_at(left.formula, left.high, -1), value_at(right.formula, right.low, 1)
    return _short(above - below)


def _convexity(function: Branches, slope: Branches, curvature: Branches) -> list[tuple[str, str]]:
    """Convexity, where the sign of each piece of f'' follows from the signs of the parameters."""
    if not all(_height(a, b) == 0 for a, b in itertools.pairwise(function)):
        return []
    rises = all(_height(a, b).is_nonnegative for a, b in itertools.pairwise(slope))
    if rises and all(piece.formula.is_nonnegative for piece in curvature):
        return [("f is convex", "signs of the parameters")]
    return []


def _linear_odd_part_everywhere(derived: Derived) -> list[tuple[str, str]]:
    """f(x) - f(-x) = 2 c x, when f is one formula or meets another at 0 alone."""
    function = derived.exact.function
    if any(branch.high != 0 for branch in function[:-1]):
        return []
    right, left = elementary(function[-1].formula), elementary(function[0].formula)
    odd = right - left.subs(X, -X)
    if not _is_proportional(odd, derived):
        return []
    slope = _short(odd.subs(X, 1) / 2)
    if slope in (0, sympy.nan) or not vanishes(odd - 2 * slope * X):
        return []
    claim = f"f(x) - f(-x) = {sympy.simplify(2 * slope) * X}"
    return [(f"{claim}: E f' = {slope} under every symmetric input", "simplification")]


def _is_proportional(odd: Expr, derived: Derived) -> bool:
    """Whether a function of x is a multiple of x at sample values: worth a proof."""
    with mpmath.workdps(40):
        for values in derived.spec.sample_values():
            heights = [
                number(odd, {**values, X.name: mpmath.mpf(x)}) / mpmath.mpf(x)
                for x in ("0.4", "1.3", "3.7")
            ]
            if max(heights) - min(heights) > mpmath.mpf(10) ** -20:
                return False
    return True


def _short(value: Expr) -> Expr:
    """The value simplified; nan where it is too long for that."""
    return sympy.simplify(value) if int(sympy.count_ops(value)) <= LONGEST else sympy.nan
