"""Fused passes: what they compute, in which order they add, and what they do beside autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from stamm.activations import catalog
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.fused import build, cpu, direct, operation
from stamm.activations.fused.graph import Graph, Node, Traced
from stamm.activations.fused.passes import graph_of
from stamm.activations.module import Activation, GatedActivation, build_activation
from stamm.activations.module.ops import _computing, _operations
from stamm.base.errors import ConfigError

pytestmark = pytest.mark.skipif(
    build.unavailable_reason() is not None, reason=f"no CPU kernels: {build.unavailable_reason()}"
)
XIELU = catalog.get("xielu")
KERNEL = kernel_of(XIELU)
FIXED = (None, None, 0.5)
GENERATOR = torch.Generator().manual_seed(3)


def _normal(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 2.0) -> Tensor:
    return (scale * torch.randn(*shape, generator=GENERATOR)).to(dtype)


def _plain(name: str = "xielu", **options: object) -> Activation:
    made = build_activation(name, **options)  # type: ignore[arg-type]
    assert isinstance(made, Activation)
    return made


def _gated(name: str, **options: object) -> GatedActivation:
    made = build_activation(name, **options)  # type: ignore[arg-type]
    assert isinstance(made, GatedActivation)
    return made


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_kernel_of_the_catalogue_can_be_written_down() -> None:
    for spec in catalog.ENTRIES:
        kernel = kernel_of(spec)
        fixed = tuple(None if p.trainable else p.initial for p in spec.parameters)
        for dtype in (torch.float32, torch.float64):
            graph = graph_of("gated_backward", kernel, fixed, dtype)
            assert len(graph.outputs) == 2 and len(graph.sums) == len(spec.trainable)
            for place, node in enumerate(graph.nodes):
                assert all(taken < place for taken in node.takes)


def test_what_cannot_be_written_down_is_refused() -> None:
    graph = Graph(dtype=torch.float32, inputs=1)
    x = graph.add(Node("input"))
    with pytest.raises(ConfigError, match=r"torch\.cumsum has no fused form"):
        torch.cumsum(x, 0)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="branches on the value"):
        bool(x > 0.0)
    assert isinstance(torch.exp(x), Traced)  # type: ignore[arg-type]
    assert (x * 0.0).place != (x * -0.0).place


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1,), (513,), (8192 + 17,), (3, 700), (2, 3, 5)])
def test_a_pass_is_the_eager_form_whatever_the_shape(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x, weight = _normal(*shape, dtype=dtype), _normal(*shape, dtype=dtype)
    parameters = [torch.tensor([0.8]), torch.tensor([1.7])]
    computing = _computing(x, True)
    eager = _operations(KERNEL, FIXED, True)
    y, g = (torch.full_like(x, float("nan")) for _ in range(2))
    assert cpu.run("forward", KERNEL, FIXED, computing, [x], [y], parameters) == []
    sums = cpu.run("backward", KERNEL, FIXED, computing, [weight, x], [g], parameters)
    gradient, *expected = eager.plain_gradients(weight, [x], parameters)
    step = 2 * torch.finfo(dtype).eps
    assert torch.allclose(y, eager.plain(x, *parameters), rtol=step, atol=1e-9)
    assert torch.allclose(g, gradient, rtol=step, atol=1e-9)
    for found, wanted in zip(sums, expected, strict=True):
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        scale = weight.double().abs().sum() * x.double().abs().max() ** 2
        assert abs(found - wanted) <= 1e-7 * scale


def test_nothing_comes_of_nothing() -> None:
    module = _plain()
    for shape in ((0, 5), (8, 0), (0,)):
        none = torch.empty(shape, requires_grad=True)
        module(none).sum().backward()
        assert none.grad is not None and none.grad.shape == shape
        assert [p.grad.tolist() for p in module.parameters()] == [[0.0], [0.0]]  # type: ignore[union-attr]
    x = torch.empty(0, 5)
    assert (
        cpu.run("forward", KERNEL, FIXED, torch.float32, [x], [x.clone()], [torch.ones(1)] * 2)
        == []
    )
    sums = cpu.run(
        "backward", KERNEL, FIXED, torch.float32, [x, x], [x.clone()], [torch.ones(1)] * 2
    )
    assert [s.tolist() for s in sums] == [[0.0], [0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_do_not_depend_on_threads_or_layout(dtype: torch.dtype, threads: None) -> None:
    x, weight = _normal(130, 1000, dtype=dtype), _normal(130, 1000, dtype=dtype)
    wide, wide_weight = _normal(130, 2, 1000, dtype=dtype), _normal(1000, 130, dtype=dtype)
    wide[:, 1], wide_weight[:] = x, weight.t()
    found = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        for given, into in ((x, weight), (wide[:, 1], wide_weight.t())):
            module = _plain()
            leaf = given.detach().requires_grad_()
            y = module(leaf)
            y.backward(into)
            assert leaf.grad is not None
            found.append([y, leaf.grad, *(p.grad for p in module.parameters())])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_fixed_shapes_have_no_sums() -> None:
    x, weight = _normal(3, 700), _normal(3, 700)
    found = []
    for fixed, given in ((FIXED, [torch.tensor([0.75])] * 2), ((0.75, 0.75, 0.5), [])):
        g = torch.empty_like(x)
        sums = cpu.run("backward", KERNEL, fixed, torch.float64, [weight, x], [g], given)
        assert len(sums) == len(given)
        found.append(g)
    assert torch.equal(*found)
    with pytest.raises(ConfigError, match="1 parameters are read at run time, and 2 have slopes"):
        graph_of("backward", KERNEL, (None, 0.8, 0.5), torch.float32)


def test_every_neuron_may_have_its_own_shape() -> None:
    x, weight = _normal(300, 700), _normal(300, 700)
    module = _plain(neurons=700)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(_normal(700, scale=0.3))
    x.requires_grad_()
    y = module(x)
    y.backward(weight)
    values = module.effective_tensors()
    eager = _operations(KERNEL, FIXED, True)
    gradient, *sums = eager.plain_gradients(weight, [x.detach()], values)
    assert torch.allclose(y, eager.plain(x, *values), rtol=1e-6)
    assert x.grad is not None and torch.allclose(x.grad, gradient, rtol=1e-6)
    into = torch.autograd.grad(module.effective_tensors(), list(module.parameters()), sums)
    for parameter, wanted in zip(module.parameters(), into, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["xielu_glu", "swiglu", "swiglu_oai", "fatrelu_glu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gate_and_up_in_one_tensor_or_in_two(name: str, dtype: torch.dtype) -> None:
    module = _gated(name)
    both, weight = _normal(80, 1024, dtype=dtype), _normal(80, 512, dtype=dtype)
    layout = module.spec.arity.layout  # type: ignore[union-attr]
    halves = {
        "gate_first": lambda t: (t[:, :512], t[:, 512:]),
        "up_first": lambda t: (t[:, 512:], t[:, :512]),
        "interleaved": lambda t: (t[:, ::2], t[:, 1::2]),
    }[layout]
    one = both.clone().requires_grad_()
    y = module.of_fused(one)
    y.backward(weight)
    gate, up = (t.clone().requires_grad_() for t in halves(both))
    module.zero_grad()
    z = module(gate, up)
    z.backward(weight)
    assert one.grad is not None and torch.equal(y, z)
    for found, wanted in zip(halves(one.grad), (gate.grad, up.grad), strict=True):
        assert torch.equal(found, wanted)
    kernel = kernel_of(module.spec)
    fixed = tuple(None if p.trainable else p.initial for p in module.spec.parameters)
    eager = _operations(kernel, fixed, True)
    values = module.effective_tensors()
    step = 2 * torch.finfo(dtype).eps
    assert torch.allclose(z, eager.gated(gate, up, *values), rtol=step, atol=1e-7)
    wanted = eager.gated_gradients(weight, [gate.detach(), up.detach()], values)
    assert torch.allclose(gate.grad, wanted[0], rtol=step, atol=1e-6)  # type: ignore[arg-type]
    assert torch.allclose(up.grad, wanted[1], rtol=step, atol=1e-6)  # type: ignore[arg-type]


def test_one_tensor_is_kept_for_backward() -> None:
    kept: list[Tensor] = []
    x = _normal(200, 512, dtype=torch.bfloat16).requires_grad_()
    module = _plain()

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(x)
    large = [t for t in kept if t.numel() > 2]
    assert [t.data_ptr() for t in large] == [x.data_ptr()]


def test_second_derivatives_are_those_of_the_eager_form() -> None:
    module = _plain()
    x = _normal(40, 1000).requires_grad_()
    (first,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    second = torch.autograd.grad(first.pow(2).sum(), [x, *module.parameters()])
    small = x.detach()[:1].requires_grad_()
    (near,) = torch.autograd.grad(module(small).sum(), small, create_graph=True)
    (expected,) = torch.autograd.grad(near.pow(2).sum(), small)
    assert torch.allclose(second[0][:1], expected, rtol=1e-6)
    assert all(torch.isfinite(g).all() for g in second)


def test_transforms_of_torch_func_take_the_eager_form() -> None:
    module = _plain()
    x, tangent = _normal(40, 1000), _normal(40, 1000)
    assert torch.equal(torch.vmap(module)(x), torch.stack([module(row) for row in x]))
    gradient = torch.func.grad(lambda t: module(t).sum())(x)
    assert torch.allclose(
        gradient, torch.autograd.functional.jacobian(lambda t: module(t).sum(), x)
    )
    value, slope = torch.func.jvp(module, (x,), (tangent,))
    assert torch.allclose(value, module(x), rtol=1e-6)
    assert torch.allclose(slope, tangent * gradient, rtol=1e-5, atol=1e-6)


def test_the_operations_pass_torchs_own_checks() -> None:
    module = _plain()
    form = _form_of(module)
    x, values = _normal(64, 1024), [v.detach() for v in module.effective_tensors()]
    torch.library.opcheck(torch.ops.stamm.activation, ([x], values, form))
    torch.library.opcheck(torch.ops.stamm.activation, ([x[:2]], values, form))
    torch.library.opcheck(torch.ops.stamm.activation_gradients, (x, [x], values, form))


def _form_of(module: Activation) -> str:
    kernel = module._kernel
    found = [n for n, form in operation._FORMS.items() if form.kernel is kernel and form.exact]
    return found[0]


@pytest.mark.parametrize("rows", [4, 100])
def test_a_compiled_graph_is_whole_and_gives_the_same_bits(rows: int) -> None:
    torch.compiler.reset()
    module = _plain()
    x, weight = _normal(rows, 1024), _normal(rows, 1024)
    found = []
    for call in (module, torch.compile(module, fullgraph=True)):
        module.zero_grad()
        leaf = x.clone().requires_grad_()
        y = call(leaf)
        y.backward(weight)
        found.append([y.detach(), leaf.grad, *(p.grad for p in module.parameters())])
    for eager, compiled in zip(*found, strict=True):
        assert torch.equal(eager, compiled)


def test_activation_checkpointing_gives_the_same_bits() -> None:
    module = _plain()
    x = _normal(64, 1024).requires_grad_()
    plain = torch.autograd.grad(module(x).sum(), [x, *module.parameters()])
    again = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)
    for a, b in zip(
        plain, torch.autograd.grad(again.sum(), [x, *module.parameters()]), strict=True
    ):
        assert torch.equal(a, b)


def _as_eager(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> tuple[object, object]:
    """What a call gives with fused passes, and without."""
    fused = call()
    with monkeypatch.context() as patch:
        patch.setattr(operation, "has_backend", lambda x: False)
        patch.setattr(direct.DirectCalls, "kernel", lambda *_: None)
        return fused, call()


def test_the_history_and_hooks_of_an_input_are_its_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    glu, weight = _gated("swiglu"), _normal(64, 1024)

    def first(ways: Callable[[Tensor], tuple[Tensor, Tensor]], hook: bool) -> Callable[[], Tensor]:
        def call() -> Tensor:
            leaf = torch.linspace(-3, 3, 64 * 1024).reshape(64, 1024).requires_grad_()
            if hook:
                leaf.register_hook(lambda gradient: 3 * gradient)
            y = glu(*ways(leaf))
            (found,) = torch.autograd.grad(y, leaf, weight, create_graph=True)
            (again,) = torch.autograd.grad(found.sum(), leaf)
            return torch.stack([found.detach(), again])

        return call

    for ways in (lambda t: (t, t), lambda t: (t, 2 * t)):
        for hook in (False, True):
            fused, eager = _as_eager(first(ways, hook), monkeypatch)
            assert torch.allclose(fused, eager, rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]


def test_a_tangent_of_any_input_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    glu, act = _gated("swiglu"), _plain()
    x, tangent = _normal(64, 1024), _normal(64, 1024)

    def up_only() -> Tensor:
        return torch.func.jvp(lambda u: glu(x, u), (x,), (tangent,))[1]

    def parameters() -> Tensor:
        values = {n: p.detach() for n, p in act.named_parameters()}
        move = {n: torch.ones_like(p) for n, p in values.items()}
        return torch.func.jvp(
            lambda p: torch.func.functional_call(act, p, (x,)), (values,), (move,)
        )[1]

    def many() -> Tensor:
        return torch.vmap(lambda u: glu(x, u))(torch.stack([x, tangent]))

    def batched() -> Tensor:
        leaf = x.clone().requires_grad_()
        y = act(leaf)
        both = torch.stack([x, tangent])
        return torch.autograd.grad(y, leaf, both, is_grads_batched=True)[0]

    for call in (up_only, parameters, many, batched):
        fused, eager = _as_eager(call, monkeypatch)
        assert torch.allclose(fused, eager, rtol=1e-5, atol=1e-6)  # type: ignore[arg-type]
        assert fused.abs().max() > 0  # type: ignore[attr-defined]


def test_tensors_on_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="device"):
        _plain().to("meta")(_normal(64, 1024))


@pytest.mark.parametrize("size", [4, 64, 600], ids=["small", "fused", "cached"])
@pytest.mark.parametrize("name", ["xielu", "swiglu"])
def test_permuted_dense_layouts_are_kept(name: str, size: int) -> None:
    """channels_last, a transposed matrix and a permuted tensor: values, gradients, strides, in place."""
    activation = build_activation(name)
    shapes = {
        "channels_last": _normal(2, 5, size, size).contiguous(memory_format=torch.channels_last),
        "transposed": _normal(2 * size, 3 * size).T,
        "permuted": _normal(3, size, 7, size).permute(2, 0, 3, 1),
        "gaps": _normal(2, 5, size, 2 * size)[..., ::2].transpose(1, 2),
    }
    for layout, x in shapes.items():
        inputs = [x, (x + 1).to(x.dtype)] if isinstance(activation, GatedActivation) else [x]
        given = [t.detach().requires_grad_() for t in inputs]
        weight = torch.ones_like(x)
        y = activation(*given)
        gradients = torch.autograd.grad(y, given, weight)
        flat = [t.detach().contiguous().requires_grad_() for t in inputs]
        same = activation(*flat)
        assert torch.equal(y, same), layout
        weight = weight.contiguous()  # another layout than the result's
        for gradient, expected in zip(
            gradients, torch.autograd.grad(same, flat, weight), strict=True
        ):
            assert torch.equal(gradient, expected), layout
            if layout != "gaps":
                assert gradient.stride() == x.stride(), layout
        with torch.no_grad():
            alone = activation(*inputs)
        assert torch.equal(alone, same), layout
        if layout != "gaps":
            assert y.stride() == alone.stride() == x.stride(), layout
        activation(*given).add_(1).sum().backward()


def test_a_shape_for_each_column_is_that_of_the_last_axis_in_any_layout() -> None:
    activation = build_activation("xielu", neurons=64)
    x = _normal(2, 33, 16, 64).permute(0, 2, 1, 3)
    assert torch.equal(activation(x), activation(x.contiguous()))


@pytest.mark.parametrize("rows", [10, 1000, 4096])
def test_a_result_may_be_changed_in_place(rows: int) -> None:
    x = _normal(rows, 1024).requires_grad_()
    y = _plain("silu")(x)
    y.mul_(2)
    y.sum().backward()
    assert x.grad is not None and not y._is_view()


SIGNED = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["gelu_tanh", "gelu", "silu", "mish"])
def test_signs_of_zeros_are_those_of_the_eager_form(name: str, dtype: torch.dtype) -> None:
    """gelu_tanh(-inf) is the limit of x times a probability from below: -0."""
    kernel = kernel_of(catalog.get(name))
    fixed = tuple(p.initial for p in catalog.get(name).parameters)
    largest = torch.finfo(dtype).max
    x = torch.cat([SIGNED, torch.tensor([largest, -largest])]).to(dtype)
    eager, computing = _operations(kernel, fixed, True), _computing(x, True)
    value, slope = torch.empty_like(x), torch.empty_like(x)
    cpu.run("forward", kernel, fixed, computing, [x], [value], [])
    cpu.run("backward", kernel, fixed, computing, [torch.ones_like(x), x], [slope], [])
    for found, true in (
        (value, eager.plain(x)),
        (slope, eager.plain_gradients(torch.ones_like(x), [x], [])[0]),
    ):
        torch.testing.assert_close(found, true, equal_nan=True)
        kept = ~true.isnan()
        assert torch.equal(found.signbit()[kept], true.signbit()[kept])
    if name == "gelu_tanh":
        assert value[3] == 0 and value[3].signbit()


def test_nested_transforms_take_the_eager_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one number, inside a call that would be fused: the transforms are told apart from it."""
    act, x = _plain("silu"), _normal(64, 1024)

    def at(t: Tensor) -> Tensor:
        return act(x + t)[0, 0]

    def nested() -> Tensor:
        zero = torch.zeros(())
        return torch.stack([
            torch.func.jacrev(torch.func.jacfwd(at))(zero),
            torch.func.jacrev(torch.func.jacrev(at))(zero),
            *torch.vmap(torch.func.grad(at))(torch.tensor([0.0, 1.0])),
        ])  # fmt: skip

    fused, eager = _as_eager(nested, monkeypatch)
    assert torch.allclose(fused, eager, rtol=1e-5, atol=1e-7)  # type: ignore[arg-type]
    curvature = kernel_of(catalog.get("silu")).curvatures(x[0, 0].double(), ())[0]
    assert torch.allclose(fused[:2].double(), curvature, rtol=1e-5)  # type: ignore[index]


