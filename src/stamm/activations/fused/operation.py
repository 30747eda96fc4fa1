"""Fused passes as operations of torch: with gradients, with fake kernels, traced by compilers.

Inputs that no backend supports, and small ones on a GPU, are computed by the eager form: same
formulas, same error budget. Which of the two it is depends on device, dtype and number of elements
only. Eager calls on a CPU take a shorter way to the same kernels (`direct.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.activations.codegen.kernel_lookup import Kernel
from stamm.activations.fused import build, cpu, gpu
from stamm.activations.fused.memory import fresh
from stamm.activations.fused.passes import STORED, Fixed, PassName
from stamm.base.console import Console
from stamm.base.errors import ConfigError, RunError
from stamm.base.files import sha256_value

SMALLEST = 2**15  # elements on a GPU; a CPU's kernels compute inputs of any size
Layout = Literal["plain", "apart", "gate_first", "up_first", "interleaved"]
Operation = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Form:
    """One activation in the form in which it is called.

    layout      plain: x; apart: gate and up; otherwise one tensor (..., 2 C) that holds both
    computing   the dtype in which an input is computed
    eager       (*inputs, *trainable) -> f, differentiable
    gradients   (weight, inputs, trainable) -> one for each input, then one for each parameter;
                not differentiable
    """

    kernel: Kernel
    fixed: Fixed
    exact: bool
    layout: Layout
    computing: Callable[[Tensor], torch.dtype]
    eager: Operation
    gradients: Callable[[Tensor, Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, ...]]

    @property
    def name(self) -> str:
        """Name in compiled graphs: equal for equal forms, in every process."""
        return sha256_value([self.kernel.content_hash, self.fixed, self.exact, self.layout])[:24]

    @property
    def inputs(self) -> int:
        """Number of tensors before the parameters."""
        return 2 if self.layout == "apart" else 1


_FORMS: dict[str, Form] = {}
_UNBUILT: set[str] = set()  # forms whose kernel did not compile; reported once
_EAGER: set[str] = set()  # forms that torch computes: the eager form, also in compiled code


def fused(form: Form) -> Operation:
    """The operation (*inputs, *trainable) -> f, fused where that is possible.

    Shapes   as in `Form.layout`; the result (..., C) is contiguous, or dense in the axes' order of the
             inputs (channels_last) where `memory_order` has one
    Checked  tests/unit/activations/test_fused.py
    """
    name, count, eager, gradients = form.name, form.inputs, form.eager, form.gradients
    _FORMS[name] = form

    class Fused(torch.autograd.Function):
        """f, with both passes fused."""

        @staticmethod
        def forward(*tensors: Tensor) -> Tensor:
            return _forward(tensors[:count], tensors[count:], name)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
            tensors = ctx.saved_tensors
            if not torch.compiler.is_compiling():
                if torch.is_grad_enabled():
                    return differentiable(eager, weight, tensors)
                if _transformed(weight):  # many weights at once: our operations know one
                    return gradients(weight, tensors[:count], tensors[count:])
            return tuple(_backward(weight, tensors[:count], tensors[count:], name))

    def operation(*tensors: Tensor) -> Tensor:
        if traced_inside_a_transform():
            return _forward(tensors[:count], tensors[count:], name)
        if name in _EAGER or not is_supported(tensors):
            return eager(*tensors)
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors):
            return _forward(tensors[:count], tensors[count:], name)
        result: Tensor = Fused.apply(*tensors)  # type: ignore[no-untyped-call]
        return result

    operation.form = name  # type: ignore[attr-defined]
    return operation


def use_eager(forms: Iterable[str], *, eager: bool) -> None:
    """Compute these forms by torch's own functions from now on, or by fused passes again.

    forms   names, as `form` of what `fused` returns has them
    """
    (_EAGER.update if eager else _EAGER.difference_update)(forms)


def is_eager(form: str) -> bool:
    """Whether torch's own functions compute this form: by `use_eager`, or as it does not compile."""
    return form in _EAGER or form in _UNBUILT


def cpu_sources(forms: Iterable[str], stored: torch.dtype) -> list[str]:
    """The C++ of these forms for inputs of dtype `stored`, with one shape for all columns."""
    sources = []
    for form in map(built_form, forms):
        name: PassName = "forward" if form.layout == "plain" else "gated_forward"
        computing = form.computing(torch.empty(0, dtype=stored))
        sources.append(
            cpu.source_of(name, form.kernel, form.fixed, computing, stored, by_column=False)
        )
    return sources


