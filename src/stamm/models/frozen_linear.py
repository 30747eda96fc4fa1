"""Frozen matrices in 16 bits whose products are those of float32.

Letters: N inputs, M outputs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _FrozenProduct(torch.autograd.Function):
    """x W' (+ bias) of a frozen W in 16 bits, computed in the dtype of x; W is kept for backward, not its copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        # Without a gradient torch multiplies more than two dimensions in another order.
        return F.linear(x.flatten(0, -2), weight.to(x.dtype), bias).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        (grad,) = grads
        product = grad.flatten(0, -2) @ weight.to(grad.dtype)
        return product.view(*grad.shape[:-1], -1), None, None


def frozen_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W' (+ bias), (..., M), with the bits of a W in the dtype of `x`, in forward and backward.

    weight   (M, N), frozen; its copy in the dtype of `x` lives as long as the product is computed
    Checked  tests/unit/models/test_lora.py
    """
    if weight.dtype == x.dtype or torch.is_autocast_enabled(x.device.type):
        return F.linear(x, weight, bias)
    product: Tensor = _FrozenProduct.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return product


class FrozenLinear(nn.Linear):
    """A linear layer whose weight keeps its stored dtype, and whose result has that of the input.

    Checked  tests/unit/models/test_stored_weights.py
    """

    def forward(self, x: Tensor) -> Tensor:
        """The result, (..., M), from `x`, (..., N), with the bits of a float32 layer, also without gradients."""
        if torch.is_grad_enabled():
            return frozen_product(x, self.weight, self.bias)
        return F.linear(x, self.weight.to(x.dtype), self.bias)
