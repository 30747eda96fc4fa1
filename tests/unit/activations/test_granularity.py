"""Shapes for each layer, group or neuron: the same function, with gradients that go where they belong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stamm.activations import build_activation, xielu
from stamm.activations.module import Activation, GatedActivation
from stamm.base.errors import ConfigError

NEURONS, GROUPS = 12, 3


def data(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def spread(module: Activation | GatedActivation) -> None:
    """Give every stored value a number of its own."""
    for i, parameter in enumerate(module.parameters()):
        with torch.no_grad():
            parameter.copy_(0.1 * torch.arange(parameter.numel()) - 0.3 * i)


@pytest.mark.parametrize("groups", [None, GROUPS, 1])
def test_each_neuron_has_the_function_of_its_shape(groups: int | None) -> None:
    module = xielu(neurons=NEURONS, groups=groups, dtype=torch.float64)
    count = NEURONS if groups is None else groups
    assert [tuple(p.shape) for p in module.parameters()] == [(count,), (count,)]
    spread(module)
    x = data(5, 7, NEURONS).requires_grad_()
    y = module(x)
    weight = data(5, 7, NEURONS)
    y.backward(weight)
    stored = module.values(raw=True)
    for neuron in range(NEURONS):
        own = neuron * count // NEURONS
        one = xielu(dtype=torch.float64)
        picked = {n: v[own] if isinstance(v, list) else v for n, v in stored.items()}
        one.load_values(picked, raw=True)
        column = x.detach()[..., neuron : neuron + 1].requires_grad_()
        alone = one(column)
        assert torch.equal(alone, y[..., neuron : neuron + 1])
        alone.backward(weight[..., neuron : neuron + 1])
        assert column.grad is not None and x.grad is not None
        assert torch.equal(column.grad, x.grad[..., neuron : neuron + 1])
    together = xielu(dtype=torch.float64)
    if groups == 1:
        together.load_values(stored, raw=True)
        other = x.detach().requires_grad_()
        together(other).backward(weight)
        assert together.alpha_p.grad is not None and module.alpha_p.grad is not None
        assert float(module.alpha_p.grad) == pytest.approx(float(together.alpha_p.grad), rel=1e-12)


def test_gradients_of_neurons_are_derivatives() -> None:
    module = build_activation("xsilu_glu", neurons=4, groups=2, dtype=torch.float64)
    spread(module)
    gate, up = data(3, 4).requires_grad_(), data(3, 4).flip(0).requires_grad_()

    def function(gate: Tensor, up: Tensor, alpha: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(module, {"alpha": alpha}, (gate, up))
        return result

    alpha = module.alpha.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(function, (gate, up, alpha))
    assert torch.autograd.gradgradcheck(function, (gate, up, alpha))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_over_neurons_do_not_depend_on_threads(dtype: torch.dtype) -> None:
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            module = xielu(neurons=96)
            spread(module)
            x = data(2, 1031, 96, dtype=dtype).requires_grad_()
            module(x).backward(data(2, 1031, 96, dtype=dtype))
            found.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


def test_compiled_neurons_equal_eager_ones() -> None:
    module = xielu(neurons=8)
    spread(module)
    x = data(16, 8, dtype=torch.float32).requires_grad_()
    compiled = torch.compile(module, fullgraph=True)
    # A compiler rounds softplus its own way: near a root of f that is a larger share of f.
    assert torch.allclose(compiled(x), module(x), rtol=1e-6, atol=1e-6)
    compiled(x).sum().backward()
    first = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    module(x).sum().backward()
    for a, p in zip(first, module.parameters(), strict=True):
        assert p.grad is not None and torch.allclose(a, p.grad, rtol=1e-6)


def test_values_in_and_out() -> None:
    module = xielu(neurons=4, groups=2)
    module.load_values({"alpha_p": [1.0, 166.0], "alpha_n": 0.75}, raw=False)
    assert module.values(raw=False) == {
        "alpha_p": [pytest.approx(1.0, rel=1e-6), 166.0],
        "alpha_n": [pytest.approx(0.75, rel=1e-6)] * 2,
        "beta": 0.5,
    }
    before = module.values(raw=True)
    with pytest.raises(ConfigError, match=r"alpha_n = 0.25 is not above 0.5"):
        module.load_values({"alpha_p": 3.0, "alpha_n": [0.75, 0.25]}, raw=False)
    assert module.values(raw=True) == before
    with pytest.raises(ConfigError, match="alpha_p is given 3 values and has 2"):
        module.load_values({"alpha_p": [1.0, 2.0, 3.0]}, raw=False)
    with pytest.raises(ConfigError, match=r"has 2 values per parameter.*values\(raw="):
        module.effective()


def test_errors() -> None:
    with pytest.raises(ConfigError, match="10 neurons cannot be split into 3 equal groups"):
        xielu(neurons=10, groups=3)
    with pytest.raises(ConfigError, match="groups = 3 without neurons"):
        xielu(groups=3)
    with pytest.raises(ConfigError, match="0 neurons"):
        xielu(neurons=0)
    with pytest.raises(ConfigError, match="compat order 'eps' has one shape per layer"):
        xielu(neurons=4, compat="eps")
    with pytest.raises(ConfigError, match=r"has 4 values and the input \(2, 5\)"):
        xielu(neurons=4)(torch.zeros(2, 5))
