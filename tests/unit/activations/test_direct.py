"""Eager calls on a CPU by one operation: the bits of the general way, with a bounded number of calls."""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from stamm.activations.fused import build, direct, operation
from stamm.activations.fused.direct import effective_tensors
from stamm.activations.fused.memory import fresh
from stamm.activations.module import Activation, GatedActivation, build_activation, xielu
from stamm.activations.spec.parameters import (
    Absolute,
    Between,
    Exp,
    Fixed,
    Identity,
    Parameter,
    ParameterMaps,
    Softplus,
)
from stamm.base.errors import ConfigError, RunError

needs_compiler = pytest.mark.skipif(
    build.unavailable_reason() is not None, reason=f"no CPU kernels: {build.unavailable_reason()}"
)
GENERATOR = torch.Generator().manual_seed(5)


def _normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (2 * torch.randn(*shape, generator=GENERATOR)).to(dtype)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first call on."""
    monkeypatch.setattr(direct, "WORTH_COMPILING", 0)
    assert direct._operation() is not None


def _general(module: Activation | GatedActivation, layout: str, *inputs: Tensor) -> Tensor:
    return module._operations[layout](*inputs, *module.effective_tensors())


def _results(
    module: Activation | GatedActivation,
    call: Callable[..., Tensor],
    inputs: list[Tensor],
    weight: Tensor,
) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in inputs]
    y = call(*leaves)
    gradients = torch.autograd.grad(y, [*leaves, *module.parameters()], weight)
    with torch.no_grad():
        return [y, call(*leaves), *gradients]


@pytest.mark.parametrize("raw", [-30.0, -1.5, 0.3, 45.0])
def test_maps_of_numbers_are_those_of_tensors_with_their_slopes(raw: float) -> None:
    parameters = (
        Parameter(name="a", initial=1.0, bijection=Softplus(above="b")),
        Parameter(name="b", initial=0.7, bijection=Between(low=-1.0, high=2.0)),
        Parameter(name="c", initial=2.0, bijection=Exp(above="a")),
        Parameter(name="d", initial=2.0, bijection=Absolute(above="e")),
        Parameter(name="e", initial=2.0, bijection=Identity()),
        Parameter(name="f", initial=0.5, bijection=Fixed()),
        Parameter(name="g", initial=1.0, bijection=Softplus(above="f")),
        Parameter(name="h", initial=1.0, bijection=Softplus(above="0.25")),
    )
    maps = ParameterMaps(parameters)
    stored = [raw + place / 8 for place in range(len(maps.trainable))]
    values, slopes = maps(stored)
    leaves = {
        p.name: torch.tensor([number], dtype=torch.float64, requires_grad=True)
        for p, number in zip(maps.trainable, stored, strict=True)
    }
    wanted = effective_tensors(parameters, leaves)
    for row, (value, tensor) in enumerate(zip(values, wanted, strict=True)):
        assert value == pytest.approx(tensor.item(), rel=1e-14)
        found = slopes[row * len(stored) : (row + 1) * len(stored)]
        true = torch.autograd.grad(tensor, list(leaves.values()), allow_unused=True)
        for slope, gradient in zip(found, true, strict=True):
            assert slope == pytest.approx(0.0 if gradient is None else gradient.item(), rel=1e-13)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["xielu", "silu", "swiglu"])
def test_bits_are_those_of_the_general_way(name: str, dtype: torch.dtype, compiled: None) -> None:
    module = build_activation(name)
    gated = isinstance(module, GatedActivation)
    given = {
        "one": _normal(1, dtype=dtype),
        "odd": _normal(3, 7, 25, dtype=dtype),
        "long": _normal(90, 1024, dtype=dtype),
        "channels_last": _normal(2, 5, 9, 9, dtype=dtype).contiguous(
            memory_format=torch.channels_last
        ),
        "gaps": _normal(6, 40, dtype=dtype)[:, ::2],
        "none": _normal(0, 4, dtype=dtype),
    }
    layout = "apart" if gated else "plain"
    for label, x in given.items():
        inputs = [x, (x + 1).to(dtype)] if gated else [x]
        weight = _normal(*x.shape, dtype=dtype)  # row-major, whatever x is
        found = _results(module, module, inputs, weight)
        wanted = _results(module, lambda *t: _general(module, layout, *t), inputs, weight)
        for ours, theirs in zip(found, wanted, strict=True):
            assert torch.equal(ours, theirs), label
            assert ours.stride() == theirs.stride() and ours.dtype == theirs.dtype, label
    if isinstance(module, GatedActivation):
        both = _normal(6, 2 * 20, dtype=dtype)
        weight = _normal(6, 20, dtype=dtype)
        held = module.spec.arity.layout  # type: ignore[union-attr]
        found = _results(module, module.of_fused, [both], weight)
        wanted = _results(module, lambda t: _general(module, held, t), [both], weight)
        assert all(map(torch.equal, found, wanted))


@needs_compiler
def test_calls_use_the_operation_and_others_the_general_way(
    compiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    direct_operation = direct._operation()
    assert direct_operation is not None

    def count(*arguments: Any) -> Tensor:
        used.append(1)
        return direct_operation(*arguments)

    monkeypatch.setattr(direct, "_operation", lambda: count)
    module, x = xielu(), _normal(4, 8)
    module(x)
    module.frozen()(x)
    with torch.no_grad():
        module(x)
        module.frozen()(x)
    assert len(used) == 3  # frozen activations are for decoding, where nothing is differentiated
    torch.vmap(module)(x)
    torch.func.grad(lambda t: module(t).sum())(x)
    module(x.double())
    xielu(neurons=8)(x)
    xielu(compat="eps")(x)
    operation.use_eager(module.forms, eager=True)
    module(x)
    operation.use_eager(module.forms, eager=False)
    assert len(used) == 3


@needs_compiler
def test_a_parameter_that_changes_is_read_at_the_next_call(compiled: None) -> None:
    """Also where its version counter does not show it."""
    module, x = xielu(), _normal(10)
    before = module(x)
    module.get_parameter("alpha_p").data.fill_(3.0)
    assert torch.equal(module(x), _general(module, "plain", x))
    assert not torch.equal(module(x), before)


@needs_compiler
def test_gradients_of_gradients_and_of_many_weights(compiled: None) -> None:
    module = xielu()
    x, weights = _normal(12).requires_grad_(), _normal(3, 12)
    leaves = [x, *module.parameters()]
    for call in (module, lambda t: _general(module, "plain", t)):
        first = torch.autograd.grad(call(x), leaves, weights[0], create_graph=True)
        squares = torch.stack([g.square().sum() for g in first])
        second = torch.autograd.grad(squares.sum(), leaves)
        many = torch.autograd.grad(call(x), leaves, weights, is_grads_batched=True)
        tangent = torch.autograd.forward_ad
        with tangent.dual_level():
            moved = tangent.unpack_dual(call(tangent.make_dual(x.detach(), weights[1]))).tangent
        if call is module:
            found = [*first, *second, *many, moved]
        else:
            for ours, theirs in zip(found, [*first, *second, *many, moved], strict=True):
                assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-7)


@needs_compiler
def test_sums_beyond_float32_are_computed_again(compiled: None) -> None:
    module = xielu()
    x = torch.full((64,), 1e19, dtype=torch.bfloat16)
    weight = torch.tensor([1.0, -1.0] * 32, dtype=torch.bfloat16)
    found = _results(module, module, [x], weight)
    wanted = _results(module, lambda t: _general(module, "plain", t), [x], weight)
    assert all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(found, wanted, strict=True)
    )
    assert found[-2].isfinite().all()


@needs_compiler
def test_autograd_knows_the_call_as_any_other(compiled: None) -> None:
    module = xielu()
    x = _normal(4, 6).requires_grad_()
    module(x).sum().backward()  # a weight that is one number
    assert x.grad is not None
    assert torch.equal(x.grad, torch.autograd.grad(_general(module, "plain", x).sum(), x)[0])
    y = module(x)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    moved = x * 1
    y = module(moved)
    moved.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    module(x).add_(1).sum().backward()
    with pytest.raises(ConfigError, match="gate is"):
        build_activation("swiglu")(_normal(3), _normal(4))


@pytest.fixture
def events() -> Iterator[Callable[[Callable[[], object]], int]]:
    """How many functions of Python and C a call enters."""

    def count(call: Callable[[], object]) -> int:
        seen = 0

        def saw(frame: object, event: str, argument: object) -> None:
            nonlocal seen
            seen += event in ("call", "c_call")

        call()
        sys.setprofile(saw)
        try:
            call()
        finally:
            sys.setprofile(None)
        return seen

    yield count
    sys.setprofile(None)


@needs_compiler
@pytest.mark.parametrize(("name", "most"), [("silu", 40), ("swiglu", 45), ("xielu", 100)])
def test_a_call_enters_few_functions(
    name: str, most: int, compiled: None, events: Callable[[Callable[[], object]], int]
) -> None:
    """What a small tensor costs; the general way of xielu enters 300 and 30 operations of torch."""
    module = build_activation(name)
    inputs = [_normal(16).requires_grad_() for _ in range(1 + isinstance(module, GatedActivation))]
    assert events(lambda: module(*inputs)) <= most


@needs_compiler
def test_a_checkpointed_call_and_its_recomputation_save_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the process has called often enough between the two."""
    assert direct._operation() is not None
    monkeypatch.setattr(direct, "_is_built", lambda: False)
    monkeypatch.setattr(direct, "WORTH_COMPILING", 3)
    monkeypatch.setattr(direct, "_CALLED", itertools.count(1))
    module, x = xielu(), _normal(3, 4).requires_grad_()
    calls = direct.DirectCalls(module._operations["plain"], module.spec.parameters)
    module._direct = {"plain": calls}
    for _ in range(6):
        checkpoint(module, x, use_reentrant=False).sum().backward()
        module(x).sum().backward()
    assert calls._kernels[x.dtype] is not None
    with FlopCounterMode(display=False):
        y = checkpoint(module, x, use_reentrant=False)
    y.sum().backward()


