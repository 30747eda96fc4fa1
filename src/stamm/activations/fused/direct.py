"""Eager calls on a CPU as one operation of C++: `stamm::direct`, for tensors of any size.

It computes with the kernels of `cpu.py`, so the bits of results and of gradients in the inputs are
those of `stamm::activation`; gradients in stored numbers differ by a rounding of float64 before
theirs. In Python are the checks that no transform or trace needs to see torch's own functions, and
the maps of the shape parameters from the numbers they hold at each call.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.activations.fused import build, cpu, memory
from stamm.activations.fused.operation import (
    Layout,
    Operation,
    built_form,
    differentiable,
    forward_of,
    has_backend,
    is_eager,
    report_once,
    report_unbuilt,
)
from stamm.activations.fused.passes import STORED, PassName
from stamm.activations.spec.parameters import (
    Absolute,
    Between,
    Exp,
    Identity,
    Parameter,
    ParameterMaps,
    Softplus,
)
from stamm.base.errors import RunError

_SOURCE = Path(__file__).with_name("direct.cpp")
# The compiler takes 13 s for it, once per machine and version of torch: for processes that call often.
WORTH_COMPILING = 256
_LARGE = memory.FROM // torch.float32.itemsize  # elements, of results that may be cached
_TENSORS = (Tensor, torch.nn.Parameter)  # subclasses have rules for torch's own functions only


class DirectCalls:
    """Eager calls of one form with the shape parameters of one spec."""

    def __init__(self, operation: Operation, parameters: Sequence[Parameter]) -> None:
        self.operation = operation
        self.form: str = operation.form  # type: ignore[attr-defined]
        self.parameters = tuple(parameters)
        self.maps = ParameterMaps(parameters)
        self.names = tuple(p.name for p in self.maps.trainable)
        self._kernels: dict[torch.dtype, int | None] = {}
        self._mapped = lru_cache(maxsize=256)(self._map)  # a layer's numbers change once a step

    def __call__(self, inputs: Sequence[Tensor], stored: Sequence[Tensor]) -> Tensor | None:
        """f, differentiable in `inputs` and in the `stored` numbers; None where it is not supported.

        stored   one tensor for each trainable parameter
        """
        trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in stored)
        kernel = self._kernel_for(inputs, trains)
        if kernel is None:
            return None
        for tensor in stored:
            if type(tensor) not in _TENSORS or not tensor.is_cpu or tensor.numel() != 1:
                return None
        values: list[float] = []
        slopes: list[float] = []
        if stored:
            raw = struct.pack(f"{len(stored)}d", *[tensor.item() for tensor in stored])
            values, slopes = self._mapped(raw)
        result: Tensor = _operation()(inputs, stored, values, slopes, kernel)  # type: ignore[misc]
        return result

    def frozen(self, inputs: Sequence[Tensor], values: Sequence[float]) -> Tensor | None:
        """f with constant effective values, without gradients; None where it is not supported."""
        if torch.compiler.is_compiling() or not all(t.is_contiguous() for t in inputs):
            return None
        kernel = self._kernel_for(inputs, False)
        if kernel is None:
            return None
        result: Tensor = _operation()(inputs, (), values, (), kernel)  # type: ignore[misc]
        return result

    def _kernel_for(self, inputs: Sequence[Tensor], trains: bool) -> int | None:
        """The number of the kernel of a call that no transform, trace or mode observes, or None."""
        if torch.compiler.is_exporting() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
            return None
        first = inputs[0]
        if type(first) not in _TENSORS or not first.is_cpu:
            return None
        for tensor in inputs[1:]:
            if type(tensor) not in _TENSORS or tensor.shape != first.shape:
                return None
        if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack():
            return None
        # make_fx(pre_dispatch=True) traces before autograd.
        if torch._C._dispatch_tls_is_dispatch_key_included("PreDispatch"):
            return None
        return self.kernel(first, trains)

    def kernel(self, x: Tensor, trains: bool) -> int | None:
        """The number of the compiled kernel for tensors like x; None where there is none, yet.

        trains   gradients in stored numbers are wanted
        """
        if is_eager(self.form):
            return None
        if _is_saved_by_hooks():
            return None
        if x.dtype not in self._kernels:
            if not _is_worth_it(trains):
                return None
            self._kernels[x.dtype] = self._compiled(x)
        if x.numel() >= _LARGE:
            _share_allocator()
        return self._kernels[x.dtype]

    def effective(self, stored: Sequence[Tensor]) -> list[Tensor]:
        """The effective values of stored numbers, differentiable."""
        return effective_tensors(self.parameters, dict(zip(self.names, stored, strict=True)))

    def _map(self, raw: bytes) -> tuple[list[float], list[float]]:
        """Effective values of stored numbers, with the bits of `effective`, and their slopes.

        raw  float64, as bytes: 0 and -0 differ
        """
        numbers = struct.unpack(f"{len(self.names)}d", raw)
        with torch.no_grad():
            tensors = [torch.tensor([n], dtype=torch.float64, device="cpu") for n in numbers]
            values = [tensor.item() for tensor in self.effective(tensors)]
        return values, self.maps(numbers)[1]

    def _compiled(self, x: Tensor) -> int | None:
        form = built_form(self.form)
        if x.dtype not in STORED or build.unavailable_reason() is not None or _operation() is None:
            return None
        computing = form.computing(x)
        names: tuple[PassName, PassName] = ("forward", "backward")
        if form.layout != "plain":
            names = ("gated_forward", "gated_backward")
        try:
            passes = [
                cpu.function_of(name, form.kernel, form.fixed, computing, x.dtype, False)
                for name in names
            ]
        except RunError as error:
            report_unbuilt(self.form, error)
            return None
        index = ctypes.c_int64()
        build.function(_SOURCE.read_text(), "add_kernel", torch_headers=True)(
            *(ctypes.cast(p, ctypes.c_void_p) for p in passes),  # type: ignore[arg-type]
            self.form.encode(),
            ctypes.c_int(get_args(Layout).index(form.layout)),
            ctypes.c_int(STORED.index(x.dtype)),
            ctypes.c_int(computing == torch.float32),
            ctypes.c_int64(build.CHUNK),
            ctypes.byref(index),
        )
        _CALLS[index.value] = self
        return index.value


_CALLS: dict[int, DirectCalls] = {}  # by the number of their kernel
_CALLED = itertools.count(1)


@lru_cache(maxsize=1024)
def direct_calls(operation: Operation, parameters: tuple[Parameter, ...]) -> DirectCalls:
    """The calls of a form and the parameters of its spec."""
    return DirectCalls(operation, parameters)


def without_gradients(calls: DirectCalls, parameters: Sequence[Tensor]) -> Operation:
    """The operation (*inputs) -> f for constant effective values of the parameters.

    Checked  tests/unit/activations/test_module.py
    """
    fixed = [parameter.detach() for parameter in parameters]
    single = all(p.numel() == 1 for p in fixed) and not any(p.is_meta for p in fixed)
    values = [float(p) for p in fixed] if single else None

    def operation(*inputs: Tensor) -> Tensor:
        if values is not None and not torch.is_grad_enabled():
            result = calls.frozen(inputs, values)
            if result is not None:
                return result
        if is_eager(calls.form):
            return built_form(calls.form).eager(*inputs, *fixed)
        with torch.no_grad():
            return forward_of(inputs, fixed, calls.form, fuse=has_backend(inputs[0]))

    return operation


@dataclass(frozen=True)
class ForwardPass:
    """A compiled forward pass over float32 with constant effective values, for callers in C++.

    address      of a function of `pointwise.h`: (in, out, rows, columns, parameters, sums, partial, threads)
    parameters   float64, one row for each parameter of one number or of one for each column
    by_column    whether each column has its own
    """

    address: int
    parameters: Tensor
    by_column: bool


def forward_pass(calls: DirectCalls, parameters: Sequence[Tensor]) -> ForwardPass | None:
    """The pass of `without_gradients` on a CPU; None where torch computes it.

    Needs    `build.unavailable_reason()` is None
    """
    if is_eager(calls.form):
        return None
    form = built_form(calls.form)
    name: PassName = "forward" if form.layout == "plain" else "gated_forward"
    computing = form.computing(torch.empty(0, dtype=torch.float32, device="cpu"))
    width = max((p.numel() for p in parameters), default=1)
    try:
        function = cpu.function_of(
            name, form.kernel, form.fixed, computing, torch.float32, width > 1
        )
    except RunError as error:
        report_unbuilt(calls.form, error)
        return None
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address is not None
    rows = [p.detach().double().reshape(-1).expand(width) for p in parameters]
    given = torch.stack(rows) if rows else torch.empty(0, dtype=torch.float64, device="cpu")
    return ForwardPass(address, given, width > 1)


def prepare() -> None:
    """Compile `direct.cpp` now, for a process that will call often."""
    if build.unavailable_reason() is None and _operation() is not None:
        _is_built.cache_clear()


def _is_worth_it(trains: bool) -> bool:
    """Whether `direct.cpp` is compiled already, or this call waits for the compiler.

    A process that has called often compiles it in a thread, and computes as before until it is there:
    results, and gradients in inputs, have the same bits in both ways. Those in stored numbers may differ
    by a rounding, so calls that want them change at a fixed call, and wait for the compiler there.
    """
    often = next(_CALLED) > WORTH_COMPILING
    if _is_built():
        return True
    if not often or trains:
        return often
    if _background().is_alive():
        return False
    _is_built.cache_clear()
    return True


class _Compilation(threading.Thread):
    """Compiles `direct.cpp`, without loading it, beside the work of the process.

    Edge     the process ends it with itself; a fork waits for it, as the child would inherit its lock
    """

    def __init__(self) -> None:
        super().__init__(name="stamm compiles direct.cpp", daemon=True)
        self.error: RunError | None = None

    def run(self) -> None:
        """Compile; keep the error."""
        try:
            build.compiled(_SOURCE.read_text(), torch_headers=True)
        except RunError as error:
            self.error = error

    def abandon(self) -> None:
        """End the compiler, which leaves no file."""
        build.end_compilers()
        self.join()


@cache
def _background() -> _Compilation:
    compilation = _Compilation()
    compilation.start()
    atexit.register(compilation.abandon)
    os.register_at_fork(before=compilation.join)
    return compilation


def _is_saved_by_hooks() -> bool:
    """Whether hooks pack what autograd saves, as in activation checkpointing.

    That counts the saved tensors, so a call and its recomputation must be computed in the same way:
    also where `direct.cpp` is compiled between the two, or a dispatch mode (FlopCounterMode) observes
    one of them only.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and torch.is_grad_enabled()


