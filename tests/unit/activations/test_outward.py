"""Trained scales inside gradients: every finite input within the budgets, and true far out."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import pytest
import sympy
import torch
from sympy import Symbol

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.conformance.implementations import StammImplementation
from stamm.activations.conformance.judge import judge
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.formulas import Branch, end_value, number
from stamm.activations.derivation.large_argument_forms import (
    by_inverse_powers,
    outer_form,
    outward_branches,
    scale_beside_x,
)
from stamm.activations.derivation.primitives import (
    X,
    expm1,
    logistic,
    logistic_odd,
    normal_odd,
    phi2,
    softplus,
)
from stamm.activations.derivation.stable_forms import FARTHEST, machine_value
from stamm.activations.spec import Spec
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.base.errors import ConfigError
from tests.unit.activations.truths import parameter_truth, truth

A = Symbol("a", positive=True)
GRADIENTS = [
    "tanh(a*x)",
    "log(1 + exp(a*x))",
    "atan(a*x)",
    "exp(-a*x**2)",
    "1/(1 + a*x**2)",
    "x/sqrt(1 + a*x**2)",
    "log(1 + a*x**2)",
    "x*tanh(a*x)",
    "x*logistic(a*x)",
]


@pytest.mark.parametrize("a", [1.0, 1.7])
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_trained_scale_is_within_the_budgets_on_every_finite_input(
    gradient: str, a: float
) -> None:
    assert [p for of in judge(scaled(gradient), StammImplementation(), {"a": a}, count=20000).dtypes
            for p in of.problems] == []  # fmt: skip


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_the_float64_kernel_is_right_far_out(gradient: str) -> None:
    # The judge compares with the float64 kernel, so this one is held against 120 digits.
    spec, a = scaled(gradient), 1.7
    derived, kernel = derive(spec), kernel_of(spec)
    points = [sign * size for size in (0.9, 3.0, 40.0, 700.0, 1e5, 1e15, 1e30) for sign in (-1, 1)]
    x, parameters = torch.tensor(points, dtype=torch.float64), (torch.tensor(a).double(),)
    values = {"a": parameters[0].item()}
    slope, by_a = kernel.slopes(x, parameters)
    for found, true in (
        (kernel.value(x, parameters), truth(derived, "function", points, values)),
        (slope, truth(derived, "slope", points, values)),
        (by_a, parameter_truth(derived, "a", points, values)),
    ):
        assert found.tolist() == pytest.approx([float(v) for v in true], rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_no_slope_of_a_trained_scale_is_nan_where_squares_overflow(gradient: str) -> None:
    spec = scaled(gradient)
    x = torch.tensor([-1e30, -1e19, 1e19, 1e30], dtype=torch.float32)
    for a in (1.0, 1.7):
        second = kernel_of(spec).curvatures(x, (torch.tensor(a),))[:2]
        assert not any(torch.isnan(row).any() for row in second)


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize(
    "formula",
    [
        sympy.tanh(A * X) ** 2,
        X * softplus(A * X) - logistic(-A * X),
        sympy.atan(A * X) + sympy.log(2) * sympy.erf(A * X),
        X**3 / (1 + A * X**2) ** sympy.Rational(3, 2),
        X**2 * logistic_odd(A * X) + phi2(-A * X) - normal_odd(X) * expm1(-A * X),
    ],
)
def test_outer_forms_are_the_same_functions(formula: sympy.Expr, side: int) -> None:
    with mpmath.workdps(60):
        for size, vanished in ((1.5, False), (2000.0, True)):
            at = {"x": mpmath.mpf(side * size), "a": mpmath.mpf(1.3)}
            outer = outer_form(formula, side, vanished=vanished)
            assert outer != formula
            true = number(formula, at)
            assert abs(number(outer, at) - true) <= mpmath.mpf(10) ** -50 * abs(true)


ROOT = sympy.sqrt(2)


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize(
    "formula",
    [
        (1 - X) * (X + 1) / (X**2 + 1) ** 2,
        X**3 / (1 + A * X**4),
        (3 * X**3 + 5 * X) / (8 * X**4 + 16 * X**2 + 8) + 3 * sympy.atan(X) / 8,
        sympy.log(X**2 + ROOT * X + 1) - sympy.log(X**2 - ROOT * X + 1),
        X**2 / (2 + X**2) * sympy.log(3 * X**4 + 1) + sympy.tanh(X),
    ],
)
def test_quotients_in_inverse_powers_are_the_same_functions(formula: sympy.Expr, side: int) -> None:
    far = by_inverse_powers(formula, side)
    with mpmath.workdps(60):
        for size in (1000, mpmath.mpf(10) ** 9):
            at = {"x": mpmath.mpf(side * size), "a": mpmath.mpf(1.3)}
            true = number(formula, at)
            assert abs(number(far, at) - true) <= mpmath.mpf(10) ** -45 * abs(true)
    assert math.isfinite(machine_value(far, {"x": side * FARTHEST, "a": 1.3}))


@pytest.mark.parametrize(
    "gradient",
    [
        "x/(1 + x**2)",
        "2*x/(1 + x**2)**2",
        "x**2/(1 + x**2)",
        "1/(1 + x**4)",
        "a*x/(2 + x**2)",
    ],
)
def test_quotients_of_polynomials_are_finite_and_right_far_out(gradient: str) -> None:
    spec = replace(scaled(gradient), parameters=scaled("a*x").parameters if "a" in gradient else ())
    derived, values = derive(spec), spec.initial_values()
    rows = (derived.stable.function, derived.stable.slope, derived.stable.curvature)
    for exact, stable in zip(("function", "slope"), rows, strict=False):
        for x in (-1e30, -1001.0, -3.0, 3.0, 1001.0, 1e30):
            home = next(b for b in stable if x <= end_value(b.high, values))
            true = truth(derived, exact, [x], values)[0]
            found = machine_value(home.formula, {**values, "x": x})
            assert found == pytest.approx(float(true), rel=1e-13), (exact, x)
    for row in rows:
        for x in (-FARTHEST, -1e30, 1e30, FARTHEST):
            home = next(b for b in row if x <= end_value(b.high, values))
            assert not math.isnan(machine_value(home.formula, {**values, "x": x}))


@pytest.mark.parametrize(
    ("formula", "fix"),
    [
        (sympy.exp(X) / (1 + sympy.exp(X)), r"logistic\(x\) or tanh\(x\) instead of exp\(x\)"),
        (X**2 / sympy.sqrt(1 + X**4), "Write it in 1/x"),
    ],
)
def test_what_has_no_form_far_out_is_refused_with_what_to_do(formula: sympy.Expr, fix: str) -> None:
    whole = Branch(
        low=-sympy.oo, low_closed=False, high=sympy.oo, high_closed=False, formula=formula
    )
    with pytest.raises(ConfigError, match=f"no form of .* survives x = .*{fix}"):
        outward_branches([whole], [{}])


@pytest.mark.parametrize(
    ("formula", "scale"),
    [
        (sympy.tanh(2 * A * X) + softplus(-A * X), A),
        (sympy.exp(-A * X**2), sympy.sqrt(A)),
        (1 / (1 + A**2 * X**2), A),
        (sympy.tanh(X) * A, None),
        (sympy.tanh(A * X) + sympy.exp(-A * X**2), 1 / (1 / A + 1 / sympy.sqrt(A))),
        (softplus(A * (X - Symbol("k", real=True))), A),
        (softplus(X) - softplus(X - A), sympy.S.One),
        (softplus(X) - softplus(X - 2), None),
        (sympy.tanh(A * X**3), None),
        (sympy.tanh(Symbol("b", real=True) * X), sympy.Abs(Symbol("b", real=True))),
    ],
)
def test_the_scale_beside_x(formula: sympy.Expr, scale: sympy.Expr | None) -> None:
    assert scale_beside_x(formula) == scale


def scaled(gradient: str) -> Spec:
    return spec_from_arguments([f"all x: {gradient}"], ["a=1:softplus"], name="scaled")
