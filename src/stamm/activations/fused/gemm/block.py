"""The feed-forward block down(f(up(x))) with f in its products, where that was measured to be faster.

Forward is one kernel from x to f, backward one from the result's gradient to f's input. All other
products are the library's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from stamm.activations.fused import gpu, operation
from stamm.activations.fused.gemm import product
from stamm.activations.fused.gemm.choice import Shape, Step, measured_faster
from stamm.activations.fused.gemm.source import STORED
from stamm.activations.fused.passes import Fixed
from stamm.activations.kernel_lookup import Kernel, kernel_of
from stamm.activations.module import EXACT, Activation
from stamm.activations.ops import plain_operation

Operation = Callable[..., Tensor]
STEPS: tuple[Step, ...] = ("forward", "backward")


def serves(x: Tensor, up: nn.Module, activation: nn.Module, down: nn.Module) -> bool:
    """Whether `fused_block` can stand for the three modules here, and was measured to gain by it.

    Edge     False while a compiler traces, under autocast and in torch.func transforms; for modules
             with hooks or biases, or of any class but nn.Linear; for weights that are no plain
             tensors; for shapes of every neuron; where nothing was measured.
    Checked  tests/unit/activations/test_fused_gemm.py
    """
    if torch.compiler.is_compiling() or x.dtype not in STORED or not gpu.serves(x):
        return False
    if not all(_bare(module) for module in (up, activation, down)):
        return False
    assert isinstance(up, nn.Linear) and isinstance(down, nn.Linear)
    assert isinstance(activation, Activation)
    tensors = [x, up.weight, down.weight]
    if any(t.dtype != x.dtype or t.device != x.device for t in tensors):
        return False
    if activation.compat != EXACT or activation.count > 1:
        return False
    if torch.is_autocast_enabled(x.device.type) or not operation.serves(tensors):
        return False
    shape, key = _shape(x, up.weight), kernel_of(activation.spec).content_hash
    return any(measured_faster(step, shape, x.dtype, x.device, key) for step in STEPS)


def fused_block(
    x: Tensor, up: nn.Module, activation: nn.Module, down: nn.Module, *, keep_post: bool
) -> Tensor:
    """down(f(up(x))), each of the two passes of f in a product where that was measured faster.

    keep_post   whether f is kept for the backward pass, or computed once more; what goes into f is
                kept in any case
    Shapes      x (..., K), weights (N, K) and (D, N), the result (..., D); one f for the layer
    Dtypes      all alike, bfloat16 or float16
    Edge        differentiable twice: the second derivative is that of the eager form.
    Checked     tests/unit/activations/test_fused_gemm.py
    """
    assert isinstance(up, nn.Linear) and isinstance(down, nn.Linear)  # `serves` has said so
    assert isinstance(activation, Activation)
    spec = activation.spec
    block = _block(kernel_of(spec), product.fixed_values(spec), keep_post)
    return block(x, up.weight, down.weight, *activation.effective_tensors())


@lru_cache(maxsize=64)
def _block(kernel: Kernel, fixed: Fixed, keep_post: bool) -> Operation:
    plain = plain_operation(kernel, fixed)

    def eager(x: Tensor, up: Tensor, down: Tensor, *parameters: Tensor) -> Tensor:
        return plain(x @ up.T, *parameters) @ down.T

    class Block(torch.autograd.Function):
        """f(x up^T) down^T."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, up: Tensor, down: Tensor, *parameters: Tensor) -> Tensor:
            pre, post = _up(kernel, fixed, x, up, parameters)
            ctx.count = len(parameters)
            ctx.save_for_backward(x, up, down, *parameters, pre, *([post] if keep_post else []))
            return (post @ down.T).view(*x.shape[:-1], -1)

        @staticmethod
        def backward(ctx: Any, into: Tensor) -> tuple[Tensor | None, ...]:
            x, up, down, *rest = ctx.saved_tensors
            parameters, (pre, *post) = rest[: ctx.count], rest[ctx.count :]
            if torch.is_grad_enabled():
                return operation.differentiable(eager, into, (x, up, down, *parameters))
            for_x, for_up, for_down, *_ = ctx.needs_input_grad
            into = into.reshape(-1, down.shape[0])
            into_pre, sums = _into_pre(kernel, fixed, into, down, pre, parameters)
            if for_down and not post:
                post = [_pointwise(kernel, fixed, pre, parameters)]
            return (
                (into_pre @ up).view(x.shape) if for_x else None,
                into_pre.T @ x.reshape(-1, up.shape[1]) if for_up else None,
                into.T @ post[0] if for_down else None,
                *sums,
            )

    def block(*tensors: Tensor) -> Tensor:
        result: Tensor = Block.apply(*tensors)  # type: ignore[no-untyped-call]
        return result

    return block


def _up(
    kernel: Kernel, fixed: Fixed, x: Tensor, up: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """x up^T and f of it."""
    flat = x.reshape(-1, up.shape[1])
    if measured_faster("forward", _shape(x, up), x.dtype, x.device, kernel.content_hash):
        made = product.forward(kernel, fixed, flat, up, parameters)
        return made["pre"], made["post"]
    pre = flat @ up.T
    return pre, _pointwise(kernel, fixed, pre, parameters)


def _into_pre(
    kernel: Kernel,
    fixed: Fixed,
    into: Tensor,
    down: Tensor,
    pre: Tensor,
    parameters: Sequence[Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """(into down) f'(pre), and the gradient of each parameter."""
    shape = _shape(into, down.T)
    if measured_faster("backward", shape, into.dtype, into.device, kernel.content_hash):
        return product.backward(kernel, fixed, into, down, pre, parameters)
    read, result = [into @ down, pre], torch.empty_like(pre)
    return result, gpu.run("backward", kernel, fixed, torch.float32, read, [result], parameters)


def _pointwise(kernel: Kernel, fixed: Fixed, pre: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    result = torch.empty_like(pre)
    gpu.run("forward", kernel, fixed, torch.float32, [pre], [result], parameters)
    return result


def _shape(left: Tensor, weight: Tensor) -> Shape:
    columns, depth = weight.shape
    return Shape(rows=left.numel() // max(depth, 1), columns=columns, depth=depth)


def _bare(module: nn.Module) -> bool:
    """Whether a module is one of ours or torch's own, and nobody listens to it."""
    if type(module) not in (nn.Linear, Activation) or getattr(module, "bias", None) is not None:
        return False
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return not any(getattr(module, name) for name in hooks)