@cache
def _is_built() -> bool:
    try:
        return build.is_built(_SOURCE.read_text(), torch_headers=True)
    except RunError:  # a missing compiler: the kernels report it
        return False


@cache
def _operation() -> Callable[..., Tensor] | None:
    """The operation of `direct.cpp`, or None where that does not compile: reported once."""
    try:
        if _background.cache_info().currsize and (failed := _background().error) is not None:
            raise failed
        if not build.is_built(_SOURCE.read_text(), torch_headers=True):
            report_once(
                "Compiling the calls of activations, once for this machine and version of torch: "
                "about 15 s of an idle processor."
            )
        build.function(_SOURCE.read_text(), "add_kernel", torch_headers=True)
    except RunError as error:
        report_once(f"activations of small tensors are slower than they could be: {error.line()}")
        return None
    operation: Callable[..., Tensor] = torch.ops.stamm.direct.default
    return operation


@cache
def _share_allocator() -> None:
    """Large results come from the cache of `memory.py`."""
    address = memory.results_allocator()
    if address is not None:
        share = build.function(_SOURCE.read_text(), "set_results_allocator", torch_headers=True)
        share(ctypes.c_size_t(address), ctypes.c_int64(memory.FROM))


# What `stamm::direct` does not support itself, called by it.
_ANY, _GRADIENTS = "stamm::direct_any", "stamm::direct_gradients"
torch.library.define(
    _ANY, "(Tensor[] inputs, Tensor[] stored, float[] effective, int kernel) -> Tensor"
)
torch.library.define(
    _GRADIENTS, "(Tensor weight, Tensor[] inputs, Tensor[] stored, int kernel) -> Tensor[]"
)


