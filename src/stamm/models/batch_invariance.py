"""Matrix products of a forward pass whose rows do not depend on the batch, to the bit.

A library multiplies a few rows with other kernels than many, and the last rows of a product with other
kernels than those before, which round differently. Here rows are multiplied in blocks of one size, the
last one padded with zeros: every row then goes through the same kernel, wherever it is. Rows are padded
to whole vectors, too: where they begin at different positions of a vector, MKL 2024.2 sums short ones in
different orders (7 inputs and 5 outputs: 144 of 192 equal rows differed in their last bits).

Letters: R rows, I input features, O output features.
Checked  tests/unit/models/test_batch_invariance.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

BLOCK = (
    192  # rows; a multiple of the heights of tiles that libraries use: 6, 8, 12, 16, 24, 32, 48, 64
)
PADDED = 16  # lengths and input features are multiples of it: a vector has up to 16 numbers


class BatchInvariant(TorchFunctionMode):
    """Computes `torch.nn.functional.linear` in blocks of rows: float32 on a CPU, without gradients.

    Edge     other dtypes and devices, and tensors with gradients, are computed as without it
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func`, or multiply in blocks."""
        if func is F.linear and not kwargs and len(args) >= 2 and _applies(args[0]):
            bias = args[2] if len(args) > 2 else None
            product = _product(args[0], args[1])
            return product if bias is None else product + bias
        return func(*args, **(kwargs or {}))


def padded_length(tokens: int) -> int:
    """The length that a batch with rows of up to `tokens` tokens is padded to."""
    return -(-tokens // PADDED) * PADDED


def _applies(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_grad_enabled()


def _product(x: Tensor, weight_OI: Tensor) -> Tensor:
    x_RI = x.reshape(-1, x.shape[-1])
    if missing := -x.shape[-1] % PADDED:
        x_RI, weight_OI = F.pad(x_RI, (0, missing)), F.pad(weight_OI, (0, missing))
    rows, weight_IO = len(x_RI), weight_OI.t()
    y_RO = x_RI.new_empty(rows, len(weight_OI))
    whole = rows // BLOCK * BLOCK
    for start in range(0, whole, BLOCK):
        torch.mm(x_RI[start : start + BLOCK], weight_IO, out=y_RO[start : start + BLOCK])
    if whole < rows:
        last = F.pad(x_RI[whole:], (0, 0, 0, BLOCK - (rows - whole)))
        y_RO[whole:] = torch.mm(last, weight_IO)[: rows - whole]
    return y_RO.reshape(*x.shape[:-1], len(weight_OI))
