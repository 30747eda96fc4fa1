"""Gradients: against finite differences, twice, never silently wrong a third time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stamm.activations.catalog import ENTRIES
from stamm.activations.module import build_activation, xielu
from stamm.activations.spec import Gated, Piece, Spec
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.base.errors import ConfigError

# Not linear in its parameters: the mixed parameter curvatures matter.
BENT = spec_from_arguments(
    ["x <= knee: a**2*exp(x)", "x > knee: a**2*exp(knee)"],
    ["a=0.7:identity", "knee=0.4:softplus"],
    name="bent",
)


def inputs(spec: Spec) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    # Away from the knot of a jump, through it where the gradient is continuous.
    x[0, 0] = 0.0 if spec.continuity == "continuous" and "relu" not in spec.name else 0.61
    x[0, 1], x[0, 2] = -1.5, -0.05
    tensors = [x]
    if isinstance(spec.arity, Gated):
        tensors.append(torch.randn(3, 4, generator=generator, dtype=torch.float64))
    return [t.requires_grad_() for t in tensors]


# A surrogate is declared as no gradient.
DERIVED = [spec for spec in ENTRIES if not spec.surrogate]


@pytest.mark.parametrize("spec", DERIVED, ids=lambda s: s.name)
def test_gradcheck_in_inputs_and_raw_parameters(spec: Spec) -> None:
    module = build_activation(spec, dtype=torch.float64)
    stored = [getattr(module, p.name) for p in spec.trainable]

    def call(*tensors: Tensor) -> Tensor:
        count = len(tensors) - len(stored)
        names = [p.name for p in spec.trainable]
        given = dict(zip(names, tensors[count:], strict=True))
        result: Tensor = torch.func.functional_call(module, given, tensors[:count])
        return result

    arguments = (*inputs(spec), *stored)
    assert torch.autograd.gradcheck(call, arguments, eps=1e-6, atol=2e-6)
    # At the knot of xielu the second derivative jumps, so the second check stays off it.
    arguments[0].data[0, 0] = 0.25
    assert torch.autograd.gradgradcheck(call, arguments, eps=1e-6, atol=2e-6)


def test_gradgradcheck_where_parameters_bend() -> None:
    module = build_activation(BENT, dtype=torch.float64)
    a, knee = module.get_parameter("a"), module.get_parameter("knee")
    x = torch.tensor([-2.0, -0.3, 0.2, 0.9, 3.0], dtype=torch.float64, requires_grad=True)

    def call(x: Tensor, a: Tensor, knee: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(module, {"a": a, "knee": knee}, (x,))
        return result

    assert torch.autograd.gradcheck(call, (x, a, knee))
    assert torch.autograd.gradgradcheck(call, (x, a, knee))


def test_the_gradients_that_a_surrogate_gives_are_differentiated_as_they_are() -> None:
    # The first gradients are w s(x) and the sum of w df/dp: two functions, each with its slopes.
    surrogate = (
        Piece(where="x <= knee", formula="logistic(x)"),
        Piece(where="x > knee", formula="x**2"),
    )
    spec = replace(BENT, name="eased", surrogate=surrogate)
    module = build_activation(spec, dtype=torch.float64)
    x = torch.tensor([-2.0, -0.3, 0.2, 0.9, 3.0], dtype=torch.float64, requires_grad=True)
    weight = torch.linspace(0.5, 2.5, 5, dtype=torch.float64, requires_grad=True)
    stored = {name: module.get_parameter(name) for name in ("a", "knee")}

    def first(weight: Tensor, x: Tensor, *stored: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(("a", "knee"), stored, strict=True))
        y = torch.func.functional_call(module, given, (x,))
        return torch.autograd.grad(y, (x, *stored), weight, create_graph=True)

    with torch.no_grad():
        stated = weight * torch.where(x <= 0.4, torch.sigmoid(x), x**2)
    assert torch.allclose(first(weight, x, *stored.values())[0], stated)
    assert torch.autograd.gradcheck(first, (weight, x, *stored.values()))


def test_a_third_derivative_is_an_error() -> None:
    x = torch.tensor([-0.5, 0.5], requires_grad=True)
    y = xielu()(x).sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="third derivative"):
        torch.autograd.grad(second.sum(), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_do_not_depend_on_threads_blocks_or_repetition(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(20, 4096, generator=generator).to(dtype)
    weight = torch.randn(20, 4096, generator=generator).to(dtype)
    results = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 2):
            torch.set_num_threads(count)
            module, leaf = xielu(), x.clone().requires_grad_()
            module(leaf).backward(weight)
            results.append([*(p.grad for p in module.parameters()), leaf.grad])
    finally:
        torch.set_num_threads(threads)
    module, leaf = xielu(), x[:8].clone().requires_grad_()
    module(leaf).backward(weight[:8])  # small enough for one block
    gradient = results[0][2]
    assert gradient is not None and leaf.grad is not None
    assert torch.equal(gradient[:8], leaf.grad)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert a is not None and b is not None and torch.equal(a, b)


@pytest.mark.parametrize("shape", [(1_000_000,), (1, 300_000), (40_000, 8)])
def test_long_sums_do_not_depend_on_threads(shape: tuple[int, ...]) -> None:
    """Shapes whose plain sums torch splits between threads."""
    generator = torch.Generator().manual_seed(4)
    x, weight = (torch.randn(shape, generator=generator) for _ in range(2))
    found, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            module = xielu()
            module(x).backward(weight)
            found.append([p.grad for p in module.parameters()])
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1] == found[2]


def test_parameter_gradients_are_right_in_bfloat16() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 512, generator=generator).bfloat16()
    weight = torch.randn(64, 512, generator=generator).bfloat16()
    module, exact = xielu(), xielu(dtype=torch.float64)
    module(x).backward(weight)
    exact(x.double()).backward(weight.double())
    for name in ("alpha_p", "alpha_n"):
        found, true = getattr(module, name).grad, getattr(exact, name).grad
        assert found.dtype == torch.float32
        assert found.item() == pytest.approx(true.item(), rel=2e-5)


def test_gradients_reach_raw_through_a_trainable_bound() -> None:
    spec = spec_from_arguments(["all x: a*x"], ["a=2:softplus>b", "b=0.5:softplus"], name="bounded")
    module = build_activation(spec)
    module(torch.tensor([2.0])).backward()
    a, b = module.get_parameter("a"), module.get_parameter("b")
    assert a.grad is not None and b.grad is not None
    # f = a x**2/2 = 2a at x = 2; a = b + softplus(raw_a), b = softplus(raw_b).
    assert a.grad.item() == pytest.approx(2 * torch.sigmoid(a).item())
    assert b.grad.item() == pytest.approx(2 * torch.sigmoid(b).item())


def test_only_inputs_are_kept_for_backward() -> None:
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.numel() > 1:
            kept.append(tensor)
        return tensor

    x = torch.randn(4, 8).bfloat16().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        xielu()(x)
    assert len(kept) == 1 and kept[0].data_ptr() == x.data_ptr()


def test_shapes_and_strides() -> None:
    module = xielu()
    base = torch.randn(6, 10)
    for view in (base.t(), base[:, ::3], base[0, 0], base[:0], base.expand(3, 6, 10)):
        leaf = view.clone().requires_grad_()
        assert torch.equal(module(view), module(view.contiguous()))
        module(leaf).sum().backward()
        assert leaf.grad is not None and leaf.grad.shape == view.shape


def test_vmap_gives_per_sample_gradients() -> None:
    module = xielu()
    raw = {k: v.detach() for k, v in module.named_parameters()}
    x = torch.randn(5, 7)

    def loss(raw: dict[str, Tensor], row: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(module, raw, (row,)).sum()
        return result

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(raw, x)
    for i in range(5):
        single = torch.func.grad(loss)(raw, x[i])
        assert torch.allclose(found["alpha_n"][i], single["alpha_n"])


def test_gate_and_up_must_agree() -> None:
    module = build_activation("swiglu")
    with pytest.raises(ConfigError, match=r"gate is \(2, 3\) float32 and up is \(3,\) float32"):
        module(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(ConfigError, match="bfloat16"):
        module(torch.zeros(3), torch.zeros(3, dtype=torch.bfloat16))


def test_a_third_derivative_is_an_error_in_company_too() -> None:
    module = xielu(dtype=torch.float64)
    x = torch.tensor([-0.5], dtype=torch.float64, requires_grad=True)
    y = module(x) + x**4
    for _ in range(2):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="third derivative"):
        torch.autograd.grad(y.sum(), x)

    def function(value: Tensor) -> Tensor:
        result: Tensor = module(value[None])
        return result.sum()

    third = torch.func.grad(torch.func.grad(torch.func.grad(function)))
    with pytest.raises(RuntimeError, match="third derivative"):
        third(torch.tensor(-0.5, dtype=torch.float64))
