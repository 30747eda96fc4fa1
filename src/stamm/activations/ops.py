"""The differentiable operations: forward saves its inputs only, gradients come from the spec.

Everything is computed one width up and rounded once: 16-bit inputs in float32, float32 in float64.
Parameter gradients are summed row by row in the computing dtype and then in float64, in an order
that does not depend on the thread count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.activations.kernels import Kernel
from stamm.activations.primitives import Parameters
from stamm.base.errors import ConfigError

Fixed = tuple[float | None, ...]
Operation = Callable[..., Tensor]
_GROUP = 256
_BLOCK = 2**16  # elements; xielu forward in bfloat16: 10.6 ns each, 12.0 in one block (2026-11)


def plain_operation(kernel: Kernel, fixed: Fixed, *, exact: bool = True) -> Operation:
    """The function (x, *trainable effective values) -> f(x), differentiable twice.

    fixed    per parameter of the spec its constant value, or None where a tensor is passed
    exact    False computes float32 inputs in float32: faster, and a few ulp off where terms cancel
    Shapes   x (..., C); a parameter holds one number, or C: one for each neuron; the result has
             the shape of x.
    Dtypes   float16 and bfloat16 are computed in float32, float32 and float64 in float64 (in
             float32 on a device without it). The result has the dtype of x, parameter gradients
             that of the parameter.
    Edge     a third derivative is an error that autograd raises, never a wrong number.
    Checked  tests/unit/activations/test_gradients.py
    """
    return _operations(kernel, fixed, exact)[0]


def gated_operation(kernel: Kernel, fixed: Fixed, *, exact: bool = True) -> Operation:
    """The function (gate, up, *trainable effective values) -> f(gate) * up, differentiable twice.

    Where the spec says so, up is first sent through its own fixed function h.

    Shapes   gate and up alike; parameters as in `plain_operation`.
    Dtypes   as `plain_operation`; the product is formed before the one rounding.
    Raises   ConfigError when gate and up differ in shape or dtype.
    """
    return _operations(kernel, fixed, exact)[1]


@lru_cache(maxsize=256)
def _operations(kernel: Kernel, fixed: Fixed, exact: bool) -> tuple[Operation, Operation]:
    # Bare functions, because a compiler that traces this closure knows no class of ours.
    value, slopes, curvatures = kernel.value, kernel.slopes, kernel.curvatures

    def computing(x: Tensor) -> torch.dtype:
        return _computing(x, exact)

    def prepared(x: Tensor, trainable: tuple[Tensor, ...]) -> Parameters:
        numbers = iter([_spread(t.to(computing(x)), x) for t in trainable])
        return tuple(next(numbers) if f is None else f for f in fixed)

    def second(
        weight: Tensor,
        x: Tensor,
        trainable: Sequence[Tensor],
        into_x: Tensor | None,
        into_parameters: Sequence[Tensor | None],
    ) -> tuple[Tensor, ...]:
        """What the gradients of Gradients are: for weight, for x, and for each parameter."""
        wide, parameters = x.to(computing(x)), prepared(x, tuple(trainable))
        slope, *by_parameter = slopes(wide, parameters)
        curvature, *rest = curvatures(wide, parameters)
        count = len(trainable)
        mixed, by_pair = rest[:count], _square(rest[count:], count)
        # Of a surrogate s the kernel gives ds/dp besides, in its last rows.
        bends = rest[count * (count + 3) // 2 :] or mixed
        for_weight = torch.zeros_like(wide)
        for_x = torch.zeros_like(wide)
        for_parameters = [torch.zeros_like(wide) for _ in mixed]
        if into_x is not None:
            direction = into_x.to(wide.dtype)
            for_weight, for_x = direction * slope, direction * curvature
            for_parameters = [direction * b for b in bends]
        for i, into in enumerate(into_parameters):
            if into is None:
                continue
            v = _spread(into.to(wide.dtype), x)
            for_weight = for_weight + v * by_parameter[i]
            for_x = for_x + v * mixed[i]
            for_parameters = [t + v * by_pair[i][j] for j, t in enumerate(for_parameters)]
        wide_weight = weight.to(wide.dtype)
        return (
            for_weight.to(weight.dtype),
            (wide_weight * for_x).to(x.dtype),
            *(
                _total(_rows(wide_weight * t, p), p)
                for t, p in zip(for_parameters, trainable, strict=True)
            ),
        )

    class Gradients(torch.autograd.Function):
        """(weight, x, *trainable) -> weight f'(x), then the sum of weight df/dp per parameter."""

        generate_vmap_rule = True

        @staticmethod
        def forward(weight: Tensor, x: Tensor, *trainable: Tensor) -> tuple[Tensor, ...]:
            parameters = prepared(x, trainable)

            def block(weight: Tensor, x: Tensor) -> tuple[Tensor, ...]:
                wide = x.to(computing(x))
                weight = weight.to(wide.dtype)
                slope, *by_parameter = slopes(wide, parameters)
                sums = zip(by_parameter, trainable, strict=True)
                return ((weight * slope).to(x.dtype), *(_rows(weight * s, p) for s, p in sums))

            gradient, *rows = _by_blocks(block, weight, x)
            return (
                gradient.reshape(x.shape),
                *(_total(r, p) for r, p in zip(rows, trainable, strict=True)),
            )

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)
            # A gradient that nobody took is None, not 0: 0 times an overflowed x**2 is NaN.
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(
            ctx: Any, into_x: Tensor | None, *into_parameters: Tensor | None
        ) -> tuple[Tensor, ...]:
            weight, x, *trainable = ctx.saved_tensors
            with torch.no_grad():
                results = second(weight, x, trainable, into_x, into_parameters)
            incoming = [into for into in (into_x, *into_parameters) if into is not None]
            last: tuple[Tensor, ...] = _Last.apply(  # type: ignore[no-untyped-call]
                len(results), *results, *incoming, weight, x, *trainable
            )
            return last

    def gradients(weight: Tensor, x: Tensor, *trainable: Tensor) -> tuple[Tensor, ...]:
        # A compiled graph is differentiated once; nesting the Function would break the graph.
        if torch.compiler.is_compiling():
            return Gradients.forward(weight, x, *trainable)
        result: tuple[Tensor, ...] = _applied(Gradients, weight, x, *trainable)
        return result

    class PlainFunction(torch.autograd.Function):
        """f(x)."""

        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor, *trainable: Tensor) -> Tensor:
            parameters = prepared(x, trainable)

            def block(x: Tensor) -> tuple[Tensor, ...]:
                return (value(x.to(computing(x)), parameters).to(x.dtype),)

            return _by_blocks(block, x)[0].reshape(x.shape)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, into: Tensor) -> tuple[Tensor, ...]:
            x, *trainable = ctx.saved_tensors
            return gradients(into, x, *trainable)

    class GatedFunction(torch.autograd.Function):
        """f(gate) * up."""

        generate_vmap_rule = True

        @staticmethod
        def forward(gate: Tensor, up: Tensor, *trainable: Tensor) -> Tensor:
            parameters = prepared(gate, trainable)

            def block(gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
                dtype = computing(gate)
                return ((value(gate.to(dtype), parameters) * up.to(dtype)).to(gate.dtype),)

            return _by_blocks(block, gate, up)[0].reshape(gate.shape)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, into: Tensor) -> tuple[Tensor, ...]:
            gate, up, *trainable = ctx.saved_tensors
            # Products stay in the computing dtype: one rounding, at the end of each gradient.
            wide = computing(gate)
            for_gate, *sums = gradients(into.to(wide) * up.to(wide), gate, *trainable)
            output = plain(gate.to(wide), *trainable)
            return for_gate, (into.to(wide) * output).to(up.dtype), *sums

    def plain(x: Tensor, *trainable: Tensor) -> Tensor:
        if torch.compiler.is_compiling() and not _differentiated(x, *trainable):
            return PlainFunction.forward(x, *trainable)
        result: Tensor = _applied(PlainFunction, x, *trainable)
        return result

    second_factor = _second_factor(kernel, fixed, exact)

    def gated(gate: Tensor, up: Tensor, *trainable: Tensor) -> Tensor:
        if gate.shape != up.shape or gate.dtype != up.dtype:
            raise ConfigError(
                f"gate is {_told(gate)} and up is {_told(up)}",
                fix="Give both the same shape and dtype",
            )
        if second_factor is not None:  # h(up) stays wide: it is rounded with the product
            up = second_factor(up.to(computing(up)))
        if torch.compiler.is_compiling() and not _differentiated(gate, up, *trainable):
            return GatedFunction.forward(gate, up, *trainable)
        result: Tensor = _applied(GatedFunction, gate, up, *trainable)
        return result

    return plain, gated


