"""Functions that ONNX Runtime lacks in float64 or ONNX lacks altogether, by those that it has.

An activation computes float32 in float64. ONNX Runtime's CPU has exp, log, tanh and arithmetic in
float64, and the functions below in float32 or not at all; torch.onnx knows no sinh, cosh, asinh and acosh.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stamm.activations.primitives import coefficients
from stamm.activations.primitives.polynomials import horner

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
    return torch.where(x < 0.0, 2.0 - y, y) + (x - x)  # NaN for NaN


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
