"""The fused kernels of a folder for the kernels hub, in Triton's interpreter.

Run by test_kernel_folder.py in a process of its own: the interpreter is chosen for a whole process,
when Triton is loaded. The files are those that are published; only the device's library of
functions, which the interpreter lacks, is replaced.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import triton
from torch import Tensor

from stamm.activations import catalog
from stamm.activations.fused import interpreted
from stamm.activations.module import build_activation
from stamm.release.kernel_folder import write_kernel_folder

assert triton.knobs.runtime.interpret
VALUES = {"alpha_p": 0.9, "alpha_n": 0.7}
# What one rounding may cost: the interpreter cuts bfloat16 off where a GPU rounds.
NEAR = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The CUDA variant, which takes every tensor for one on a GPU; `launched` counts its kernels."""
    write_kernel_folder(catalog.get("xielu"), tmp_path / "xielu")
    place = tmp_path / "xielu" / "build" / "torch-cuda" / "__init__.py"
    spec = importlib.util.spec_from_file_location("published_xielu", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    for name in [name for name in sys.modules if name.startswith("published_xielu")]:
        del sys.modules[name]
    sys.modules["published_xielu"] = module
    spec.loader.exec_module(module)
    for name in ("_forward_16", "_forward_32", "_backward_16", "_backward_32"):
        part = importlib.import_module(f".{name}", "published_xielu")
        monkeypatch.setattr(part, "functions", interpreted)
    launch = module._fused._launch
    module.launched = []  # type: ignore[attr-defined]

    def counted(kernel: Any, programs: int, arguments: list[Any], options: dict[str, Any]) -> None:
        module.launched.append(programs)  # type: ignore[attr-defined]
        with np.errstate(all="ignore"):
            launch(kernel, programs, arguments, options)

    monkeypatch.setattr(module._fused, "_launch", counted)
    given = module._fused.reason
    known = (torch.bfloat16, torch.float16, torch.float32)
    monkeypatch.setattr(
        module._fused, "reason", lambda x: None if x.dtype in known and x.numel() else given(x)
    )
    return module


def made(count: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(count, generator=generator)).to(dtype)


def gradients(
    function: Any, x: Tensor, weight: Tensor, **values: float
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """f(x), the gradient of x, and those of the parameters, weighted."""
    x = x.clone().requires_grad_()
    given = [torch.tensor([value], requires_grad=True) for value in values.values()]
    found = function(x, *given)
    (into, *of) = torch.autograd.grad(found, [x, *given], weight)
    return found.detach(), into, of


def truth(x: Tensor, *parameters: Tensor) -> Tensor:
    """xIELU as its paper writes it, in float64: arXiv 2411.13010."""
    alpha_p, alpha_n, beta = (*(p.double() for p in parameters), 0.5)[:3]
    positive = alpha_p * x * x + beta * x
    negative = (torch.expm1(x) - x) * alpha_n + beta * x
    return torch.where(x > 0, positive, negative)


@pytest.mark.parametrize("dtype", list(NEAR), ids=str)
@pytest.mark.parametrize("count", [1, 4095, 3 * 4096, 9001])
def test_values_and_gradients(kernel: ModuleType, dtype: torch.dtype, count: int) -> None:
    x, weight = made(count, dtype, 1), made(count, dtype, 2)
    value, into, of = gradients(kernel.xielu, x, weight, **VALUES)
    programs = -(-count // 4096)
    assert kernel.launched == [programs, programs, 2]  # forward, backward, sums of two parameters
    assert value.dtype == into.dtype == dtype
    exact = gradients(truth, x.double(), weight.double(), **VALUES)
    for found, true in ((value, exact[0]), (into, exact[1])):
        torch.testing.assert_close(found.double(), true, rtol=NEAR[dtype], atol=NEAR[dtype])
    terms = weight.double().abs().sum()
    for found, true in zip(of, exact[2], strict=True):
        assert found.shape == (1,) and found.dtype == torch.float32
        assert (found.double() - true).abs() < 1e-5 * terms


def test_a_value_other_than_the_initial_one_is_computed(kernel: ModuleType) -> None:
    x = made(500, torch.float32, 3)
    found = kernel.xielu(x, 0.9, 0.7, 0.25)
    assert kernel.launched == [1]
    exact = truth(x.double(), *map(torch.tensor, (0.9, 0.7, 0.25)))
    torch.testing.assert_close(found.double(), exact, rtol=2e-6, atol=2e-6)


def test_steps_in_memory_change_nothing(kernel: ModuleType) -> None:
    wide = made(6000, torch.float32, 4).reshape(50, 120)
    stepped = wide[:, ::2]
    whole = stepped.contiguous()
    weight = made(3000, torch.float32, 5).reshape(60, 50).t()
    for found, same in zip(
        gradients(kernel.xielu, stepped, weight, **VALUES)[:2],
        gradients(kernel.xielu, whole, weight.contiguous(), **VALUES)[:2],
        strict=True,
    ):
        assert torch.equal(found, same)
    assert kernel.xielu(stepped.t(), 0.9, 0.7).shape == (60, 50)


def test_special_numbers(kernel: ModuleType) -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-30, -1e-30])
    found = kernel.xielu(x, 0.9, 0.7)
    torch.testing.assert_close(found, kernel._formula.value(x, (0.9, 0.7, 0.5)), equal_nan=True)
    assert kernel.launched == [1]


def test_what_is_not_fused_is_computed_by_torch(kernel: ModuleType) -> None:
    x = made(100, torch.float32, 6)
    assert kernel.implementation(x) == "triton"
    double = x.double().requires_grad_()
    assert kernel.implementation(double) == "torch"
    parameters = [torch.tensor([v], dtype=torch.float64) for v in VALUES.values()]
    found = kernel.xielu(double, *parameters)
    torch.testing.assert_close(found, truth(double.detach(), *parameters), rtol=1e-6, atol=1e-6)
    assert kernel.launched == []
    with pytest.raises(ValueError, match="one number each"):
        kernel.xielu(x, torch.ones(100), 0.7)


def test_a_second_derivative_is_right(kernel: ModuleType) -> None:
    x = made(64, torch.float32, 7).requires_grad_()
    parameters = [torch.tensor([v], requires_grad=True) for v in VALUES.values()]
    exact = x.detach().double().requires_grad_()
    of_exact = [p.detach().double().requires_grad_() for p in parameters]
    second = []
    for function, tensors in ((kernel.xielu, (x, *parameters)), (truth, (exact, *of_exact))):
        (first,) = torch.autograd.grad(function(*tensors).sum(), tensors[0], create_graph=True)
        second.append(torch.autograd.grad((first * first).sum(), tensors))
    assert kernel.launched == [1]  # forward alone
    for found, true in zip(*second, strict=True):
        torch.testing.assert_close(found.double(), true, rtol=1e-4, atol=1e-4)


def test_it_agrees_with_our_module(kernel: ModuleType) -> None:
    ours = build_activation(catalog.get("xielu"))
    layer = kernel.layers.XIELU()
    for name, stored in ours.named_parameters():
        layer.register_parameter(name, stored)
    x = made(1000, torch.float32, 8)
    torch.testing.assert_close(layer(x), ours(x), rtol=2e-6, atol=2e-6)
    assert kernel.launched == [1]
    layer.register_buffer("beta", torch.tensor(0.25, dtype=torch.bfloat16))
    positive = x > 0
    lower = ours(x) - 0.25 * x
    torch.testing.assert_close(layer(x)[positive], lower[positive], rtol=1e-5, atol=1e-5)


def test_a_compiled_call_gives_the_same(kernel: ModuleType) -> None:
    x = made(300, torch.float32, 9)
    parameters = [torch.tensor([v]) for v in VALUES.values()]
    found = torch.compile(kernel.xielu, backend="eager")(x, *parameters)
    assert torch.equal(found, kernel.xielu(x, *parameters))
    assert kernel.launched == [1, 1]