def test_what_is_exported_knows_no_operation_of_ours() -> None:
    exported = torch.export.export(_plain(), (_normal(64, 1024),))
    assert "stamm" not in str(exported.graph)


def test_hessians_take_the_eager_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward over reverse, of a call that would be fused."""
    act, x = _plain(), _normal(64, 1024)

    def at(t: Tensor) -> Tensor:
        return act(x * t)[0, :3].pow(2).sum()

    def hessian() -> Tensor:
        one = torch.ones(1024)
        product = torch.func.jvp(torch.func.grad(at), (one,), (one,))[1]
        return torch.cat([product[:3], torch.func.hessian(lambda t: at(t * one))(one[:1])[0]])

    fused, eager = _as_eager(hessian, monkeypatch)
    reverse = torch.func.jacrev(torch.func.jacrev(lambda t: at(t * torch.ones(1024))))
    assert torch.equal(fused, eager)  # type: ignore[arg-type]
    assert torch.allclose(fused[3], reverse(torch.ones(1))[0, 0], rtol=1e-5)  # type: ignore[index]
    assert torch.allclose(fused[:3].sum(), fused[3], rtol=1e-5)  # type: ignore[index]


def test_a_third_derivative_is_an_error_in_forward_mode_too() -> None:
    act = _plain("silu")
    hessian = torch.func.hessian(lambda t: act(t).sum())
    with pytest.raises(RuntimeError, match="the third derivative"):
        torch.func.jacfwd(hessian)(torch.ones(2))
