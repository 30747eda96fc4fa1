"""The straight line or power f approaches on each side, and how fast."""

from __future__ import annotations

from typing import Any

import mpmath
from sympy import Expr, Integer

from stamm.activations.certificates.curve import CertifiedCurve
from stamm.activations.certificates.rounding import nearest, power, shown, times
from stamm.activations.certificates.tails import CONSTANT, Coefficient, Monomial, Tail
from stamm.activations.derivation.primitives import X
from stamm.activations.derivation.symbolic import number

_LINE = Monomial(power=Integer(1))
_FAR = 2.0**20  # where a limit is measured that could not be proved
_SIDES = {-1: "left", 1: "right"}


def asymptote(curve: CertifiedCurve, side: int) -> dict[str, Any]:
    """The line slope x + intercept that f approaches on one side, if there is one.

    slope, intercept   numbers, with the exact expression beside them
    rate               what is left: "exact" (nothing), "gaussian", "exponential", "doubly
                       exponential" or "power", with its parameters
    status             "proved" by expansion; "measured" where there is none
    Checked            tests/unit/activations/test_certificate_shape.py
    """
    tail = curve.tail(0, side)
    if tail is None:
        return _measured(curve, side)
    where = f"far to the {_SIDES[side]}"
    growing = [m for m in tail.terms if m.trend > 0 and m != _LINE]
    line, constant = tail.terms.get(_LINE), tail.terms.get(CONSTANT)
    slope, intercept = _exact(line), _exact(constant)
    if growing or slope is None or intercept is None:
        return {"claim": f"f approaches no line {where}", "status": "proved", "slope": None}
    slope = side * slope
    rate = _rate(tail)
    return {
        "claim": f"f(x) approaches {_text(slope, intercept)} {where}, {rate['claim']}",
        "status": "proved",
        "slope": nearest(float(slope)),
        "intercept": nearest(float(intercept)),
        "exact": [str(slope), str(intercept)],
        "rate": rate,
    }


def _exact(coefficient: Coefficient | None) -> Expr | None:
    """The coefficient as an exact number, 0 for an absent term; None when only a range is known."""
    return Integer(0) if coefficient is None else coefficient.exact


def _text(slope: Expr, intercept: Expr) -> str:
    a, b = float(slope), float(intercept)
    if a == 0.0:
        return shown(b)
    line = times(a, "x")
    return line if b == 0.0 else f"{line} {'+' if b > 0 else '-'} {shown(abs(b))}"


def _rate(tail: Tail) -> dict[str, Any]:
    """The class of the largest term that vanishes, which f differs from its line by."""
    rest = [m for m, _ in tail.ordered if m.trend < 0]
    if not rest:
        return {"kind": "exact", "claim": "exactly"}
    m = rest[0]
    degree = nearest(float(m.power))
    front = power("|x|", degree) + " " if degree else ""
    if m.towers:
        rate = nearest(float(m.towers[0][0]))
        weight = nearest(float(m.towers[0][1]))
        tower = f"exp({times(rate, '|x|')})"
        claim = f"like exp(-{times(weight, tower)})"
        return {"kind": "doubly exponential", "claim": claim, "rate": rate, "weight": weight}
    if m.square != 0:
        rate = nearest(float(m.square))
        claim = f"like {front}exp(-{times(rate, 'x^2')})"
        return {"kind": "gaussian", "claim": claim, "rate": rate, "power": degree}
    if m.linear != 0:
        rate = nearest(float(m.linear))
        claim = f"like {front}exp(-{times(rate, '|x|')})"
        return {"kind": "exponential", "claim": claim, "rate": rate, "power": degree}
    logs = " and a logarithm" if m.logs != 0 else ""
    return {"kind": "power", "claim": f"like {power('|x|', degree)}{logs}", "power": degree}


def _measured(curve: CertifiedCurve, side: int) -> dict[str, Any]:
    """Slope and intercept from two far points, where no expansion is known."""
    formula = curve.cells[-1 if side > 0 else 0].formulas[0]
    with mpmath.workdps(60):
        near, far = (
            number(formula, {X.name: side * mpmath.mpf(reach)}) for reach in (_FAR, 2 * _FAR)
        )
        slope = (far - near) / (side * _FAR)
        intercept = far - slope * side * 2 * _FAR
        if not mpmath.isfinite(slope) or abs(intercept) > 1e-3 * abs(far) + 1e3:
            return {
                "claim": f"asymptote on the {_SIDES[side]}",
                "status": "not proved",
                "reason": "no expansion, and two far points show no line",
            }
        return {
            "claim": f"f lies near {times(float(slope), 'x')} + {shown(float(intercept))}"
            f" at |x| = {_FAR:g} and {2 * _FAR:g}",
            "status": "measured",
            "slope": nearest(float(slope)),
            "intercept": nearest(float(intercept)),
            "points": [side * _FAR, side * 2 * _FAR],
        }
