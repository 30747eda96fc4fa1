"""Tables: right to the last digits of float32 and float64, between cells, near 0 and far out."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import mpmath
import pytest
import sympy
import torch
from sympy import Expr
from torch import Tensor

from stamm.activations import primitives
from stamm.activations.codegen.kernel import kernel_source
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.derivation import integrate
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.formulas import Derived, number
from stamm.activations.derivation.primitives import X, gompertz, logistic, softplus
from stamm.activations.derivation.special import softplus_integral
from stamm.activations.derivation.tables import TabulatedIntegral, table_of, tables_of
from stamm.activations.module import build_activation
from stamm.activations.spec import Spec
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.base.errors import ConfigError
from tests.unit.activations.truths import apa_integral

_GATE = sympy.tanh(softplus(X))
SIX: dict[str, Expr] = {
    "x gompertz": X * gompertz(X),
    "x logistic squared": X * logistic(X) ** 2,
    "softplus squared": softplus(X) ** 2,
    "erf of softplus": sympy.erf(softplus(X)),
    "Mish gate": _GATE,
    "slope of Mish": _GATE + X * (1 - _GATE**2) * logistic(X),
}


def _as_torch(table: type[TabulatedIntegral]) -> primitives.Table:
    return primitives.Table(
        low=table.low,
        high=table.high,
        step=table.step,
        single=table.single,
        rows=table.rows,
        left=table.left,
        right=table.right,
    )


def _double(numbers: list[Any]) -> Tensor:
    return torch.tensor([float(number) for number in numbers], dtype=torch.float64)


def _spec(formula: str) -> Spec:
    return spec_from_arguments([f"all x: {formula}"], name="tabulated")


@pytest.fixture(scope="module")
def derived() -> Iterator[Derived]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integrate, "searched", lambda gradient, seconds: None)
        yield derive(_spec("x*gompertz(x)"))


@pytest.mark.parametrize("name", SIX)
def test_every_digit_of_both_dtypes_is_right(name: str) -> None:
    table = table_of(SIX[name])
    assert 0 < table.bound <= 2.0**-56 and table.single < len(table.rows[0]) - 1
    generator = torch.Generator().manual_seed(3)
    ends = table.low - 2, table.high + 2
    points = torch.rand(12, generator=generator) * (ends[1] - ends[0]) + ends[0]
    far = torch.tensor([*ends, table.low, table.high, 1e4, -3e6])
    points = torch.cat([points, far, points * 1e-3, points * 1e-6])
    for dtype, digits in ((torch.float64, 2.0**-50), (torch.float32, 2.0**-21)):
        found = primitives.tabulated(points.to(dtype), _as_torch(table)).tolist()
        with mpmath.workdps(30):
            for u, y in zip(points.tolist(), found, strict=True):
                exact = table.value(mpmath.mpf(u))
                slope = number(SIX[name], {"x": mpmath.mpf(u)})
                assert abs(y - exact) <= digits * (abs(exact) + abs(u * slope)) + 1e-18, u


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_that_vanishes_at_0_keeps_its_digits_down_to_subnormal_results(
    dtype: torch.dtype,
) -> None:
    # A cubic table had a relative error of 1.2e-3 for |x| <= 1e-3, where f is near 0.65 x**2.
    gradient = sympy.tanh(X + sympy.Rational(3, 10) * sympy.sin(X))
    limit = torch.finfo(dtype)
    lowest = math.frexp(limit.tiny * limit.eps)[1]
    points = [
        s * math.ldexp(0.8, e)
        for e in [*range(lowest // 2, 6, 23), *range(-12, 6)]
        for s in (-1, 1)
    ]
    found = primitives.tabulated(torch.tensor(points, dtype=dtype), _as_torch(table_of(gradient)))
    given = torch.tensor(points, dtype=dtype).tolist()
    with mpmath.workdps(25):
        for u, y in zip(given, found.tolist(), strict=True):
            # An integral of its own, on [0, u] scaled to [0, 1], of values near 1.
            true = (
                u
                * mpmath.mpf(u)
                * mpmath.quad(
                    lambda t, u=u: mpmath.tanh(u * t + mpmath.mpf(3) / 10 * mpmath.sin(u * t)) / u,
                    mpmath.linspace(0, 1, 1 + math.ceil(abs(u) / 4)),
                )
            )
            unit = max(abs(true) * limit.eps, limit.tiny * limit.eps)
            assert abs(y - true) <= 2 * unit, u


def test_the_truth_of_a_table_is_the_closed_form_where_there_is_one() -> None:
    table = table_of(softplus(X))
    with mpmath.workdps(60):
        constant = mpmath.pi**2 / 12
        for u in (-1e4, -50.0, -3.3, 0.0, 0.01, 7.0, 41.0, 1e4, 1e30):
            exact = softplus_integral.value(mpmath.mpf(u)) - constant
            assert abs(table.value(mpmath.mpf(u)) - exact) <= mpmath.mpf(10) ** -55 * (
                1 + abs(exact)
            )


def test_the_apa_gate_is_a_table() -> None:
    shape, scale = sympy.Rational(1, 2), sympy.Rational(5, 4)
    table = table_of((1 + shape * sympy.exp(-scale * X)) ** (-1 / shape))
    with mpmath.workdps(30):
        start = apa_integral(mpmath.mpf(0), 0.5)
        for u in (-6.0, -0.3, 2.0, 11.0):
            exact = (apa_integral(mpmath.mpf(u) * 5 / 4, 0.5) - start) * 4 / 5
            assert abs(table.value(mpmath.mpf(u)) - exact) < 1e-25


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_digits_are_kept_where_the_integral_vanishes(dtype: torch.dtype) -> None:
    table = table_of(softplus(X) ** 2)
    small = torch.tensor([-1e-4, -1e-20, 0.0, 1e-20, 1e-4], dtype=dtype)
    found = primitives.tabulated(small, _as_torch(table)).double()
    with mpmath.workdps(30):
        exact = _double([table.value(mpmath.mpf(u)) for u in small.tolist()])
    assert torch.allclose(found, exact, rtol=1e-6, atol=0.0)


def test_far_out_a_table_is_its_polynomial_and_nan_stays_nan() -> None:
    table = _as_torch(table_of(SIX["x gompertz"]))
    far = torch.tensor([-float("inf"), -1e30, 1e4, 1e30, float("inf"), float("nan")])
    found = primitives.tabulated(far, table)
    assert found[:2].tolist() == pytest.approx([table.left[0]] * 2)
    assert found[2].item() == pytest.approx(5e7) and torch.isinf(found[3:5]).all()
    assert torch.isnan(found).tolist() == [False] * 5 + [True]
    exact = table_of(SIX["x gompertz"]).value
    assert exact(mpmath.inf) == mpmath.inf
    assert float(exact(-mpmath.inf)) == pytest.approx(table.left[0], abs=1e-15)


def test_a_table_on_a_finite_piece_needs_no_asymptote() -> None:
    gradient = sympy.sin(X) / (1 + X**2)
    table = table_of(gradient, -0.3, 2.0)
    assert (table.left, table.right) == ((), ())
    assert table.low == -0.3 and table.high == pytest.approx(2.0)
    with mpmath.workdps(25):
        exact = mpmath.quad(lambda u: number(gradient, {"x": u}), [0, 1.1])
        assert abs(table.value(mpmath.mpf(1.1)) - exact) < 1e-20
    found = primitives.tabulated(torch.tensor(1.1).double(), _as_torch(table))
    assert float(found) == pytest.approx(float(exact), abs=1e-7)  # 1.1 came as float32
    with mpmath.workdps(25):
        wide = mpmath.quad(lambda u: number(gradient, {"x": u}), [-0.3, 2.0])
        whole = table.value(mpmath.mpf(2.0)) - table.value(mpmath.mpf(-0.3))
        assert abs(whole - wide) < 1e-20


@pytest.mark.parametrize(
    ("gradient", "wanted"),
    [
        (sympy.sin(X), "approaches no polynomial on the left"),
        (X / (1 + X**2), "approaches no polynomial on the left"),
        (sympy.sqrt(abs(X)) * sympy.exp(-(X**2)), "a table of .* cells would miss the integral"),
    ],
)
def test_what_no_table_can_hold_is_refused(gradient: Expr, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        table_of(gradient)


def test_a_singular_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"would miss|no finite value"):
        table_of(sympy.log(X) * sympy.tanh(X), 0.0, 3.0)


def test_what_rests_on_a_table_is_told(derived: Derived) -> None:
    (use,) = tables_of(derived)
    table = table_of(X * gompertz(X))
    assert (use.name, use.where, use.cells) == (table.__name__, "all x", len(table.rows))
    assert use.name.startswith("table_") and len(use.name) == 14
    assert 0 < use.bound < 2.0**-56 and (use.low, use.high) == (table.low, table.high)
    assert table_of.__wrapped__(X * gompertz(X)).__name__ == use.name


def test_two_tables_in_one_process_keep_their_own_numbers() -> None:
    # Static arrays of equal names in two shared objects were one array: the first one loaded.
    for formula in ("exp(-x**2)*tanh(3*x)", "softplus(x)**2"):
        spec = _spec(formula)
        x = torch.linspace(-6, 6, 4001).bfloat16()
        exact = kernel_of(spec).value(x.double(), ())
        found = build_activation(spec)(x)
        assert torch.allclose(found.double(), exact, rtol=2.0**-8, atol=1e-30), formula


def test_a_kernel_with_a_table_compiles_whole(derived: Derived) -> None:
    module = ModuleType("stamm_test_kernel")
    sys.modules[module.__name__] = module
    exec(kernel_source(derived), module.__dict__)
    value = torch.compile(module.value, fullgraph=True, backend="eager")
    x = 20 * torch.randn(3, 50, generator=torch.Generator().manual_seed(5)).t()
    eager = module.value(x, ())
    assert eager.dtype == x.dtype and eager.shape == x.shape
    assert torch.equal(value(x, ()), eager)
    assert torch.allclose(module.value(x.double(), ()).float(), eager, rtol=1e-6, atol=1e-6)
    assert module.value(torch.empty(0), ()).shape == (0,)
    del sys.modules[module.__name__]
