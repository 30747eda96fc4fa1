"""Differentiable operations: forward saves its inputs only, gradients come from the spec.

Everything is computed in the next wider dtype and rounded once: 16-bit inputs in float32, float32
in float64. Terms of parameters alone are computed in their own dtype, float64.
Parameter gradients are summed row by row in the computing dtype and then in float64, in an order
that does not depend on the thread count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stamm.activations.codegen.kernel_lookup import Kernel
from stamm.activations.fused.operation import (
    Form,
    Layout,
    Operation,
    apart,
    by_blocks,
    fused,
    joined,
    out_of_range,
    rows,
    shaped,
    square,
    total,
)
from stamm.activations.fused.passes import Fixed, check_neurons, size_text
from stamm.activations.primitives import Parameters, coefficients
from stamm.activations.primitives.polynomials import horner
from stamm.base.errors import ConfigError

GradientsOf = Callable[[Tensor, Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, ...]]


@lru_cache(maxsize=256)
def operation_of(
    kernel: Kernel, fixed: Fixed, exact: bool = True, layout: Layout = "plain"
) -> Operation:
    """The function (*inputs, *trainable effective values) -> f(x) or f(gate) h(up), differentiable twice.

    fixed    per parameter of the spec its constant value, or None where a tensor is passed
    exact    False computes float32 inputs in float32: faster, and a few ulp off where terms cancel
    layout   "plain" takes x; "apart" gate and up; the others one tensor (..., 2 C) that holds both
    Shapes   a parameter holds one number, or one for each neuron: the size of the last axis
    Dtypes   float16 and bfloat16 are computed in float32, float32 and float64 in float64 (in
             float32 on a device without it), with one rounding, to the dtype of the inputs.
             Parameter gradients have the dtype of the parameter.
    Edge     a third derivative raises an error in autograd, and is never wrong.
    Raises   ConfigError when gate and up differ in shape or dtype.
    Checked  tests/unit/activations/test_gradients.py
    """
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


_FARTHEST = 28.0  # exp(-x**2) is 0 in double precision from there on
_SERIES = tuple(
    2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(22)
)


class Portable(TorchFunctionMode):
    """Replaces these functions of torch while a graph is traced for ONNX.

    Checked   tests/unit/activations/test_portable.py
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        other = _FORMS.get(function)
        return other(*args) if other is not None else function(*args, **(kwargs or {}))


def erfc(x: Tensor) -> Tensor:
    """1 - erf(x), with the digits of its tail."""
    size = torch.clamp(torch.abs(x), max=_FARTHEST)
    turned = (size - 3.0) / (size + 3.0)
    y = horner(turned, coefficients.ERROR_COMPLEMENT[1]) / (1.0 + 2.0 * size)
    y = y * torch.exp(-size * size)
    # NaN for NaN, where a runtime's clamp returns a limit
    return torch.where(x == x, torch.where(x < 0.0, 2.0 - y, y), x)


def erf(x: Tensor) -> Tensor:
    """erf(x), by its series up to 1."""
    near = torch.clamp(x, min=-1.0, max=1.0)
    return torch.where(torch.abs(x) < 1.0, near * horner(near * near, _SERIES), 1.0 - erfc(x))


def atan(x: Tensor) -> Tensor:
    """atan(x), from that of 1/x beyond 1."""
    size = torch.abs(x)
    t = torch.clamp(size, max=1.0) / torch.clamp(size, min=1.0)
    near = t / (1.0 + t * t) + t * t * t * horner(t * t, coefficients.ARCTAN[1])
    far = 1.5707963267948966 - near
    return torch.sign(x) * torch.where(size > 1.0, far, near)


def atan2(y: Tensor, x: Tensor) -> Tensor:
    """The angle of (x, y) for y > 0."""
    beside = atan(y / torch.clamp(torch.abs(x), min=1e-300))
    return torch.where(x < 0.0, 3.141592653589793 - beside, beside)


def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, near 0 by tanh: ONNX has exp only."""
    t = torch.tanh(torch.clamp(x, min=-1.0, max=1.0) / 2.0)
    return torch.where(torch.abs(x) < 1.0, 2.0 * t / (1.0 - t), torch.exp(x) - 1.0)


def log1p(x: Tensor) -> Tensor:
    """log(1 + x), near 0 with what the sum 1 + x was rounded by."""
    whole = 1.0 + x
    added = whole - 1.0
    scale = x / torch.where(added == 0.0, torch.ones_like(x), added)
    near = torch.where(added == 0.0, x, torch.log(whole) * scale)
    return torch.where(torch.abs(x) < 1.0, near, torch.log(whole))


def asin(x: Tensor) -> Tensor:
    """asin(x), as the angle of (sqrt(1 - x**2), x)."""
    return atan(x / torch.sqrt((1.0 - x) * (1.0 + x)))


def sinh(x: Tensor) -> Tensor:
    """sinh(x), near 0 from exp(|x|) - 1."""
    rise = expm1(torch.abs(x))
    fall = torch.where(rise < 1e30, rise / (1.0 + rise), torch.ones_like(x))  # 1 - exp(-|x|)
    return torch.sign(x) * (rise + fall) / 2.0


def cosh(x: Tensor) -> Tensor:
    """cosh(x), by its definition."""
    return (torch.exp(x) + torch.exp(-x)) / 2.0


def asinh(x: Tensor) -> Tensor:
    """asinh(x), near 0 by log(1 + u)."""
    size = torch.abs(x)
    near = torch.clamp(size, max=1e9)
    inside = log1p(near + near * near / (1.0 + torch.sqrt(1.0 + near * near)))
    far = torch.log(size) + math.log(2.0)
    return torch.sign(x) * torch.where(size > 1e9, far, inside)


def acosh(x: Tensor) -> Tensor:
    """acosh(x), near 1 by log(1 + u)."""
    near = torch.clamp(x, max=1e9) - 1.0
    inside = log1p(near + torch.sqrt(near * (near + 2.0)))
    return torch.where(x > 1e9, torch.log(x) + math.log(2.0), inside)


_FORMS: Mapping[Any, Callable[..., Tensor]] = {
    torch.erf: erf,
    torch.erfc: erfc,
    torch.atan: atan,
    torch.atan2: atan2,
    torch.expm1: expm1,
    torch.log1p: log1p,
    torch.asin: asin,
    torch.sinh: sinh,
    torch.cosh: cosh,
    torch.asinh: asinh,
    torch.acosh: acosh,
}