@needs_compiler
def test_effective_values_have_the_bits_of_the_general_way(compiled: None) -> None:
    """So that a process has the same results before and after its 256th call."""
    module = xielu()
    calls = module._direct["plain"]
    for raw in torch.linspace(-6, 45, 300).tolist():
        module.load_values({"alpha_p": raw, "alpha_n": raw / 3}, raw=True)
        stored = [p.detach().double() for p in module.parameters()]
        values, _ = calls._mapped(b"".join(t.numpy().tobytes() for t in stored))
        assert values == [t.item() for t in module.effective_tensors()]


@needs_compiler
def test_frozen_calls_that_the_operation_does_not_support(compiled: None) -> None:
    module, x = xielu(), _normal(6, 8)
    call = module.frozen()
    tangent = torch.autograd.forward_ad
    with torch.no_grad(), tangent.dual_level():
        assert torch.equal(call(torch._neg_view(x)), call(-x))
        moved = tangent.unpack_dual(call(tangent.make_dual(x, x))).tangent
    leaf = x.clone().requires_grad_()
    slope = torch.autograd.grad(module(leaf).sum(), leaf)[0]
    assert moved is not None and torch.allclose(moved, x * slope)


@needs_compiler
def test_inputs_whose_data_were_replaced_before_the_backward(compiled: None) -> None:
    """The kernel reads memory of one dtype and size; autograd saves a leaf itself, not its data."""
    module = build_activation("silu")
    x = _normal(2**12).requires_grad_()
    (wanted,) = torch.autograd.grad(module(x).sum(), x)
    y = module(x)
    x.data = x.data.bfloat16()
    y.sum().backward()
    assert x.grad is not None and torch.allclose(x.grad.float(), wanted, atol=0.02)
    x = _normal(3).requires_grad_()
    y = module(x)
    x.data = torch.zeros(2**26)  # far more than the weights that are given
    with pytest.raises(RuntimeError, match="must match"):
        y.backward(torch.ones(3))


