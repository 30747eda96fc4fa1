"""Where sign(u) changes: an antiderivative is made continuous there, and one that is given is checked.

The derivative of sign(u) is taken to be 0, so that differentiating a formula does not show its jumps.
"""

from __future__ import annotations

from collections.abc import Mapping

import mpmath
import sympy
from sympy import Expr

from stamm.activations.derivation.primitives import X, absolute, signum
from stamm.activations.derivation.symbolic import number

_DIGITS = 140
_BESIDE = mpmath.mpf(10) ** -60  # how far from a sign change a formula is evaluated on both sides
_SAME = mpmath.mpf(10) ** -12  # largest difference of the values there, relative to 1 + |f|


def without_sign_jumps(found: Expr) -> Expr | None:
    """An antiderivative of a bounded gradient without its jumps where a linear u changes its sign.

    Half of each jump, times sign(u), is subtracted. A power of sign(u) is 1 or sign(u) first.

    Edge     None where a u is not linear, or two of them have the same root: those jumps stay.
    Checked  tests/unit/activations/test_sign_discontinuities.py
    """
    found = found.replace(_is_power_of_sign, lambda p: p.base if p.exp % 2 else sympy.S.One)
    roots: set[Expr] = set()
    for part in sorted(found.atoms(signum), key=sympy.default_sort_key):
        slope = sympy.diff(part.args[0], X)
        if slope == 0:
            continue
        if slope.has(X):
            return None
        root = sympy.cancel(-part.args[0].subs(X, 0) / slope)
        if root in roots:
            return None
        roots.add(root)
        above, below = (found.xreplace({part: side}) for side in (sympy.S.One, -sympy.S.One))
        half = _value((above - below) / 2, root)
        found = sympy.expand(found - half * part)
    return found


def jump_at_sign_change(
    function: Expr, values: Mapping[str, float], low: float, high: float
) -> str:
    """A jump of a formula where a linear u in sign(u) changes its sign, as text; "" without one.

    low, high   the ends of the piece: values there count, values beyond do not
    Edge        text for a u that is not linear as well: where it changes its sign is not known.
    Checked     tests/unit/activations/test_sign_discontinuities.py
    """
    for part in sorted(function.atoms(signum), key=sympy.default_sort_key):
        argument = part.args[0]
        slope = sympy.diff(argument, X)
        if slope == 0:
            continue
        if slope.has(X):
            return f"it may jump where sign({argument}) changes, which is not linear in x"
        with mpmath.workdps(_DIGITS):
            rise = number(slope, values)
            if rise == 0:
                continue
            root = -number(argument, {**values, X.name: mpmath.mpf(0)}) / rise
            found = _around(function, part, values, root, (low, high))
            if any(not abs(f - found[0]) <= _SAME * (1 + abs(found[0])) for f in found[1:]):
                shown = ", ".join(mpmath.nstr(f, 6) for f in found)
                return f"it jumps at x = {mpmath.nstr(root, 6)}, where its values are {shown}"
    return ""


def _around(
    function: Expr,
    part: Expr,
    values: Mapping[str, float],
    root: mpmath.mpf,
    ends: tuple[float, float],
) -> list[mpmath.mpf]:
    """The values just below a root, at it and just above it, as far as they are in the piece."""
    at_root = function.xreplace({part: sympy.S.Zero})
    places = [(function, root - _BESIDE), (at_root, root), (function, root + _BESIDE)]
    found = []
    for formula, x in places:
        if ends[0] <= x <= ends[1]:
            try:
                found.append(number(formula, {**values, X.name: x}))
            except (ArithmeticError, ValueError):
                found.append(mpmath.nan)
    return found


def _value(formula: Expr, point: Expr) -> Expr:
    """The formula at a point, with sign(u) and |u| of numbers evaluated."""

    def evaluated(part: Expr) -> Expr:
        found = part.definition(sympy.cancel(part.args[0]))
        return part if found.has(sympy.sign, sympy.Abs) else found

    return formula.subs(X, point).replace(
        lambda part: isinstance(part, (signum, absolute)), evaluated
    )


def _is_power_of_sign(part: Expr) -> bool:
    return bool(part.is_Pow) and isinstance(part.base, signum) and bool(part.exp.is_Integer)
