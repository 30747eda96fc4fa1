"""Roots of k*x**2 + c that cancel against x, or against the root of c: every digit is kept."""

from __future__ import annotations

import mpmath
import pytest
import sympy
from sympy import Expr, Symbol

from stamm.activations.derivation.formulas import Branch, bounds, number
from stamm.activations.derivation.primitives import X
from stamm.activations.derivation.stable_forms import machine_value, rooted_branches

B = Symbol("b", positive=True)
ROOT, SCALED = sympy.sqrt(X**2 + B), sympy.sqrt(1 + X**2 / B**2)
FORMULAS = {
    "squareplus": (X + ROOT - sympy.sqrt(B)) / 2,
    "its slope": X / (2 * ROOT) + sympy.S.Half,
    "mirrored": sympy.S.Half - X / (2 * ROOT),
    "its slope in b": (1 / ROOT - 1 / sympy.sqrt(B)) / 4,
    "its integral": X * (X + ROOT) / 4 + B * sympy.asinh(X / sympy.sqrt(B)) / 4,
    "Charbonnier in the scale": 2 * B * (SCALED - 1) - X**2 / (B * SCALED),
}
SAMPLES = [{"b": 4.0}, {"b": 0.7}]
SETTINGS = [*SAMPLES, {"b": 1 / 32}, {"b": 32.0}]


def _whole(formula: Expr) -> Branch:
    return Branch(
        low=-sympy.oo, low_closed=False, high=sympy.oo, high_closed=False, formula=formula
    )


@pytest.mark.parametrize("name", FORMULAS)
def test_no_digit_is_lost_on_either_side(name: str) -> None:
    formula = FORMULAS[name]
    branches = rooted_branches([_whole(formula)], SAMPLES)
    assert len(branches) > 1
    for values in SETTINGS:
        for x in (s * 1.137 * 10.0**k for k in range(-9, 10, 2) for s in (-1, 1)):
            at = {**values, "x": x}
            (branch,) = (b for b in branches if bounds(b, values)[0] < x <= bounds(b, values)[1])
            with mpmath.workdps(80):
                true = number(formula, {key: mpmath.mpf(value) for key, value in at.items()})
                assert abs(machine_value(branch.formula, at) - true) <= 2.0**-47 * abs(true), at


def test_what_loses_nothing_stays_whole() -> None:
    for formula in (1 / ROOT, X + ROOT * ROOT, ROOT + sympy.sqrt(1 + X**2) - X, sympy.tanh(X)):
        assert rooted_branches([_whole(formula)], SAMPLES) == (_whole(formula),)
