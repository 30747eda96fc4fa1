"""Algebraic identities: homogeneity, odd and even parts, and what kind of formula f is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import sympy
from sympy import Expr

from stamm.activations.certificates.curve import CertifiedCurve, vanishes
from stamm.activations.certificates.intervals import Enclosure, NotEnclosed
from stamm.activations.certificates.rounding import nearest, power, shown, times
from stamm.activations.derivation.formulas import Branch, bounds
from stamm.activations.derivation.primitives import X
from stamm.activations.derivation.stable_forms import sample_points
from stamm.activations.derivation.symbolic import elementary, number

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
    if not values:  # below everything that mpmath can tell from 0
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
    found = _identity(
        curve,
        f"f(x) - f(-x) = {times(float(2 * slope), 'x')}",
        lambda right, left: right - left - 2 * exact * X,
    )
    if found["holds"]:
        found["slope"] = nearest(float(slope))
        found["claim"] += f": E f' = {shown(float(slope))} under every symmetric input"
    else:
        found["claim"] = "the odd part of f is not a line"
    return found


def _identity(
    curve: CertifiedCurve, claim: str, zero: Callable[[Expr, Expr], Expr]
) -> dict[str, Any]:
    """Whether an expression in f(x) and f(-x) is 0 for all x > 0.

    Refuted by one point at which 40 digits differ; proved by simplification.
    """
    knots = sorted({abs(knot) for knot in curve.knots} | {sympy.S.Zero})
    places = [(a + b) / 2 for a, b in itertools.pairwise(knots)] + [knots[-1] + 1]
    proved = True
    for place in places:
        right, left = _sides(curve, place)
        difference = zero(elementary(right), elementary(left).subs(X, -X))
        inner = [place, *(_at_least(knots[-1], p) for p in _POINTS if place == places[-1])]
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


def _sides(curve: CertifiedCurve, place: Expr) -> tuple[Expr, Expr]:
    """The formulas of f around x = place and x = -place."""
    found = []
    for x in (place, -place):
        position = sum(1 for knot in curve.knots if knot < x)
        found.append(curve.pieces[0][position].formula)
    return found[0], found[1]


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
