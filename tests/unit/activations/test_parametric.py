"""Gradients whose integral has no closed form and whose shape is trained: tables made in each call."""

from __future__ import annotations

from functools import lru_cache

import mpmath
import pytest
import torch

from stamm.activations.codegen.kernel_lookup import Kernel, kernel_of
from stamm.activations.conformance.judge import table_sentences
from stamm.activations.derivation.derive import derive
from stamm.activations.module.ops import operation_of
from stamm.activations.spec import Spec
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.base.errors import ConfigError

POINTS = (-300.0, -7.5, -0.3, 2.0**-40, 0.02, 1.0, 5.7, 40.0, 5e4)


def gradient(x: mpmath.mpf, s: mpmath.mpf) -> mpmath.mpf:
    size = max(x, 0) + mpmath.log1p(mpmath.exp(-abs(x)))
    return s * mpmath.tanh(size / s)


def slope(x: mpmath.mpf, s: mpmath.mpf) -> mpmath.mpf:
    u = (max(x, 0) + mpmath.log1p(mpmath.exp(-abs(x)))) / s
    return mpmath.tanh(u) - u / mpmath.cosh(u) ** 2


def integral(rate: object, x: float, s: float) -> float:
    """By a quadrature of its own: tanh-sinh between doublings of x."""
    with mpmath.workdps(30):
        stops = [mpmath.mpf(0), *(mpmath.mpf(x) * 2**-k for k in range(24, -1, -1))]
        return float(mpmath.quad(lambda t: rate(t, mpmath.mpf(s)), stops))  # type: ignore[operator]


@lru_cache(maxsize=1)
def spec() -> Spec:
    return spec_from_arguments(
        ["s*tanh(softplus(x)/s)"], ["s=4:softplus"], name="saturating_softplus"
    )


def kernel() -> Kernel:
    return kernel_of(spec())


@pytest.mark.parametrize("s", [1 / 32, 0.7, 4.0, 32.0])
def test_function_and_parameter_slope_are_the_integrals(s: float) -> None:
    x = torch.tensor(POINTS, dtype=torch.float64)
    given = (torch.tensor(s, dtype=torch.float64),)
    value, (_, by_s) = kernel().value(x, given), kernel().slopes(x, given)
    for at, f, df in zip(POINTS, value.tolist(), by_s.tolist(), strict=True):
        assert f == pytest.approx(integral(gradient, at, s), rel=2e-14), at
        assert df == pytest.approx(integral(slope, at, s), rel=2e-14), at


def test_one_parameter_for_each_neuron_gives_the_bits_of_one_alone() -> None:
    x = torch.randn(5, 3, dtype=torch.float64)
    x[0, 0], x[1, 1], x[2, 2] = torch.nan, torch.inf, -0.0
    many = torch.tensor([0.5, 4.0, 9.0], dtype=torch.float64)
    together = kernel().value(x, (many,))
    for column in range(3):
        alone = kernel().value(x[:, column], (many[column],))
        assert torch.allclose(together[:, column], alone, rtol=1e-15, equal_nan=True)
    assert torch.isnan(together[0, 0]) and torch.signbit(together[2, 2])


def test_a_parameter_that_is_a_plain_number_gives_the_bits_of_a_tensor() -> None:
    x = torch.tensor(POINTS, dtype=torch.float64)
    given = (torch.tensor(4.0, dtype=torch.float64),)
    for plain, tensors in (
        ([kernel().value(x, (4.0,))], [kernel().value(x, given)]),
        (kernel().slopes(x, (4.0,)), kernel().slopes(x, given)),
        (kernel().curvatures(x, (4.0,)), kernel().curvatures(x, given)),
    ):
        assert all(map(torch.equal, plain, tensors))


def test_a_gradient_on_a_finite_interval_is_integrated_up_to_its_end() -> None:
    pieces = ["x <= 0: 0", "0 < x < 2: tanh(a*x)*exp(-x**2)", "x >= 2: 0"]
    ended = kernel_of(spec_from_arguments(pieces, ["a=1:between(0.5, 3)"], continuity="jump"))
    x = torch.tensor([-1.0, 1e-6, 0.5, 1.99, 5.0], dtype=torch.float64)
    value = ended.value(x, (torch.tensor(0.75, dtype=torch.float64),))
    with mpmath.workdps(30):
        expected = [
            mpmath.quad(
                lambda t: mpmath.tanh(0.75 * t) * mpmath.exp(-t * t), [0, min(max(at, 0), 2)]
            )
            for at in x.tolist()
        ]
    assert value.tolist() == pytest.approx(list(map(float, expected)), rel=2e-14)


def test_large_tensors_take_the_eager_form() -> None:
    operation = operation_of(kernel(), (None,))
    x = torch.randn(2**16, requires_grad=True)
    s = torch.tensor([4.0], requires_grad=True)
    operation(x, s).sum().backward()
    few = x.detach()[:100].double()
    expected = kernel().slopes(few, (s.detach()[0].double(),))[0]
    assert x.grad is not None and s.grad is not None and s.grad.abs() > 0
    assert torch.allclose(x.grad[:100].double(), expected, rtol=1e-6)


def test_the_cost_is_said() -> None:
    (first, *_) = table_sentences(derive(spec()))
    assert "each call makes" in first and "no fused kernel" in first


def test_a_gradient_without_an_asymptote_is_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigError, match="approaches no line") as refused:
        derive(spec_from_arguments(["sin(x + a*sin(x))"], ["a=0.5:softplus"], name="wave"))
    assert "State it on a finite interval" in refused.value.line()