@needs_compiler
def test_graphs_traced_before_autograd_follow_the_parameters(compiled: None) -> None:
    module, x = xielu(), _normal(10)
    graph = make_fx(lambda t: module(t), pre_dispatch=True)(x)
    module.load_values({"alpha_p": 3.0}, raw=True)
    assert torch.allclose(graph(x), module(x))


@needs_compiler
@pytest.mark.parametrize("neurons", [None, 8])
def test_another_default_device_changes_nothing(neurons: int | None, compiled: None) -> None:
    module, x = xielu(neurons=neurons), _normal(6, 16)[:, ::2]
    frozen = module.frozen()
    with torch.no_grad():
        wanted = module(x)
        with torch.device("meta"):
            assert torch.equal(module(x), wanted)
            assert torch.equal(frozen(x), wanted)
            assert fresh((2, 3), torch.float32).is_cpu


@needs_compiler
def test_an_unknown_kernel_is_an_error(compiled: None) -> None:
    call = direct._operation()
    assert call is not None
    for number in (-1, 10**6):
        with pytest.raises(RuntimeError, match="no kernel has the number"):
            call([_normal(3)], [], [], [], number)


@needs_compiler
def test_a_prepared_process_uses_the_operation_from_its_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = direct._is_built.__wrapped__
    monkeypatch.setattr(direct, "_is_built", functools.cache(built))
    monkeypatch.setattr(direct, "WORTH_COMPILING", sys.maxsize)
    place = build.folder()
    with monkeypatch.context() as patch:
        patch.setattr(build, "folder", lambda: None)
        assert not direct._is_built()  # as in a process that begins before anything is compiled
    assert place is not None and not direct._is_built()
    direct.prepare()
    assert direct._is_built()
    module, x = xielu(), _normal(5).requires_grad_()
    calls = direct.DirectCalls(module._operations["plain"], module.spec.parameters)
    module._direct = {"plain": calls}
    module(x)
    assert calls._kernels[x.dtype] is not None


