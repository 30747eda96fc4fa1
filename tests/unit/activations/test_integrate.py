"""Finding antiderivatives: what is recognised, what becomes a table, and what is refused."""

from __future__ import annotations

import subprocess
from typing import Any

import mpmath
import pytest
import sympy
from sympy import Expr

from stamm.activations.derivation import integrate
from stamm.activations.derivation import integrate as search
from stamm.activations.derivation.formulas import number, to_sympy
from stamm.activations.derivation.integrate import (
    ROWS,
    SearchStoppedError,
    U,
    antiderivative,
    searched,
)
from stamm.activations.derivation.parametric import ParametricIntegral
from stamm.activations.derivation.primitives import X, logistic, softplus
from stamm.activations.derivation.special import (
    gompertz_integral,
    log_cosh,
    logistic_moment,
    mish_gate_integral,
    softplus_integral,
)
from stamm.activations.derivation.tables import TabulatedIntegral
from stamm.activations.spec.expressions import parse
from stamm.base.errors import ConfigError

VALUES = {"a": 0.7, "b": 0.3, "c": 1.3, "p": 1.5, "alpha": 0.8}
SYMBOLS = {name: sympy.Symbol(name, real=True) for name in VALUES}
A, B = SYMBOLS["a"], SYMBOLS["b"]


def _formula(text: str) -> Expr:
    return to_sympy(parse(text), SYMBOLS)


def _found(text: str, *, half_line: bool = False, fixed: dict[str, float] | None = None) -> Expr:
    points = [0.3, 1.7, 6.0] if half_line else [-7.0, -0.4, 0.3, 5.0]
    return antiderivative(
        _formula(text),
        [{**VALUES, X.name: x} for x in points],
        piece="all x",
        where="spec 'test'",
        ends=(sympy.S.Zero if half_line else -sympy.oo, sympy.oo),
        fixed=fixed,
    )


@pytest.fixture
def without_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrate, "searched", lambda gradient, seconds: None)


@pytest.mark.parametrize(("formula", "integral"), ROWS, ids=lambda f: str(f))
def test_every_row_of_the_library_is_an_antiderivative(formula: Expr, integral: Expr) -> None:
    slope = sympy.diff(integral, U)
    with mpmath.workdps(40):
        for u in (0.25, 0.5, 2.0) if formula == sympy.log(U) else (-0.75, -0.25, 0.5, 2.0):
            assert abs(number(slope, {"u": u}) - number(formula, {"u": u})) < 1e-35


@pytest.mark.usefixtures("without_search")
@pytest.mark.parametrize(
    ("gradient", "expected"),
    [
        ("softplus(a*x + b)", softplus_integral(A * X + B) / A),
        ("log(1 + exp(x))", softplus_integral(X)),
        ("1/(1 + exp(-x))", softplus(X)),
        ("x*logistic(x)", logistic_moment(X)),
        ("logistic(x)**2", softplus(X) - logistic(X)),
        ("alpha*gompertz(x)", SYMBOLS["alpha"] * gompertz_integral(X)),
        ("tanh(a*x)", log_cosh(A * X) / A),
        ("tanh(softplus(x))", mish_gate_integral(X)),
        (
            "tanh(softplus(x)) + x*(1 - tanh(softplus(x))**2)*logistic(x)",
            X * sympy.tanh(softplus(X)),
        ),
    ],
)
def test_what_sympy_cannot_is_recognised(gradient: str, expected: Expr) -> None:
    assert sympy.expand(_found(gradient) - expected) == 0


