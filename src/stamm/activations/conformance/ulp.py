"""Errors in units of the last place, and rounding to a shorter dtype in one step."""

from __future__ import annotations

import torch
from torch import Tensor


def ulps(result: Tensor, exact: Tensor) -> Tensor:
    """The error of `result` in units of the last place of `exact` in the dtype of `result`.

    exact    the true values, in float64
    Edge     below the smallest normal number the unit is the smallest subnormal; where `exact`
             overflows the dtype, an infinity of the right sign counts as 0.
    """
    error = (result.double() - exact).abs() / unit(exact, result.dtype)
    overflow = torch.isinf(result) & overflows(exact, result.dtype)
    overflow &= result.sign() == exact.sign()
    return torch.where(overflow, torch.zeros_like(error), error)


def unit(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbours of `dtype` at each value, in float64."""
    information = torch.finfo(dtype)
    magnitude = exact.abs().clamp(min=information.tiny)
    # The quotient is a power of two, exactly; torch.ldexp would form it in float32.
    return magnitude / torch.frexp(magnitude)[0] * (information.eps / 2)


def overflows(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Where the nearest value of `dtype` is an infinity: from the largest number plus half a unit.

    That sum is the middle between the largest number and the power of two above it; a tie is
    rounded to the even one of the two, which is infinity.
    """
    largest = torch.tensor(torch.finfo(dtype).max, dtype=torch.float64)
    return exact.abs() >= largest + unit(largest, dtype) / 2


def rounded(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 values in `dtype`, to nearest with ties to even, rounded once.

    torch converts float64 to bfloat16 by way of float32, which rounds twice.
    """
    if dtype == torch.float64:
        return exact
    over = overflows(exact, dtype)
    step = unit(torch.where(over, torch.zeros_like(exact), exact), dtype)
    nearest = torch.round(torch.where(over, torch.zeros_like(exact), exact) / step) * step
    infinite = torch.full_like(exact, torch.inf).copysign(exact)
    # A zero that was rounded to keeps the sign of the value.
    return torch.where(over, infinite, nearest.copysign(exact)).to(dtype)


def neighbours(points: Tensor) -> Tensor:
    """Each point with the value just below and just above it in the same dtype."""
    infinity = torch.full_like(points, torch.inf)
    return torch.stack(
        [torch.nextafter(points, -infinity), points, torch.nextafter(points, infinity)], -1
    ).reshape(-1)


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype's name without its package: bfloat16."""
    return str(dtype).removeprefix("torch.")
