"""What is proved at one value of a parameter and would be claimed for all: windows, knots, kernels."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import mpmath
import pytest
import sympy
import torch
from sympy import Symbol

from stamm.activations import Piece, Spec, build_activation, cache
from stamm.activations.cache import is_judged, record_judged
from stamm.activations.codegen.kernel import kernel_source
from stamm.activations.conformance import acceptance as reachable
from stamm.activations.conformance.acceptance import (
    check_formulas,
    quadrature_problem,
    reachable_values,
)
from stamm.activations.conformance.reference import settled
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.formulas import Branch, refused_in_one_line
from stamm.activations.derivation.near_zero import input_scale, singularities_stay
from stamm.activations.derivation.primitives import X, absolute, logistic, normal_pdf, softplus
from stamm.activations.derivation.stable_forms import with_tails
from stamm.activations.module.activation import _report_unjudged
from stamm.activations.spec.parameters import Identity, Parameter, Softplus
from stamm.base.errors import ConfigError, DataError

A, B = Symbol("a", positive=True), Symbol("b", real=True)
_K = Parameter(name="k", initial=0.75, bijection=Identity())
_A = Parameter(name="a", initial=0.5, bijection=Softplus())


def _spec(*pieces: str, parameters: tuple[Parameter, ...] = (), **more: str) -> Spec:
    stated = tuple(Piece(where=w, formula=f) for w, f in (p.split(": ") for p in pieces))
    return Spec(name="moved", title="", source="", pieces=stated, parameters=parameters, **more)  # type: ignore[arg-type]


def _value(spec: Spec, x: float, *parameters: float) -> float:
    module = ModuleType("moved")
    exec(kernel_source(derive(spec)), module.__dict__)
    given = tuple(torch.tensor(p, dtype=torch.float64) for p in parameters)
    value: float = module.value(torch.tensor([x], dtype=torch.float64), given).item()
    return value


def _whole(formula: sympy.Expr) -> Branch:
    ends = {"low": -sympy.oo, "low_closed": False, "high": sympy.oo, "high_closed": False}
    return Branch(**ends, formula=formula)


@pytest.mark.parametrize("k", [0.75, 0.2, 3.0, -0.3, -40.0, 1000.0])
def test_a_kink_that_moves_stays_right_everywhere(k: float) -> None:
    # A window around 0 that was proved at k = 0.75 was 5.2 % off at k = 0.2, x = 0.45.
    spec = _spec("all x: abs(x - k)", parameters=(_K,))
    for x in (-1e-9, 1e-9, 0.1, 0.45, 0.5, -0.45, 2.0, -50.0, 50.0):
        true = mpmath.quad(lambda t: abs(t - k), sorted([0, x]) if not 0 < k / x < 1 else [0, k, x])
        true = abs(true) if x > 0 else -abs(true)
        assert _value(spec, x, k) == pytest.approx(float(true), rel=1e-12)


@pytest.mark.parametrize("k", [0.5, -2.0])
def test_a_knot_may_cross_the_anchor(k: float) -> None:
    parameters = (Parameter(name="k", initial=0.5, bijection=Identity()),)
    spec = _spec("x > k: 1", "x <= k: 0", parameters=parameters, continuity="jump")
    for x in (-3.0, -1.0, 1e-12, 0.7, 5.0):
        assert _value(spec, x, k) == pytest.approx(max(x - k, 0) - max(-k, 0), rel=1e-14)


@pytest.mark.parametrize("a", [0.5, 100.0, 300.0])
def test_a_window_shrinks_with_a_power(a: float) -> None:
    spec = _spec("x > 0: (1 + x)**a", "x <= 0: 1", parameters=(_A,))
    for x in (1e-6, 0.003, 0.01, 0.2):
        true = ((1 + mpmath.mpf(x)) ** (a + 1) - 1) / (mpmath.mpf(a) + 1)
        assert _value(spec, x, a) == pytest.approx(float(true), rel=2e-13 * (1 + a))


@pytest.mark.parametrize(
    ("formula", "stays"),
    [
        (logistic(A * X + B), True),  # singular off the line only
        (absolute(A * X), True),  # the kink is where the quadrature begins
        (absolute(X - B) * X, False),
        (sympy.log(X + B), False),
        (normal_pdf(X + B), False),  # changes by any factor far out
        (sympy.atan(X + B), True),
        (sympy.exp(X) * (1 + X) ** A, True),
        (softplus(logistic(A * X + B)), False),
    ],
)
def test_no_parameter_moves_a_singularity_into_a_window(formula: sympy.Expr, stays: bool) -> None:
    assert singularities_stay(formula, sympy.S.Half) is stays


def test_a_trained_exponent_is_part_of_the_scale() -> None:
    assert input_scale((1 + X) ** (A + 2)) == 1 + A


def test_settings_cover_ends_and_kinks() -> None:
    settings = reachable_values(_spec("all x: abs(x - k)", parameters=(_K,)))
    values = sorted(setting["k"] for setting in settings)
    assert values[0] == -32 and values[-1] == 32 and {-1.0, 0.0, 1.0} <= set(values)
    for kink in (-0.45, 0.45, -0.012, 0.012):
        assert any(v == pytest.approx(kink, rel=1e-9) for v in values)
    ends = [v["a"] for v in reachable_values(_spec("all x: tanh(a*x)", parameters=(_A,)))]
    assert min(ends) == 1 / 32 and max(ends) == 32


def test_a_function_that_is_not_the_integral_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, other = _spec("all x: 1 + tanh(x)"), _spec("all x: tanh(x)")
    assert quadrature_problem(spec, {}) == ""
    wrong = derive(other).exact
    monkeypatch.setattr(reachable, "exact_formulas", lambda of: wrong)
    assert "the integral of the gradient from the anchor is" in quadrature_problem(spec, {})


def test_a_parameter_that_makes_a_divisor_0_is_refused() -> None:
    free = Parameter(name="a", initial=0.5, bijection=Identity())
    spec = _spec("x > 0: (1 + x)**a", "x <= 0: 1", parameters=(free,))
    with pytest.raises(DataError, match=r"has no value at x = .* at a = -1.*hold a positive"):
        check_formulas(spec)


@pytest.mark.parametrize(
    ("stated", "kept"),
    [
        (1 + sympy.tanh(X), 2 * logistic(2 * X)),
        (1 - sympy.tanh(X) ** 2, 4 * logistic(2 * X) * logistic(-2 * X)),
        (sympy.tanh(X), sympy.tanh(X)),  # loses nothing
    ],
)
def test_a_tail_keeps_its_digits(stated: sympy.Expr, kept: sympy.Expr) -> None:
    formula = with_tails(_whole(stated), [{}]).formula
    assert sympy.simplify(formula - kept) == 0


def test_a_value_below_every_format_is_0() -> None:
    (value,) = settled((_whole(1 + sympy.tanh(X)),), [-1e4], {})
    assert value == 0


def test_an_internal_exception_ends_in_one_line() -> None:
    with pytest.raises(ConfigError) as caught, refused_in_one_line(_spec("all x: 1"), "integrated"):
        raise RecursionError("maximum depth\nexceeded")
    assert "\n" not in caught.value.line() and "'all x: 1' cannot be integrated" in str(
        caught.value
    )
    assert isinstance(caught.value.__cause__, RecursionError)


def test_a_module_from_a_spec_keeps_its_tail_and_says_that_it_is_not_judged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "_JUDGED", set())
    _report_unjudged.cache_clear()
    spec = _spec("all x: 1 + tanh(x)")
    module, x = build_activation(spec), torch.tensor([-12.0], dtype=torch.bfloat16)
    x.requires_grad_()
    module(x).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and x.grad.item() == pytest.approx(7.55e-11, rel=4e-3)
    assert "is not judged" in capsys.readouterr().err
    record_judged(spec.content_hash)
    assert is_judged(spec.content_hash)