@pytest.mark.usefixtures("without_search")
@pytest.mark.parametrize(
    "gradient",
    [
        "2*alpha*x + b",
        "alpha*(exp(x/c) - 1) + b",
        "x*normal_cdf(x)",
        "x*erf(a*x)",
        "erfc(x)",
        "cauchy_cdf(x)",
        "gompertz(x) + x*gompertz_pdf(x)",
        "1 + sin(2*a*x)",
        "x*cos(a*x) + x**2*exp(-x)",
        "(1 + x/sqrt(1 + x**2))/2",
        "sqrt(1 + 4*x**2)",
        "x/(1 + abs(x)) + 1/(1 + abs(x))**2",
        "x*logistic(x)**2",
        "x*logistic(a*x + b)",
        "tanh(x)**2",
        "log(1 + x**2)",
        "expm1(x)",
        "sinh(a*x)",
    ],
)
def test_closed_forms_need_no_table(gradient: str) -> None:
    found = _found(gradient)  # its slope has been compared with the gradient to 30 digits
    assert not found.has(TabulatedIntegral)


@pytest.mark.parametrize("gradient", ["log1p(x)", "x/(1 + x)", "x**p", "sqrt(x)", "1/(1 + x)"])
def test_closed_forms_on_a_half_line(gradient: str) -> None:
    assert not _found(gradient, half_line=True).has(TabulatedIntegral)


def test_sympy_is_asked_before_a_table_is_made() -> None:
    assert not _found("sin(x)**2 + 1/(1 + x + x**2)").has(TabulatedIntegral)


@pytest.mark.usefixtures("without_search")
def test_parameters_enter_tables_as_factors_and_scales() -> None:
    found = _found("alpha*softplus(a*x)**2 + b*x*logistic(x)")
    (table,) = (type(t) for t in found.atoms(TabulatedIntegral))
    expected = SYMBOLS["alpha"] * table(A * X) / A + B * logistic_moment(X)
    assert sympy.expand(found - expected) == 0
    assert table.gradient == softplus(X) ** 2


@pytest.mark.usefixtures("without_search")
def test_a_shape_parameter_makes_a_table_in_each_call_unless_it_is_fixed() -> None:
    found = _found("logistic(x)**p")
    assert isinstance(found, ParametricIntegral)
    assert sympy.diff(found, X) == _formula("logistic(x)**p")
    assert isinstance(sympy.diff(found, SYMBOLS["p"]), ParametricIntegral)
    assert _found("logistic(x)**p", fixed={"p": 1.5}).has(TabulatedIntegral)


@pytest.mark.parametrize("gradient", ["sin(x)/(1 + x**2)", "1/(2 + cos(x))"])
def test_what_approaches_no_polynomial_is_refused(gradient: str) -> None:
    wanted = r"no antiderivative of piece 'all x' could be found: .* approaches no polynomial"
    with pytest.raises(ConfigError, match=wanted):
        _found(gradient)


@pytest.mark.timeout(60)  # without a limit it takes minutes
def test_a_search_ends_when_its_time_is_up() -> None:
    with pytest.raises(SearchStoppedError, match=r"after 0\.2 s of CPU time"):
        searched(_formula("exp(-x**4)*atan(x)*erf(x)*sin(x)"), 0.2)


@pytest.mark.timeout(60)
def test_a_search_that_was_stopped_is_told_from_one_that_found_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(integrate, "_SECONDS", 0.2)
    with pytest.raises(ConfigError) as caught:
        _found("exp(x**4)*atan(x)*erf(x)*sin(x)")
    assert "SymPy was stopped after 0.2 s of CPU time in search of the integral of" in str(
        caught.value
    )
    assert "WHERE: GRADIENT | INTEGRAL" in str(caught.value)


def test_the_time_of_a_search_does_not_depend_on_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def limited(*arguments: Any, timeout: float, **options: Any) -> Any:
        limits.append(timeout)
        return run(*arguments, **options)

    run = subprocess.run
    monkeypatch.setattr(search.subprocess, "run", limited)
    search._outcome.cache_clear()
    assert not _found("1/(1 + x**2)**2").has(TabulatedIntegral)
    assert limits and all(limit > 20 * integrate._SECONDS for limit in limits)


def test_what_a_search_finds_is_real_and_computable() -> None:
    assert searched(_formula("sin(x)**2"), 60.0) == X / 2 - sympy.sin(X) * sympy.cos(X) / 2
    assert searched(_formula("exp(-x)/x"), 60.0) is None  # an exponential integral has no kernel
