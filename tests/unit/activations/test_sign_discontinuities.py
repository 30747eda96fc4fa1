"""sign(u) in gradients and in given integrals: f is continuous where u changes its sign."""

from __future__ import annotations

from collections.abc import Mapping

import mpmath
import pytest
from sympy import Expr

from stamm.activations.derivation.ansatz import (
    jump_at_sign_change,
    without_sign_jumps,
)
from stamm.activations.derivation.derive import exact_formulas
from stamm.activations.derivation.formulas import Branches, end_value, number
from stamm.activations.derivation.primitives import X, absolute, signum
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.base.errors import ConfigError

INPUTS = (-6.0, -2.2, -1.1, -0.9, -0.3, 0.2, 0.8, 0.95, 1.1, 1.6, 2.4, 5.0)
FOLDS = (-1.0, -0.7, 0.0, 0.5, 0.7, 1.0, 1 / 0.7)
PARAMETER = ("a=0.7:identity",)


def _value(branches: Branches, values: Mapping[str, float], x: float) -> mpmath.mpf:
    home = next(b for b in branches if x <= end_value(b.high, values))
    return number(home.formula, {**values, X.name: mpmath.mpf(x)})


def _between(x: float) -> list[float]:
    """0, the folds on the way, and x."""
    return sorted({0.0, x, *(f for f in FOLDS if min(0.0, x) < f < max(0.0, x))}, reverse=x < 0)


@pytest.mark.parametrize(
    "gradient",
    [
        "(x - 1)*sign(x - 1)",
        "sign(x - 1)",
        "sign(x)*exp(x)",
        "sign(x)*sin(x)",
        "sign(x)*expm1(x)",
        "x**2*sign(x - 1)",
        "sign(x - 1)*sign(x + 1)",
        "sign(x)**2*exp(x)",
        "abs(2*x - 1)*exp(x)",
        "2*abs(x) | x**2*sign(x)",
    ],
)
def test_the_function_is_the_integral_across_the_fold(gradient: str) -> None:
    found = exact_formulas(spec_from_arguments([f"all x: {gradient}"], continuity="jump"))
    for x in INPUTS:
        true = mpmath.quad(lambda t: _value(found.slope, {}, t), _between(x))
        assert abs(_value(found.function, {}, x) - true) < 1e-13 * (1 + abs(true)), x


@pytest.mark.parametrize(
    "gradient", ["sign(x - a)", "x*sign(a*x - 1)", "sign(x - a)*exp(x)", "sign(x - a)*sign(x + a)"]
)
def test_parameter_gradients_of_a_moving_fold(gradient: str) -> None:
    spec = spec_from_arguments([gradient], PARAMETER, continuity="jump")
    found, values = exact_formulas(spec), spec.initial_values()
    for x in INPUTS:
        true = mpmath.quad(lambda t: _value(found.slope, values, t), _between(x))
        assert abs(_value(found.function, values, x) - true) < 1e-13 * (1 + abs(true)), x
        step = 1e-6
        low, high = (_value(found.function, {"a": 0.7 + s}, x) for s in (-step, step))
        slope = _value(found.parameter_slopes[0], values, x)
        assert abs(slope - (high - low) / (2 * step)) < 1e-5, x


@pytest.mark.parametrize(
    ("pieces", "where"),
    [
        (["all x: 2.5 | 2.5*x + 3*sign(x)"], "it jumps at x = 0.0, where its values are -3.0"),
        (["all x: 2.5 | 2.5*x + sign(x - 2)**2"], "it jumps at x = 2.0"),
        (["x > 0: exp(x) | sign(x)*exp(x)", "x <= 0: 1"], "'x > 0' is wrong: it jumps at x = 0.0"),
        (["all x: 2.5 | 2.5*x + sign(x**2 - 1)"], r"where sign\(x\*\*2 - 1\) changes"),
    ],
)
def test_a_given_integral_that_jumps_is_refused(pieces: list[str], where: str) -> None:
    with pytest.raises(ConfigError, match=where):
        exact_formulas(spec_from_arguments(pieces))


def test_a_fold_outside_its_piece_is_no_jump() -> None:
    spec = spec_from_arguments(["x > 1: 2 | 2*x + sign(x)", "x <= 1: 2"])
    assert _value(exact_formulas(spec).function, {}, 3.0) == 6


def test_signs_of_numbers_are_numbers() -> None:
    (branch,) = exact_formulas(spec_from_arguments(["sign(x - 1)"], continuity="jump")).function
    assert branch.formula == X * signum(X - 1) - signum(X - 1) - 1


def test_an_absolute_value_without_an_integral_is_refused() -> None:
    with pytest.raises(ConfigError, match="no antiderivative of piece 'all x' could be found"):
        exact_formulas(spec_from_arguments(["abs(sin(x))"]))


@pytest.mark.parametrize(
    "found", [X * signum(X**2 - 1), X * signum(X) * signum(2 * X)], ids=["curved", "twice"]
)
def test_jumps_that_cannot_be_removed(found: Expr) -> None:
    assert without_sign_jumps(found) is None


def test_a_formula_without_a_sign_stays_as_it_is() -> None:
    found = absolute(X) * X + 2 * X
    assert without_sign_jumps(found) is found
    assert jump_at_sign_change(found, {}, -9.0, 9.0) == ""