@torch.library.impl(_ANY, "CompositeImplicitAutograd")
def _any(
    inputs: Sequence[Tensor], stored: Sequence[Tensor], effective: Sequence[float], kernel: int
) -> Tensor:
    """Layouts with gaps, tangents of forward mode: the operation of all devices and layouts."""
    calls = _CALLS[kernel]
    if stored:
        return calls.operation(*inputs, *calls.effective(stored))
    constants = [torch.tensor([v], dtype=torch.float64, device="cpu") for v in effective]
    return calls.operation(*inputs, *constants)


def _gradients(
    weight: Tensor, inputs: Sequence[Tensor], stored: Sequence[Tensor], kernel: int
) -> list[Tensor]:
    """Gradients that are differentiated again, or of many weights at once."""
    calls = _CALLS[kernel]
    form, count = built_form(calls.form), len(inputs)
    if torch.is_grad_enabled():

        def eager(*tensors: Tensor) -> Tensor:
            return form.eager(*tensors[:count], *calls.effective(tensors[count:]))

        tensors = [*inputs, *stored]
        eager_gradients = differentiable(eager, weight, tensors)
        return [
            t.new_empty(0) if g is None else g
            for t, g in zip(tensors, eager_gradients, strict=True)
        ]
    values = calls.effective(stored)
    _, slopes = calls.maps([tensor.item() for tensor in stored])
    gradients = form.gradients(weight, inputs, values)
    sums = gradients[count:]
    by_stored = [
        sum(
            s * slopes[row * len(stored) + column]
            for row, s in enumerate(sums)
            if row == column or slopes[row * len(stored) + column]
        )
        for column in range(len(stored))
    ]
    moved = [torch.as_tensor(g).to(t.dtype) for g, t in zip(by_stored, stored, strict=True)]
    return [*gradients[:count], *moved]