# Defined piece by piece: torch.library.custom_op loads torch's compiler, more than a second.
_ACTIVATION, _GRADIENTS = "stamm::activation", "stamm::activation_gradients"
torch.library.define(
    _ACTIVATION,
    "(Tensor[] inputs, Tensor[] parameters, str form) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)
torch.library.define(
    _GRADIENTS,
    "(Tensor weight, Tensor[] inputs, Tensor[] parameters, str form) -> Tensor[]",
    tags=torch.Tag.pt2_compliant_tag,
)


@torch.library.impl(_ACTIVATION, "CompositeExplicitAutograd")
def _activation(inputs: Sequence[Tensor], parameters: Sequence[Tensor], form: str) -> Tensor:
    """f of the inputs. `form` is the name of a Form that this process has built."""
    return forward_of(inputs, parameters, form, fuse=_worth_a_pass(inputs[0]))


def forward_of(
    inputs: Sequence[Tensor], parameters: Sequence[Tensor], form: str, *, fuse: bool
) -> Tensor:
    """f of the inputs, by a fused pass where it compiles."""
    built = built_form(form)
    order = memory_order(inputs, parameters, built.layout)
    if fuse and form not in _UNBUILT:
        read = apart(inputs, built.layout)
        result = _fresh(read[0], order)
        try:
            _run("forward", built, _rows(read, order), _rows([result], order), parameters)
            return result
        except RunError as error:
            report_unbuilt(form, error)
    return _as_stored(built.eager(*inputs, *parameters), order)


@torch.library.register_fake(_ACTIVATION)  # type: ignore[untyped-decorator]
def _(inputs: Sequence[Tensor], parameters: Sequence[Tensor], form: str) -> Tensor:
    layout = built_form(form).layout
    return _empty(apart(inputs, layout)[0], memory_order(inputs, parameters, layout))


@torch.library.impl(_GRADIENTS, "CompositeExplicitAutograd")
def _activation_gradients(
    weight: Tensor, inputs: Sequence[Tensor], parameters: Sequence[Tensor], form: str
) -> list[Tensor]:
    """The gradients of sum(weight f): one for each input, then one for each parameter."""
    built = built_form(form)
    order = memory_order(inputs, parameters, built.layout)
    if _worth_a_pass(inputs[0]) and form not in _UNBUILT:
        results = [_fresh(t, order) for t in inputs]
        read = _rows([weight.to(inputs[0].dtype), *apart(inputs, built.layout)], order)
        written = _rows(apart(results, built.layout), order)
        try:
            sums = _run("backward", built, read, written, parameters)
            if built.computing(inputs[0]) == torch.float32 and out_of_range(sums, inputs[0]):
                wide = [t.double() for t in inputs]
                sums = list(built.gradients(weight.double(), wide, parameters))[len(inputs) :]
            return [*results, *sums]
        except RunError as error:
            report_unbuilt(form, error)
    return _gradients_as_stored(built.gradients(weight, inputs, parameters), len(inputs), order)


@torch.library.register_fake(_GRADIENTS)  # type: ignore[untyped-decorator]
def _(
    weight: Tensor, inputs: Sequence[Tensor], parameters: Sequence[Tensor], form: str
) -> list[Tensor]:
    order = memory_order(inputs, parameters, built_form(form).layout)
    return [*(_empty(t, order) for t in inputs), *(t.new_empty(t.shape) for t in parameters)]


def memory_order(
    inputs: Sequence[Tensor], parameters: Sequence[Tensor], layout: Layout
) -> tuple[int, ...] | None:
    """The axes from the outermost to the innermost in memory, of dense inputs that are not row-major.

    None: row-major, not dense, with gaps, of different layouts, or with parameters for each column.
    channels_last of (N, C, H, W) is (0, 2, 3, 1).
    """
    first = inputs[0]
    if first.is_contiguous() or layout not in ("plain", "apart"):
        return None
    if any(t.stride() != first.stride() for t in inputs) or any(p.numel() > 1 for p in parameters):
        return None
    strides = first.stride()
    order = tuple(sorted(range(first.dim()), key=lambda axis: -strides[axis]))
    return order if first.permute(order).is_contiguous() else None


def _rows(tensors: Sequence[Tensor], order: Sequence[int] | None) -> list[Tensor]:
    """The tensors with their axes in the order of memory."""
    return list(tensors) if order is None else [t.permute(tuple(order)) for t in tensors]


def _empty(like: Tensor, order: Sequence[int] | None) -> Tensor:
    """An uninitialised tensor of the shape of `like`, dense, its axes in memory as in `order`."""
    axes = range(like.dim()) if order is None else order
    return torch.empty_permuted(like.shape, tuple(axes), dtype=like.dtype, device=like.device)


def _as_stored(result: Tensor, order: Sequence[int] | None) -> Tensor:
    """`result` with the strides of `_empty`."""
    if order is None:
        return result.contiguous()
    if result.permute(tuple(order)).is_contiguous():
        return result
    return _empty(result, order).copy_(result)


def _gradients_as_stored(
    gradients: Sequence[Tensor], inputs: int, order: Sequence[int] | None
) -> list[Tensor]:
    kept = [_as_stored(g, order) for g in gradients[:inputs]]
    return [*kept, *(g.contiguous() for g in gradients[inputs:])]


def _activation_eagerly(
    inputs: Sequence[Tensor], parameters: Sequence[Tensor], form: str
) -> Tensor:
    built = built_form(form)
    order = memory_order(inputs, parameters, built.layout)
    return _as_stored(built.eager(*inputs, *parameters), order)


def _gradients_eagerly(
    weight: Tensor, inputs: Sequence[Tensor], parameters: Sequence[Tensor], form: str
) -> list[Tensor]:
    built = built_form(form)
    order = memory_order(inputs, parameters, built.layout)
    pulled = torch.func.vjp(built.eager, *inputs, *parameters)[1]
    return _gradients_as_stored(pulled(weight), len(inputs), order)


# Compiled graphs keep torch.func's transforms as calls around our operations, and torch's rules
# know neither: what is inside a transform is computed by the eager form, which has them all.
torch.library.impl(_ACTIVATION, "FuncTorchDynamicLayerFrontMode")(_activation_eagerly)
torch.library.impl(_GRADIENTS, "FuncTorchDynamicLayerFrontMode")(_gradients_eagerly)


@torch.library.impl(_ACTIVATION, "Autograd")
def _(inputs: Sequence[Tensor], parameters: Sequence[Tensor], form: str) -> Tensor:
    """Derivative for direct calls of the operation."""
    if _followed(*inputs, *parameters):
        return _activation_eagerly(inputs, parameters, form)
    return _forward(inputs, parameters, form)


@torch.library.impl(_GRADIENTS, "Autograd")
def _(
    weight: Tensor, inputs: Sequence[Tensor], parameters: Sequence[Tensor], form: str
) -> list[Tensor]:
    if _followed(weight, *inputs, *parameters):
        return _gradients_eagerly(weight, inputs, parameters, form)
    return _backward(weight, inputs, parameters, form)


def _followed(*tensors: Tensor) -> bool:
    """Whether autograd records operations on any of them, backward or forward."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return True
    return any(torch._VF._unpack_dual(t, level=0).tangent is not None for t in tensors)


def built_form(name: str) -> Form:
    """The form that an activation module of this process registered by that name.

    Raises   ConfigError for one that was not built here
    """
    if name not in _FORMS:
        raise ConfigError(
            f"activation {name} of a compiled or loaded graph was not built in this process",
            fix="Build the same activation module first, which registers its operation by that name",
        )
    return _FORMS[name]


def report_unbuilt(form: str, error: RunError) -> None:
    """Report once that a form has no fused kernel, and compute it eagerly from now on."""
    _UNBUILT.add(form)
    report_once(f"an activation is computed without a fused kernel: {error.line()}")


def _forward(inputs: Sequence[Tensor], parameters: Sequence[Tensor], form: str) -> Tensor:
    result: Tensor = _past_autograd(torch.ops.stamm.activation, inputs, parameters, form)
    return result


def _backward(
    weight: Tensor, inputs: Sequence[Tensor], parameters: Sequence[Tensor], form: str
) -> list[Tensor]:
    gradients = torch.ops.stamm.activation_gradients
    results: list[Tensor] = _past_autograd(gradients, weight, inputs, parameters, form)
    return results


def _past_autograd(function: Any, *arguments: Any) -> Any:
    """function(*arguments) where autograd is known to record nothing: checking costs 20 us."""
    if torch.compiler.is_dynamo_compiling():
        return function(*arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return function(*arguments)


def _run(
    step: Literal["forward", "backward"],
    form: Form,
    read: Sequence[Tensor],
    written: Sequence[Tensor],
    parameters: Sequence[Tensor],
) -> list[Tensor]:
    gated: dict[str, PassName] = {"forward": "gated_forward", "backward": "gated_backward"}
    name = step if form.layout == "plain" else gated[step]
    computing = form.computing(written[0])
    run = cpu.run if read[0].device.type == "cpu" else gpu.run
    return run(name, form.kernel, form.fixed, computing, read, written, parameters)


def apart(tensors: Sequence[Tensor], layout: Layout) -> list[Tensor]:
    """Gate and up: two tensors as they are, or views of the one (..., 2 C) that holds both."""
    if layout in ("plain", "apart"):
        return list(tensors)
    (both,) = tensors
    if layout == "interleaved":
        return [both[..., 0::2], both[..., 1::2]]
    first, second = both.chunk(2, dim=-1)
    return [first, second] if layout == "gate_first" else [second, first]


def joined(gate: Tensor, up: Tensor, layout: Layout) -> Tensor:
    """One tensor (..., 2 C) of gate and up, the inverse of `apart`."""
    if layout == "interleaved":
        pairs = torch.stack([gate, up], dim=-1)
        return pairs.reshape(*gate.shape[:-1], 2 * gate.shape[-1])
    return torch.cat([gate, up] if layout == "gate_first" else [up, gate], dim=-1)


def differentiable(
    eager: Operation, weight: Tensor, tensors: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradients by the eager form, as a graph that can be differentiated again."""
    # Aliases, because the tensors' own history and hooks belong to the caller.
    aliases = [t.view_as(t) for t in tensors]
    wanted = [t for t in aliases if t.requires_grad]
    gradients = iter(torch.autograd.grad(eager(*aliases), wanted, weight, create_graph=True))
    return tuple(next(gradients) if t.requires_grad else None for t in tensors)


def _worth_a_pass(x: Tensor) -> bool:
    """Whether x is large enough, and a backend supports tensors like it. Otherwise the reason is reported once."""
    if x.is_cuda and x.numel() < SMALLEST:
        return False
    if has_backend(x):
        return True
    backend = {"cpu": build, "cuda": gpu}.get(x.device.type)
    if backend is not None and x.dtype in STORED:
        report_once(
            f"activations are computed without fused kernels: {backend.unavailable_reason()}"
        )
    return False


def has_backend(x: Tensor) -> bool:
    """Whether passes over tensors like x can run here."""
    return cpu.is_supported(x) or gpu.is_supported(x)


@lru_cache(maxsize=256)
def report_once(text: str) -> None:
    """Print a line once in a process."""
    Console().log(text)


def _fresh(like: Tensor, order: Sequence[int] | None) -> Tensor:
    if like.device.type == "cpu":
        return fresh(like.shape, like.dtype, order)
    return _empty(like, order)


def is_supported(tensors: Sequence[Tensor]) -> bool:
    """Whether fused passes support these inputs and parameters in the current context."""
    first = tensors[0]
    if any(t.device != first.device for t in tensors):
        return False  # torch's own functions raise the error
    if _is_exporting() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        return False  # exported graphs must run where these operations are not registered
    # Subclasses (sharded, fake, batched) have rules for torch's own functions, not for ours.
    if not all(type(t) in (Tensor, torch.nn.Parameter) for t in tensors):
        return False
    if torch.compiler.is_compiling():
        # Inductor needs the same compiler, so where a graph is compiled the passes can be built.
        return first.device.type in ("cpu", "cuda") and first.dtype in STORED
    if any(t.layout != torch.strided for t in tensors):
        return False
    return _worth_a_pass(first) and not any(_transformed(t) for t in tensors)


def traced_inside_a_transform() -> bool:
    """Whether a compiler traces this call inside vmap, grad or jvp of torch.func.

    There the compiler hides derivatives, so that `requires_grad` is unknown.
    """
    return torch.compiler.is_dynamo_compiling() and _transforms_in_progress() > 0


def _constant_in_graphs(function: Callable[[], Any]) -> Callable[[], Any]:
    """Called while a graph is traced, not traced itself: torch.compiler.assume_constant_result, which
    would load the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@_constant_in_graphs
def _transforms_in_progress() -> int:
    # The compiler of torch 2.11 cannot trace it.
    return torch._C._functorch.get_dynamic_layer_stack_depth()


@_constant_in_graphs
def _is_exporting() -> bool:
    # In every graph that the compiler of torch 2.11 traces, exported or not, it is True.
    return torch.compiler.is_exporting()


def _transformed(x: Tensor) -> bool:
    """Whether x is inside vmap, grad or jvp of torch.func, or carries a forward-mode tangent."""
    inside = torch._C._functorch
    if inside.is_functorch_wrapped_tensor(x) or inside.is_legacy_batchedtensor(x):
        return True
    dual = torch.autograd.forward_ad.unpack_dual(x)  # type: ignore[no-untyped-call]
    return dual.tangent is not None


_GROUP = 256
_BLOCK = 2**16  # elements; xielu forward in bfloat16: 10.6 ns each, 12.0 in one block (2026-11)


def by_blocks(function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
    """function(*inputs), on a CPU by blocks of rows that stay in the cache.

    An uncompiled kernel is a chain of passes over memory; on blocks of this size the passes run
    in cache and the temporaries stay small. Rows are independent, so no bit changes.

    Shapes   with blocks, leading axes of the results are one: the caller reshapes.
    """
    first = inputs[0]
    if (
        torch.compiler.is_compiling()
        or first.device.type != "cpu"
        or first.numel() <= _BLOCK
        or first.dim() < 2
    ):
        return function(*inputs)
    width = first.shape[-1]
    step = max(1, _BLOCK // width)
    flat = [t.reshape(-1, width) for t in inputs]
    parts = [function(*(t[i : i + step] for t in flat)) for i in range(0, flat[0].shape[0], step)]
    return tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))


def shaped(result: Tensor, like: Tensor) -> Tensor:
    """A result of `by_blocks` in the shape of its input, neither the input itself nor a view.

    A view that a Function returns may not be changed in place.
    """
    if result is like:
        return result.clone()
    if result.shape == like.shape:
        return result
    whole: Tensor = torch.ops.aten._unsafe_view(result, like.shape)
    return whole


def rows(contributions: Tensor, like: Tensor) -> Tensor:
    """Partial sums of what each element adds to a parameter's gradient.

    like     the parameter: one number is summed over the last axis, one for each neuron over all
             the others, into one row
    Edge     every sum is added up by one thread, so thread counts change nothing.
    """
    if like.numel() > 1:
        columns = contributions.reshape(-1, contributions.shape[-1]).t().contiguous()
        return columns.sum(-1).reshape(1, -1)
    if contributions.dim() == 0:
        return contributions
    if 0 < contributions.numel() == contributions.shape[-1]:  # one row: threads would share it
        return _sum(contributions).to(contributions.dtype).reshape(contributions.shape[:-1])
    return contributions.sum(-1)


def total(rows: Tensor, like: Tensor) -> Tensor:
    """The sum of the partial sums, added in float64, shaped and typed as `like`."""
    if like.numel() > 1:
        return rows.double().t().contiguous().sum(-1).to(like.dtype).reshape(like.shape)
    return _sum(rows).to(like.dtype).reshape(like.shape)


def out_of_range(sums: Sequence[Tensor], x: Tensor) -> bool:
    """Whether a sum is non-finite, perhaps by overflow of float32, where that can be read at once.

    Edge     False on a GPU, where reading it would synchronise, and inside transforms and traces
    """
    if x.device.type != "cpu" or type(x) is not Tensor or torch.compiler.is_compiling():
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack():
        return False
    return not all(bool(torch.isfinite(s).all()) for s in sums)


def _sum(values: Tensor) -> Tensor:
    """The sum of everything in float64, as a tree of groups of _GROUP: one shape, one order.

    torch splits a long sum with a single result into one part per thread; a group is too short.
    """
    flat = values.reshape(-1).double()
    while flat.numel() > 1:
        flat = F.pad(flat, (0, -flat.numel() % _GROUP)).reshape(-1, _GROUP).sum(-1)
    return flat.sum() if flat.numel() == 0 else flat.reshape(())


def square(upper: list[Tensor], count: int) -> list[list[Tensor]]:
    """The symmetric table whose upper triangle is given row by row."""
    cells = iter(upper)
    table: dict[tuple[int, int], Tensor] = {}
    for i in range(count):
        for j in range(i, count):
            table[i, j] = table[j, i] = next(cells)
    return [[table[i, j] for j in range(count)] for i in range(count)]