def _second_factor(kernel: Kernel, fixed: Fixed, exact: bool) -> Operation | None:
    """up -> h(up), or None where the spec multiplies by up itself."""
    if kernel.up is None:
        return None
    # h uses fixed parameters only; a trainable one that reached it would show as NaN.
    constants = tuple(math.nan if f is None else f for f in fixed)
    return plain_operation(kernel.up, constants, exact=exact)


class _Last(torch.autograd.Function):
    """Results that are not differentiated further, told by an error instead of a zero.

    Takes their count, the results, and everything they depend on.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.clone() for tensor in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *into: Tensor) -> tuple[None, ...]:
        raise RuntimeError(
            "the third derivative of an activation is not derived: differentiate twice at most"
        )


def _differentiated(*tensors: Tensor) -> bool:
    """Whether a gradient will be asked for. A compiler cannot trace a Function that has none."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _applied(function: type[torch.autograd.Function], *tensors: Tensor) -> Any:
    return function.apply(*tensors)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _computing(x: Tensor, exact: bool) -> torch.dtype:
    """The dtype in which x is computed with: one width up, where that is asked for and there."""
    if x.dtype == torch.float64:
        return torch.float64
    wide = exact and x.dtype == torch.float32 and x.device.type != "mps"
    return torch.float64 if wide else torch.float32