def test_operators_are_registered_once_whatever_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch ends a process that registers one twice: the object is not loaded again from another folder."""
    assert direct._operation() is not None
    text = Path(direct.__file__).with_name("direct.cpp").read_text()
    before = build.function(text, "add_kernel", torch_headers=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.function.cache_clear()
    after = build.function(text, "add_kernel", torch_headers=True)
    address = ctypes.c_void_p
    assert ctypes.cast(after, address).value == ctypes.cast(before, address).value
    assert not list(tmp_path.rglob("*.so"))


class _Compiler:
    """A compiler of `direct.cpp` that ends when it is told to; the shared object is the true one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: RunError | None = None) -> None:
        self.may_end, self.calls, self.said = threading.Event(), 0, list[str]()
        self.started = threading.Event()
        self._true = build.compiled
        self._error = error
        assert direct._operation() is not None  # the shared object exists
        for name in ("_background", "_operation", "_is_built"):
            monkeypatch.setattr(direct, name, functools.cache(getattr(direct, name).__wrapped__))
        monkeypatch.setattr(direct, "WORTH_COMPILING", 4)
        monkeypatch.setattr(direct, "_CALLED", itertools.count(1))
        monkeypatch.setattr(direct, "report_once", self.said.append)
        monkeypatch.setattr(build, "compiled", self._compiled)
        monkeypatch.setattr(build, "is_built", lambda *_, **__: self.may_end.is_set())
        build.function.cache_clear()
        monkeypatch.setattr(build, "_LOADED", {})

    def _compiled(self, source: str, *, torch_headers: bool = False) -> Path:
        if not torch_headers:  # a kernel
            return self._true(source)
        self.calls += 1
        self.started.set()
        assert self.may_end.wait(60)
        if self._error is not None:
            raise self._error
        return self._true(source, torch_headers=torch_headers)