for _key in ("CompositeImplicitAutograd", "Batched", "FuncTorchDynamicLayerFrontMode"):
    torch.library.impl(_GRADIENTS, _key)(_gradients)


_TORCH_LINEAR, _LINEAR = 20.0, 40.0  # log(1 + exp(40)) is 40 in float64; at 20 it is 2e-9 more


def effective_tensor(
    parameter: Parameter, stored: Tensor, bound: Tensor | float, *, exact: bool = False
) -> Tensor:
    """The effective values of a trainable parameter, differentiable, shaped and typed as `stored`.

    bound   the effective value of the lower bound; ignored for a parameter without one
    exact   all digits that float64 has; otherwise softplus is the identity from 20 on, as in torch
    """
    match parameter.bijection:
        case Softplus():
            linear = _LINEAR if exact else _TORCH_LINEAR
            return _above(F.softplus(stored, threshold=linear), bound)
        case Exp():
            return _above(torch.exp(stored), bound)
        case Absolute():
            lower = torch.abs(bound) if isinstance(bound, Tensor) else abs(bound)
            return _above(torch.abs(stored), lower)
        case Between(low=low, high=high):
            return low + (high - low) * torch.sigmoid(stored)
        case Identity():
            return stored
    raise TypeError(f"{parameter.name} is fixed: it has no stored value")


def effective_tensors(
    parameters: Sequence[Parameter],
    stored: Mapping[str, Tensor],
    *,
    constants: Mapping[str, Tensor] | None = None,
) -> list[Tensor]:
    """The effective values of the trainable ones of a spec's parameters, differentiable.

    stored     the stored numbers of each trainable parameter, by its name
    constants  the fixed parameters, for another library's order of evaluation
    Dtypes     float64, from the stored numbers without a rounding in between (float32 on a device
               without float64): float32 would lose the difference of alpha_n and beta. With
               `constants` the stored dtype
    """
    held = {p.name: p for p in parameters}

    def effective(parameter: Parameter) -> Tensor:
        bound: Tensor | float = 0.0
        name = parameter.above_name
        if name is not None:
            fixed = {name: held[name].initial} if constants is None else constants
            bound = effective(held[name]) if held[name].trainable else fixed[name]
        elif parameter.above is not None:
            bound = float(parameter.above)
        numbers = stored[parameter.name]
        if constants is not None:
            return effective_tensor(parameter, numbers, bound)
        wide = numbers if numbers.device.type == "mps" else numbers.double()
        return effective_tensor(parameter, wide, bound, exact=True)

    return [effective(p) for p in parameters if p.trainable]


def _above(positive: Tensor, bound: Tensor | float) -> Tensor:
    """bound + positive; a bound of 0 costs no operation."""
    return positive if isinstance(bound, float) and bound == 0.0 else bound + positive
