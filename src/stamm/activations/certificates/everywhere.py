"""Claims that hold for every parameter value its constraint allows, not for the given ones alone."""

from __future__ import annotations

import itertools
from typing import Any

import mpmath
import sympy
from sympy import Expr

from stamm.activations.certificates.curve import LONGEST, value_at, vanishes
from stamm.activations.derivation.formulas import Branch, Branches, Derived
from stamm.activations.derivation.primitives import X
from stamm.activations.derivation.symbolic import elementary, number

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
    facts += _linear_odd_part(derived)
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


def _linear_odd_part(derived: Derived) -> list[tuple[str, str]]:
    """f(x) - f(-x) = 2 c x, when f is one formula or meets another at 0 alone."""
    function = derived.exact.function
    if any(left.high != 0 for left in function[:-1]):
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
