"""torch.compile on a CPU: one graph, forward and backward, and no digit lost near 0."""

from __future__ import annotations

import warnings

import pytest
import torch

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.module import build_activation, xielu


def test_compiled_xielu_keeps_its_digits() -> None:
    torch.manual_seed(0)
    module = xielu()
    module.load_values({"alpha_p": 166.0, "alpha_n": 41.25}, raw=False)
    magnitude = 10 ** (torch.rand(32, 64) * 2 - 6)  # 1e-6 to 1e-4
    x = torch.cat([magnitude, -magnitude]).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler warns about itself
        y = torch.compile(module, fullgraph=True)(x)
        y.backward(torch.ones_like(y))
    assert x.grad is not None
    kernel, wide = kernel_of(module.spec), x.detach().double()
    values = tuple(
        torch.tensor(v, dtype=torch.float64) if n != "beta" else v
        for n, v in module.effective().items()
    )
    slope, for_p, for_n = kernel.slopes(wide, values)
    assert torch.allclose(y.double(), kernel.value(wide, values), rtol=3e-7, atol=0)
    assert torch.allclose(x.grad.double(), slope, rtol=3e-7, atol=0)
    for name, each in (("alpha_p", for_p), ("alpha_n", for_n)):
        raw = getattr(module, name)
        expected = each.sum().item() * torch.sigmoid(raw).item()
        assert raw.grad.item() == pytest.approx(expected, rel=2e-6)


def test_compiled_gated_activation_equals_eager() -> None:
    torch.manual_seed(0)
    module = build_activation("xatglu")
    module.load_values({"alpha": 0.25}, raw=False)
    gate, up = (torch.randn(8, 32, dtype=torch.bfloat16) for _ in range(2))
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in (module, torch.compile(module, fullgraph=True)):
            module.zero_grad(set_to_none=True)
            leaves = [t.clone().requires_grad_() for t in (gate, up)]
            y = call(*leaves)
            y.backward(torch.ones_like(y))
            results.append([y, leaves[0].grad, leaves[1].grad, module.get_parameter("alpha").grad])
    for eager, compiled in zip(*results, strict=True):
        assert eager is not None and compiled is not None
        assert torch.allclose(eager.float(), compiled.float(), rtol=8e-3, atol=1e-6)
