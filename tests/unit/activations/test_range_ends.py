"""Slopes at the far end of a dtype: subnormal numbers stay, until no number is small enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch

from stamm.activations.module import build_activation

Formula = Callable[[Any], Any]
SLOPES: dict[str, tuple[int, Formula]] = {  # how fast they fall; exact, alpha as stored
    "isrlu": (3, lambda x: mpmath.power(1 + x * x, mpmath.mpf("-1.5"))),
    "isru": (3, lambda x: mpmath.power(1 + x * x, mpmath.mpf("-1.5"))),
    "softsign": (2, lambda x: (1 + abs(x)) ** -2),
}
DTYPES = [torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 2**15], ids=["eager", "fused"])
@pytest.mark.parametrize("name", SLOPES)
def test_slopes_keep_their_subnormal_numbers(name: str, size: int, dtype: torch.dtype) -> None:
    """Between the smallest normal number and half the smallest subnormal one."""
    power, formula = SLOPES[name]
    information = torch.finfo(dtype)
    low = mpmath.mpf(information.tiny) * mpmath.mpf(information.eps)  # the smallest subnormal one
    ends = [float(mpmath.root(1 / (low * factor), power)) for factor in (mpmath.mpf(2) ** 30, 1)]
    points = [-ends[0] * (ends[1] / ends[0]) ** (k / 40) for k in range(43)]
    module = build_activation(name, dtype=torch.float64)
    x = torch.tensor(points, dtype=torch.float64).to(dtype).repeat(size).requires_grad_()
    module(x).backward(torch.ones_like(x))
    assert x.grad is not None
    with mpmath.workdps(40):
        for point, found in zip(x[: len(points)].tolist(), x.grad.tolist(), strict=False):
            true = formula(mpmath.mpf(point))
            # Computed in its own dtype, a float64 value has a few roundings of its own.
            digits = 8 * information.eps if dtype == torch.float64 else 0.51 * information.eps
            step = 1.01 if dtype == torch.float64 else 0.51
            assert abs(found - true) <= max(digits * true, step * low), point
