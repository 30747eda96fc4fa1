"""Device functions and conversions for Triton's interpreter: torch's, on its arrays.

Only source that is generated for the interpreter imports this file; a GPU never runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor
from triton.runtime.interpreter import TensorHandle  # type: ignore[import-untyped]

_DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
_LOG2_E = 1.4426950216293335  # in float32
_FAST = 2.0**-22  # relative error of the device's fast power of two


def _tensor(x: Any) -> Tensor:
    if isinstance(x, float):  # a constant of the source
        return torch.tensor(x)
    held = torch.from_numpy(np.array(x.handle.data))
    # The interpreter holds bfloat16 as the bits that it is.
    return held.view(torch.bfloat16) if x.dtype.name == "bf16" else held


def _block(result: Tensor, shape: Any, dtype: Any) -> Any:
    data = result.view(torch.uint16) if result.dtype == torch.bfloat16 else result
    return tl.tensor(TensorHandle(data.numpy(), dtype), shape.with_element_ty(dtype))


def _converted(x: Any, dtype: Any) -> Any:
    dtype = getattr(dtype, "value", dtype)
    return _block(_tensor(x).to(_DTYPES[dtype.name]), x.type, dtype)


def _on_arrays(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def applied(*operands: Any) -> Any:
        blocks = [operand for operand in operands if not isinstance(operand, float)]
        widest = max(blocks, key=lambda block: block.numel.value)
        return _block(function(*map(_tensor, operands)), widest.type, widest.dtype)

    return applied


def _fast_exp(x: Tensor) -> Tensor:
    """exp as on the device, with the largest error allowed: alternately above and below the value."""
    exact = torch.exp2((x * _LOG2_E).double())
    side = 1.0 - 2.0 * (x.view(torch.int32) & 1)
    approximation = torch.where(x == 0, exact, exact * (1.0 + side * _FAST)).float()
    return torch.where(approximation < torch.finfo(torch.float32).tiny, 0.0, approximation)


widened = narrowed = _converted
fast_expf = _on_arrays(_fast_exp)
exp, log, log1p = _on_arrays(torch.exp), _on_arrays(torch.log), _on_arrays(torch.log1p)
erf, erfc, pow = _on_arrays(torch.erf), _on_arrays(torch.erfc), _on_arrays(torch.pow)
sin, cos, tan = _on_arrays(torch.sin), _on_arrays(torch.cos), _on_arrays(torch.tan)
asin, atan, atan2 = _on_arrays(torch.asin), _on_arrays(torch.atan), _on_arrays(torch.atan2)
sinh, cosh, tanh = _on_arrays(torch.sinh), _on_arrays(torch.cosh), _on_arrays(torch.tanh)
asinh, acosh, sqrt = _on_arrays(torch.asinh), _on_arrays(torch.acosh), _on_arrays(torch.sqrt)
