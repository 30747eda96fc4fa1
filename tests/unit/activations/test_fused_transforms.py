"""Fused passes under compilers and transforms: no derivative is lost, and what cannot be is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.autograd.forward_ad as forward_mode
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

from stamm.activations import catalog
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.fused import cpu, gpu, operation
from stamm.activations.module import Activation, GatedActivation, build_activation
from stamm.base.errors import ConfigError

pytestmark = pytest.mark.slow  # compiles transforms

Call = Callable[[Tensor], Tensor]
X = torch.linspace(-2, 2, 5)
KERNEL = kernel_of(catalog.get("xielu"))
FIXED = (None, None, 0.5)


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    torch.compiler.reset()


def _of_one(name: str, *, trained: bool = False) -> Call:
    """The activation; a gated one of its gate, with another tensor in the place of up."""
    module = build_activation(name).requires_grad_(trained)
    if isinstance(module, GatedActivation):
        return lambda x: module(x, x.flip(0) + 0.3)
    return lambda x: module(x)


def _transforms(f: Call) -> dict[str, Call]:
    def total(x: Tensor) -> Tensor:
        return f(x).sum()

    def between(x: Tensor) -> Tensor:
        return f(1 * x).square().sum()

    return {
        "grad": grad(total),
        "grad of what lies between": grad(between),
        "jvp": lambda x: jvp(f, (x,), (x,))[1],
        "vmap": lambda x: vmap(f)(torch.stack([x, 2 * x])),
        "grad for each": lambda x: vmap(grad(total))(torch.stack([x, 2 * x])),
        "hessian": hessian(between),
        "reverse twice": jacrev(jacrev(total)),
        "reverse over forward": jacrev(jacfwd(between)),
    }


TRANSFORMS = list(_transforms(torch.sin))


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", ["xielu", "swiglu"])
def test_a_compiled_transform_gives_the_bits_of_eager_code(name: str, transform: str) -> None:
    for dtype in (torch.float32, torch.float64):
        call, x = _transforms(_of_one(name))[transform], X.to(dtype)
        wanted = call(x)
        assert wanted.abs().max() > 0
        assert torch.equal(torch.compile(call, backend="eager", fullgraph=True)(x), wanted)


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap", "hessian"])
def test_a_compiled_transform_can_be_lowered(transform: str) -> None:
    call = _transforms(_of_one("xielu"))[transform]
    assert torch.equal(torch.compile(call, backend="aot_eager", fullgraph=True)(X), call(X))


def test_a_compiled_gradient_is_that_of_the_spec_not_of_the_formula() -> None:
    """helu is a step at 0 whose backward pass uses a surrogate."""
    call = _transforms(_of_one("helu", trained=True))["grad"]
    assert torch.equal(torch.compile(call, backend="eager", fullgraph=True)(X), call(X))


def test_gradients_for_each_sample_of_a_trained_shape() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), build_activation("xielu"))
    values = {name: p.detach() for name, p in model.named_parameters()}

    def each(x: Tensor) -> dict[str, Tensor]:
        def loss(values: dict[str, Tensor], row: Tensor) -> Tensor:
            return functional_call(model, values, (row,)).square().sum()

        return vmap(grad(loss), (None, 0))(values, x)

    x = torch.stack([X, X.flip(0), 2 * X])
    found, wanted = torch.compile(each, backend="eager")(x), each(x)
    assert wanted["1.alpha_p"].abs().max() > 0
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("compiled", [False, True])
def test_forward_mode_without_torch_func(compiled: bool) -> None:
    module = build_activation("xielu").requires_grad_(not compiled)
    x = torch.linspace(-2, 2, 40000)

    def tangent(x: Tensor) -> Tensor:
        with forward_mode.dual_level():
            dual = forward_mode.make_dual(x, torch.ones_like(x))
            found: Tensor = forward_mode.unpack_dual(module(dual)).tangent
            return found

    call = torch.compile(tangent, backend="eager") if compiled else tangent
    (wanted,) = torch.autograd.grad(module(x.requires_grad_()).sum(), x)
    assert torch.allclose(call(x.detach()), wanted, rtol=1e-6)


def _form() -> str:
    module = build_activation("xielu")
    module(X)
    return next(
        name
        for name, form in operation._FORMS.items()
        if form.kernel is module._kernel and form.layout == "plain" and form.exact
    )


@pytest.mark.parametrize("size", [5, 40000])
def test_who_calls_the_operations_themselves_has_derivatives_too(size: int) -> None:
    form, ops = _form(), torch.ops.stamm
    values = [torch.tensor([0.8]), torch.tensor([1.7])]
    x = torch.linspace(-2, 2, size, requires_grad=True)
    y = ops.activation([x], values, form)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    one = torch.ones_like(x)
    again, *_ = ops.activation_gradients(one, [x], values, form)
    assert torch.allclose(first, again, rtol=1e-6)
    curved, wanted = (
        torch.autograd.grad(g.square().sum(), x, retain_graph=True)[0] for g in (again, first)
    )
    assert torch.allclose(curved, wanted, rtol=1e-6) and wanted.abs().max() > 0
    moved = jvp(
        lambda t: ops.activation_gradients(one, [t], values, form)[0], (x.detach(),), (one,)
    )[1]
    (bend,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
    assert torch.allclose(moved, bend, rtol=1e-6, atol=1e-6)
    slope = jvp(lambda t: ops.activation([t], values, form), (x.detach(),), (one,))[1]
    assert torch.allclose(slope, first, rtol=1e-6)
    gradient = vmap(grad(lambda t: ops.activation([t], values, form).sum()))(x.detach()[None])
    assert torch.allclose(gradient[0], first, rtol=1e-6)


@pytest.mark.parametrize("name", ["swiglu", "swiglu_oai", "xielu_glu"])
def test_many_weights_at_once_for_gate_and_up_in_one_tensor(name: str) -> None:
    module = build_activation(name)
    assert isinstance(module, GatedActivation)
    both = torch.linspace(-3, 3, 8 * 20000).reshape(8, 20000).requires_grad_()
    weights = torch.stack([torch.ones(8, 10000), torch.linspace(-1, 1, 80000).reshape(8, 10000)])
    y = module.of_fused(both)
    (found,) = torch.autograd.grad(y, both, weights, is_grads_batched=True, retain_graph=True)
    for one, weight in zip(found, weights, strict=True):
        (wanted,) = torch.autograd.grad(y, both, weight, retain_graph=True)
        assert torch.allclose(one, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(10, 128), (400, 128), (40000, 1)])
def test_a_shape_for_other_neurons_is_refused(shape: tuple[int, ...]) -> None:
    module = build_activation("xielu", neurons=64)
    with pytest.raises(ConfigError, match=r"the parameter has 64 values and the input \(\d+, 1"):
        module(torch.zeros(shape))


@pytest.mark.parametrize("backend", [cpu, gpu])
@pytest.mark.parametrize("values", [0, 64, 256])
def test_no_pass_reads_beyond_a_parameter(backend: object, values: int) -> None:
    x, shape = torch.ones(4, 128), torch.ones(values)
    with pytest.raises(ConfigError, match=rf"the parameter has {values} values and the input"):
        backend.run("forward", KERNEL, FIXED, torch.float32, [x], [x.clone()], [shape] * 2)  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64])
@pytest.mark.parametrize("size", [4, 40000])
def test_what_is_no_real_number_is_refused(dtype: torch.dtype, size: int) -> None:
    x, told = torch.zeros(size).to(dtype), str(dtype).removeprefix("torch.")
    plain, glu = build_activation("xielu"), build_activation("swiglu")
    for call in (lambda: plain(x), lambda: glu(x, x)):
        with pytest.raises(ConfigError, match=rf"the input is \({size},\) {told}, and activations"):
            call()


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_sharded_tensor_stays_sharded_in_compiled_code(one_process: None) -> None:
    mesh = init_device_mesh("cpu", (1,))
    module = build_activation("silu")
    assert isinstance(module, Activation)
    local = torch.linspace(-3, 3, 90000).reshape(300, 300)
    found = []
    for call in (module, torch.compile(module, backend="aot_eager", fullgraph=True)):
        x = distribute_tensor(local, mesh, [Shard(0)]).requires_grad_()
        y = call(x)
        y.sum().backward()
        assert isinstance(y, DTensor) and x.grad is not None
        found.append([y.to_local(), x.grad.to_local()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