def _fresh_module() -> tuple[Activation, direct.DirectCalls]:
    module = xielu()
    calls = direct.DirectCalls(module._operations["plain"], module.spec.parameters)
    module._direct = {"plain": calls}
    return module, calls


@needs_compiler
def test_calls_without_training_go_on_while_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """And have the same bits before and after."""
    compiler = _Compiler(monkeypatch)
    module, calls = _fresh_module()
    x = _normal(3, 40)
    wanted = _general(module, "plain", x)
    with torch.no_grad():
        for _ in range(20):
            assert torch.equal(module(x), wanted)
        assert compiler.started.wait(60)
        assert torch.equal(module(x), wanted)
        assert compiler.calls == 1 and not calls._kernels  # it still compiles
        compiler.may_end.set()
        direct._background().join(60)
        assert torch.equal(module(x), wanted)
    assert calls._kernels[x.dtype] is not None and compiler.said == []


@needs_compiler
def test_calls_that_train_change_at_a_fixed_call_which_waits_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler = _Compiler(monkeypatch)
    module, calls = _fresh_module()
    x = _normal(3, 40)
    for number in range(1, 5):
        module(x)
        assert not calls._kernels, number
    threading.Timer(0.5, compiler.may_end.set).start()
    module(x)
    assert compiler.may_end.is_set() and calls._kernels[x.dtype] is not None
    assert len(compiler.said) == 1 and "once for this machine" in compiler.said[0]


@needs_compiler
def test_a_compilation_that_fails_in_the_background_is_reported_once_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler = _Compiler(monkeypatch, RunError("c++ does not compile a kernel"))
    module, calls = _fresh_module()
    x = _normal(5)
    with torch.no_grad():
        for _ in range(6):
            module(x)
        compiler.may_end.set()
        direct._background().join(60)
        for _ in range(3):
            assert torch.equal(module(x), _general(module, "plain", x))
    assert compiler.calls == 1 and calls._kernels == {x.dtype: None}
    assert len(compiler.said) == 1 and "slower than they could be" in compiler.said[0]


@needs_compiler
def test_a_compiler_in_the_background_ends_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the exit nor a process left behind takes the seconds of the compiler."""
    compiler, started = tmp_path / "c++", tmp_path / "started"
    compiler.write_text(
        f"#!/bin/sh\necho $$ > {started}.part && mv {started}.part {started}\nexec sleep 600\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setattr(build, "_compiler", lambda: str(compiler))
    monkeypatch.setattr(build, "_version", lambda compiler: "")
    monkeypatch.setattr(build, "folder", lambda: tmp_path / "cache")
    left: list[Callable[[], object]] = []
    monkeypatch.setattr(direct.atexit, "register", left.append)
    compilation = direct._background.__wrapped__()
    while not started.exists():
        time.sleep(0.02)
    process = Path(f"/proc/{int(started.read_text())}")
    assert compilation.is_alive() and process.exists()
    for function in left:  # what the end of the process calls
        function()
    assert not compilation.is_alive() and not process.exists()
    assert not [*(tmp_path / "cache").rglob("*.part"), *(tmp_path / "cache").rglob("*.so")]


@needs_compiler
def test_an_input_that_is_nan_reaches_the_gradient_of_every_parameter(compiled: None) -> None:
    """Also of one whose slope is 0, as the derivative of softplus at -800."""
    module, x = xielu(), torch.full((8,), torch.nan)
    module.load_values({"alpha_p": -800.0}, raw=True)
    for call in (module, lambda t: _general(module, "plain", t)):
        gradients = torch.autograd.grad(call(x).sum(), list(module.parameters()))
        assert all(g.isnan().all() for g in gradients)
