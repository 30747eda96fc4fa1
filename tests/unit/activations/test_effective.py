"""Effective parameters: all digits of float64 from the stored numbers to the kernel, and back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from stamm.activations.conformance.ulp import unit
from stamm.activations.fused.direct import effective_tensor
from stamm.activations.fused.operation import use_eager
from stamm.activations.module import Activation, build_activation
from stamm.activations.spec.parameters import Between, Bijection, Exp, Parameter, Softplus

RAW = (-700.0, -40.75, -1.0502256, -1e-9, 0.0, 0.2033823, 3.0, 19.5, 20.5, 33.0, 41.0, 166.0)
FAR = 3000.0  # where alpha_n = .501 leaves (beta - alpha_n) x - alpha_n, whose root is at -501


@pytest.fixture(autouse=True)
def fifty_digits() -> Iterator[None]:
    with mpmath.workdps(50):
        yield


def _softplus(raw: float) -> Any:
    return mpmath.log1p(mpmath.exp(mpmath.mpf(raw)))


@pytest.mark.parametrize(
    ("bijection", "true"),
    [
        (Softplus(), _softplus),
        (Exp(), lambda raw: mpmath.exp(mpmath.mpf(raw))),
        (Between(low=-1.0, high=3.0), lambda raw: -1 + 4 / (1 + mpmath.exp(-mpmath.mpf(raw)))),
    ],
    ids=["softplus", "exp", "between"],
)
def test_effective_values_have_the_digits_of_float64(bijection: Bijection, true: Any) -> None:
    """20.5 is where torch's own softplus leaves a part of 6e-11 out."""
    parameter = Parameter(name="p", initial=1.0, bijection=bijection)
    found = effective_tensor(parameter, torch.tensor(RAW, dtype=torch.float64), 0.0, exact=True)
    for raw, value in zip(RAW, found.tolist(), strict=True):
        size = 4 if isinstance(bijection, Between) else true(raw)  # of what is added up
        assert abs(value - true(raw)) <= 4 * 2.0**-53 * size


@pytest.mark.parametrize("neurons", [None, 8], ids=["one", "each neuron"])
def test_a_module_hands_over_what_its_stored_numbers_give(neurons: int | None) -> None:
    module = build_activation("xielu", neurons=neurons)
    module.load_values({"alpha_n": 0.501}, raw=False)
    alpha_p, alpha_n = module.effective_tensors()
    for found, stored, above in ((alpha_p, module.alpha_p, 0), (alpha_n, module.alpha_n, 0.5)):
        assert isinstance(stored, Tensor)
        assert found.dtype == torch.float64
        true = above + _softplus(_first(stored))
        assert abs(_first(found) - true) <= 2.0**-52 * true


def _first(tensor: Tensor) -> float:
    return float(tensor.detach().reshape(-1)[0].double())


def _truth(module: Activation, points: Sequence[float]) -> list[Any]:
    """xIELU from the stored numbers, in fifty digits."""
    assert isinstance(module.alpha_p, Tensor)
    assert isinstance(module.alpha_n, Tensor)
    alpha_p = _softplus(_first(module.alpha_p))
    alpha_n = mpmath.mpf("0.5") + _softplus(_first(module.alpha_n))
    return [
        alpha_p * x * x + x / 2 if x > 0 else alpha_n * (mpmath.expm1(x) - x) + x / 2
        for x in map(mpmath.mpf, points)
    ]


@pytest.mark.slow  # all finite inputs, twelve times
@pytest.mark.parametrize("alpha_n", [0.501, 0.50001, 0.8])
@pytest.mark.parametrize("neurons", [None, 4], ids=["one", "each neuron"])
@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
def test_xielu_in_float16_is_right_to_an_ulp_at_its_far_root(
    fused: bool, neurons: int | None, alpha_n: float
) -> None:
    """With alpha_n rounded to float32 it was 108 ulp off at x = -501."""
    module = build_activation("xielu", neurons=neurons)
    assert isinstance(module, Activation)
    module.load_values({"alpha_n": alpha_n}, raw=False)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    x = every[(every <= 0) & (every > -FAR)]
    wide = x[:, None].expand(-1, neurons or 1).contiguous()
    use_eager(module.forms, eager=not fused)
    try:
        y = module(wide)[:, 0].detach()
    finally:
        use_eager(module.forms, eager=False)
    true = _truth(module, x.tolist())
    steps = unit(torch.tensor([float(t) for t in true], dtype=torch.float64), torch.float16)
    errors = [
        abs(found - exact) / step
        for found, exact, step in zip(y.tolist(), true, steps.tolist(), strict=True)
    ]
    assert max(errors) <= 0.7


@pytest.mark.parametrize("neurons", [None, 4], ids=["one", "each neuron"])
@pytest.mark.parametrize("rows", [4, 2**15], ids=["eager", "fused"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("at", "weight"),
    [(2e19, 1.0), (3e22, 1e-2), (3e38, 1e-40), (3e38, 1e-33), (1e-20, 1e-4), (3e22, 1.0)],
)
def test_a_gradient_is_infinite_only_where_float32_cannot_hold_it(
    at: float, weight: float, dtype: torch.dtype, rows: int, neurons: int | None
) -> None:
    """df/d alpha_p = x**2, beyond float32 from 1.84e19 on, times the slope of softplus: 1e-6."""
    module = build_activation("xielu", neurons=neurons)
    module.load_values({"alpha_p": 1e-6}, raw=False)
    x, into = (torch.zeros(rows, neurons or 1, dtype=dtype) for _ in range(2))
    x[3], into[3] = at, weight
    module(x).backward(into)
    assert isinstance(module.alpha_p, Tensor)
    assert module.alpha_p.grad is not None
    share = 1 / (1 + mpmath.exp(-mpmath.mpf(_first(module.alpha_p))))
    true = share * mpmath.mpf(_first(x[3])) ** 2 * mpmath.mpf(_first(into[3]))
    found = _first(module.alpha_p.grad)
    largest = torch.finfo(torch.float32).max
    if true > largest:
        assert found == math.inf
    else:
        assert abs(found - true) <= 0.51 * max(2.0**-23 * true, 2.0**-149)
