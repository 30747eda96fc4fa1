"""The forms of GELU by tanh in transformers.activations: finite gradients for large inputs."""

import pytest
import torch
from transformers.activations import ACT2FN

NAMES = ("gelu_new", "gelu_fast", "gelu_python_tanh", "gelu_accurate")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_gradient_of_large_inputs_is_one_or_zero(name, dtype):
    sizes = (
        torch.logspace(1.01, 38, 100) if dtype != torch.float16 else torch.logspace(1.01, 4.8, 50)
    )
    x = torch.cat([-sizes, sizes]).to(dtype).requires_grad_()
    (slope,) = torch.autograd.grad(ACT2FN[name](x).sum(), x)
    assert torch.equal(slope, (x > 0).to(dtype))


@pytest.mark.parametrize("name", NAMES)
def test_values_of_moderate_inputs_are_those_of_torch(name):
    x = torch.linspace(-9, 9, 1001)
    true = torch.nn.functional.gelu(x.double(), approximate="tanh").float()
    torch.testing.assert_close(ACT2FN[name](x), true, rtol=1e-5, atol=2e-6)
