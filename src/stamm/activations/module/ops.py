"""Differentiable operations: forward saves its inputs only, gradients come from the spec.

Everything is computed in the next wider dtype and rounded once: 16-bit inputs in float32, float32
in float64. Terms of parameters alone are computed in their own dtype, float64.
Parameter gradients are summed row by row in the computing dtype and then in float64, in an order
that does not depend on the thread count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stamm.activations.codegen.kernel_lookup import Kernel
from stamm.activations.fused.layouts import check_neurons, size_text
from stamm.activations.fused.operation import Form, Layout, Operation, apart, fused, joined
from stamm.activations.fused.passes import Fixed
from stamm.activations.module.portable import Portable
from stamm.activations.primitives import Parameters
from stamm.activations.reductions import by_blocks, out_of_range, rows, shaped, square, total
from stamm.base.errors import ConfigError

GradientsOf = Callable[[Tensor, Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, ...]]


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
    return _fused(kernel, fixed, exact, "plain")


def gated_operation(
    kernel: Kernel, fixed: Fixed, *, exact: bool = True, layout: Layout = "apart"
) -> Operation:
    """The function (gate, up, *trainable effective values) -> f(gate) * up, differentiable twice.

    For a spec with a fixed function h of up, the result is f(gate) * h(up).

    layout   "apart", or how one tensor holds both: it is then taken in the place of gate and up
    Shapes   gate and up alike, or one (..., 2 C); parameters as in `plain_operation`.
    Dtypes   as `plain_operation`; the product is formed before the one rounding.
    Raises   ConfigError when gate and up differ in shape or dtype.
    """
    return _fused(kernel, fixed, exact, layout)


@lru_cache(maxsize=256)
def _fused(kernel: Kernel, fixed: Fixed, exact: bool, layout: Layout) -> Operation:
    eager = _operations(kernel, fixed, exact)

    def in_two(both: Tensor, *trainable: Tensor) -> Tensor:
        return eager.gated(*apart([both], layout), *trainable)

    def gradients_in_one(
        weight: Tensor, inputs: Sequence[Tensor], trainable: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        gate, up, *sums = eager.gated_gradients(weight, apart(inputs, layout), trainable)
        return (joined(gate, up, layout), *sums)

    function, gradients = {
        "plain": (eager.plain, eager.plain_gradients),
        "apart": (eager.gated, eager.gated_gradients),
    }.get(layout, (in_two, gradients_in_one))
    operation = fused(
        Form(
            kernel=kernel,
            fixed=fixed,
            exact=exact,
            layout=layout,
            computing=lambda x: _computing(x, exact),
            eager=function,
            gradients=gradients,
        )
    )
    return _of_two(operation) if layout == "apart" else operation


def _of_two(operation: Operation) -> Operation:
    def gated(gate: Tensor, up: Tensor, *trainable: Tensor) -> Tensor:
        if gate.shape != up.shape or gate.dtype != up.dtype:
            raise ConfigError(
                f"gate is {size_text(gate)} and up is {size_text(up)}",
                fix="Give both the same shape and dtype",
            )
        return operation(gate, up, *trainable)

    gated.form = operation.form  # type: ignore[attr-defined]
    return gated


class _Eager(NamedTuple):
    """The eager forms of one kernel: functions that can be differentiated, and their gradients."""

    plain: Operation
    gated: Operation
    plain_gradients: GradientsOf
    gated_gradients: GradientsOf


@lru_cache(maxsize=256)
def _operations(kernel: Kernel, fixed: Fixed, exact: bool) -> _Eager:
    # Plain functions, because a compiler that traces this closure cannot handle our classes.
    value, slopes, curvatures = kernel.value, kernel.slopes, kernel.curvatures

    def computing(x: Tensor) -> torch.dtype:
        return _computing(x, exact)

    def prepared(x: Tensor, trainable: tuple[Tensor, ...]) -> Parameters:
        # Terms of parameters alone are computed in their own dtype: alpha_n - beta cancels.
        dtypes = [torch.promote_types(t.dtype, computing(x)) for t in trainable]
        wide = [t.to(dtype) for t, dtype in zip(trainable, dtypes, strict=True)]
        numbers = iter([_spread(t, x) for t in wide])
        return tuple(next(numbers) if f is None else f for f in fixed)

    def second(
        weight: Tensor,
        x: Tensor,
        trainable: Sequence[Tensor],
        into_x: Tensor | None,
        into_parameters: Sequence[Tensor | None],
        *,
        along: bool = False,
    ) -> tuple[Tensor, ...]:
        """The gradients of Gradients: for weight, for x, and for each parameter.

        along   return instead the derivatives of its results along x and parameters: the transposed
                table, which differs only in a surrogate's slopes in parameters
        """
        wide, parameters = x.to(computing(x)), prepared(x, tuple(trainable))
        slope, *by_parameter = slopes(wide, parameters)
        curvature, *rest = curvatures(wide, parameters)
        count = len(trainable)
        mixed, by_pair = rest[:count], square(rest[count:], count)
        # For a surrogate s the kernel also returns ds/dp, in its last rows.
        bends = rest[count * (count + 3) // 2 :] or mixed
        if along:
            mixed, bends = bends, mixed
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
                total(rows(wide_weight * t, p), p)
                for t, p in zip(for_parameters, trainable, strict=True)
            ),
        )

    def along(x: Tensor, trainable: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Tensor:
        """The derivative of f along a direction, in the computing dtype."""
        wide = x.to(computing(x))
        slope, *by_parameter = slopes(wide, prepared(x, tuple(trainable)))
        moved = torch.zeros_like(wide)
        into_x, *into_parameters = tangents
        if into_x is not None:
            moved = into_x.to(wide.dtype) * slope
        for row, tangent in zip(by_parameter, into_parameters, strict=True):
            if tangent is not None:
                moved = moved + _spread(tangent, x).to(wide.dtype) * row
        return moved

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
                return ((weight * slope).to(x.dtype), *(rows(weight * s, p) for s, p in sums))

            gradient, *partial = by_blocks(block, weight, x)
            sums = [total(r, p) for r, p in zip(partial, trainable, strict=True)]
            if computing(x) == torch.float32 and out_of_range(sums, x):
                _, *sums = Gradients.forward(weight.double(), x.double(), *trainable)
            return (shaped(gradient, x), *sums)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)
            # A gradient that is not needed is None, not 0: 0 times an overflowed x**2 is NaN.
            ctx.set_materialize_grads(False)

        @staticmethod
        def jvp(
            ctx: Any, into_weight: Tensor | None, into_x: Tensor | None, *rest: Tensor | None
        ) -> tuple[Tensor, ...]:
            weight, x, *trainable = ctx.saved_tensors
            _, *moved = second(weight, x, trainable, into_x, rest, along=True)
            if into_weight is not None:  # they are linear in it
                direct = Gradients.forward(into_weight, x, *trainable)
                moved = [a + b for a, b in zip(moved, direct, strict=True)]
            taken = [t for t in (into_weight, into_x, *rest) if t is not None]
            last: tuple[Tensor, ...] = _Last.apply(  # type: ignore[no-untyped-call]
                len(moved), *moved, *taken, weight, x, *trainable
            )
            return last

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
        if torch.compiler.is_dynamo_compiling():
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

            return shaped(by_blocks(block, x)[0], x)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

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

            return shaped(by_blocks(block, gate, up)[0], gate)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, into: Tensor) -> tuple[Tensor, ...]:
            gate, up, *trainable = ctx.saved_tensors
            # Products stay in the computing dtype: one rounding, at the end of each gradient.
            wide = computing(gate)
            for_gate, *sums = gradients(into.to(wide) * up.to(wide), gate, *trainable)
            output = plain(gate.to(wide), *trainable)
            return for_gate, (into.to(wide) * output).to(up.dtype), *sums

    # A compiler cannot trace a Function with a rule for forward mode, so that has its own classes.
    class PlainTangent(PlainFunction):
        """f(x), with forward mode."""

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
            x, *trainable = ctx.saved_tensors
            return along(x, trainable, tangents).to(x.dtype)

    class GatedTangent(GatedFunction):
        """f(gate) * up, with forward mode."""

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
            gate, up, *trainable = ctx.saved_tensors
            into_gate, into_up, *rest = tangents
            wide = computing(gate)
            moved: Tensor = along(gate, trainable, (into_gate, *rest)) * up.to(wide)
            if into_up is not None:
                moved = moved + plain(gate.to(wide), *trainable) * into_up.to(wide)
            return moved.to(gate.dtype)

    def plain(x: Tensor, *trainable: Tensor) -> Tensor:
        if torch.compiler.is_dynamo_compiling() and not _differentiated(x, *trainable):
            return PlainFunction.forward(x, *trainable)
        if not torch.compiler.is_dynamo_compiling() and torch.onnx.is_in_onnx_export():
            with Portable():
                return PlainFunction.forward(x, *trainable)
        kind = PlainFunction if torch.compiler.is_dynamo_compiling() else PlainTangent
        result: Tensor = _applied(kind, x, *trainable)
        return result

    second_factor = _second_factor(kernel, fixed, exact)

    def gated(gate: Tensor, up: Tensor, *trainable: Tensor) -> Tensor:
        if (
            second_factor is not None
        ):  # h(up) stays in the wider dtype: it is rounded with the product
            up = second_factor(up.to(computing(up)))
        if torch.compiler.is_dynamo_compiling() and not _differentiated(gate, up, *trainable):
            return GatedFunction.forward(gate, up, *trainable)
        if not torch.compiler.is_dynamo_compiling() and torch.onnx.is_in_onnx_export():
            with Portable():
                return GatedFunction.forward(gate, up, *trainable)
        kind = GatedFunction if torch.compiler.is_dynamo_compiling() else GatedTangent
        result: Tensor = _applied(kind, gate, up, *trainable)
        return result

    def plain_gradients(
        weight: Tensor, inputs: Sequence[Tensor], trainable: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        return Gradients.forward(weight, inputs[0], *trainable)

    def gated_gradients(
        weight: Tensor, inputs: Sequence[Tensor], trainable: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        gate, up = inputs
        wide = computing(gate)
        factor, into_up = up.to(wide), weight.to(wide)
        into_up = into_up * value(gate.to(wide), prepared(gate, tuple(trainable)))
        if kernel.up is not None:
            constants = _constants(fixed)
            into_up = into_up * kernel.up.slopes(factor, constants)[0]
            factor = kernel.up.value(factor, constants)
        for_gate, *sums = Gradients.forward(weight.to(wide) * factor, gate, *trainable)
        return for_gate, into_up.to(up.dtype), *sums

    return _Eager(plain, gated, plain_gradients, gated_gradients)


def _second_factor(kernel: Kernel, fixed: Fixed, exact: bool) -> Operation | None:
    """up -> h(up), or None where the spec multiplies by up itself."""
    if kernel.up is None:
        return None
    return _operations(kernel.up, _constants(fixed), exact).plain


def _constants(fixed: Fixed) -> tuple[float, ...]:
    # h uses fixed parameters only; a trainable one that reached it would show as NaN.
    return tuple(math.nan if f is None else f for f in fixed)


_NO_THIRD = "the third derivative of an activation is not derived: differentiate twice at most"


class _Last(torch.autograd.Function):
    """Results that cannot be differentiated further: raises an error instead of returning zero.

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
        raise RuntimeError(_NO_THIRD)

    @staticmethod
    def jvp(ctx: Any, *into: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError(_NO_THIRD)


def _differentiated(*tensors: Tensor) -> bool:
    """Whether a gradient will be needed. A compiler cannot trace a Function without one."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _applied(function: type[torch.autograd.Function], *tensors: Tensor) -> Any:
    return function.apply(*tensors)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _computing(x: Tensor, exact: bool) -> torch.dtype:
    """The dtype in which x is computed: the next wider one, where requested and supported."""
    if x.dtype == torch.float64:
        return torch.float64
    if not x.dtype.is_floating_point:
        raise ConfigError(
            f"the input is {size_text(x)}, and activations need real floating-point inputs",
            fix="Convert it: x.to(torch.float32)",
        )
    wide = exact and x.dtype == torch.float32 and x.device.type != "mps"
    return torch.float64 if wide else torch.float32


def _spread(parameter: Tensor, x: Tensor) -> Tensor:
    """A parameter that broadcasts with x (..., C): one number, or one for each of the C neurons."""
    check_neurons(parameter, x)
    return parameter.reshape(()) if parameter.numel() == 1 else parameter