def _spread(parameter: Tensor, x: Tensor) -> Tensor:
    """A parameter ready to meet x (..., C): one number, or one for each of the C neurons."""
    if parameter.numel() == 1:
        return parameter.reshape(())
    if x.dim() == 0 or parameter.shape != x.shape[-1:]:
        raise ConfigError(
            f"the parameter has {parameter.numel()} values and the input {_told(x)}",
            fix="Build the activation for as many neurons as its input has in the last axis",
        )
    return parameter


def _by_blocks(function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
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


def _rows(contributions: Tensor, like: Tensor) -> Tensor:
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
    if contributions.numel() == contributions.shape[-1]:  # one row: threads would share it
        return _sum(contributions).to(contributions.dtype).reshape(contributions.shape[:-1])
    return contributions.sum(-1)


def _total(rows: Tensor, like: Tensor) -> Tensor:
    """The sum of the partial sums, added in float64, shaped and typed as `like`."""
    if like.numel() > 1:
        return rows.double().t().contiguous().sum(-1).to(like.dtype).reshape(like.shape)
    return _sum(rows).to(like.dtype).reshape(like.shape)


def _sum(values: Tensor) -> Tensor:
    """The sum of everything in float64, as a tree of groups of _GROUP: one shape, one order.

    torch cuts a long sum with a single result into one part a thread; a group is too short for it.
    """
    flat = values.reshape(-1).double()
    while flat.numel() > 1:
        flat = F.pad(flat, (0, -flat.numel() % _GROUP)).reshape(-1, _GROUP).sum(-1)
    return flat.sum() if flat.numel() == 0 else flat.reshape(())


def _square(upper: list[Tensor], count: int) -> list[list[Tensor]]:
    """The symmetric table whose upper triangle is given row by row."""
    cells = iter(upper)
    table: dict[tuple[int, int], Tensor] = {}
    for i in range(count):
        for j in range(i, count):
            table[i, j] = table[j, i] = next(cells)
    return [[table[i, j] for j in range(count)] for i in range(count)]


def _told(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
