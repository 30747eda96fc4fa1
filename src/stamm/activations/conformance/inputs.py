"""The inputs that implementations are judged at, made by a rule that any language can follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.conformance.exact import kernel_parameters
from stamm.activations.conformance.ulp import neighbours
from stamm.activations.spec import Spec
from stamm.activations.spec.gradient_checks import value_of
from stamm.base.hashing import GOLDEN

FULL = 400_000
SAMPLED = 20_000
_SMALL, _LARGE = 1e-38, 1e38
_EDGES = (1e-45, 1.17549435e-38, 3.4028234663852886e38)  # smallest, smallest normal, largest
_GRID = 4096
_BISECTIONS = 200
_SHORT = (torch.bfloat16, torch.float16)


def inputs(
    spec: Spec, values: Mapping[str, float], dtype: torch.dtype, *, count: int = FULL
) -> Tensor:
    """The finite inputs at which a spec is judged in `dtype`, in increasing order, each once.

    bfloat16, float16   every finite value
    float32             `count` values spread over all magnitudes of both signs, plus and minus 0,
                        the smallest and largest numbers, and the neighbours of knots and zeros
    values              effective parameter values, for the knots and zeros
    """
    if dtype in _SHORT:
        every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
        return torch.sort(every[torch.isfinite(every)])[0]
    edges = torch.tensor([0.0, *_EDGES])
    special = torch.tensor([*knots(spec, values), *zeros(spec, values)], dtype=torch.float64)
    near = neighbours(special.float())
    chosen = torch.cat([log_uniform_inputs(count), edges, -edges, near[torch.isfinite(near)]])
    ordered = torch.unique(chosen)  # sorted; it holds one of the two zeros
    return torch.sort(torch.cat([torch.tensor([-0.0]), ordered]), stable=True)[0].to(dtype)


def log_uniform_inputs(count: int) -> Tensor:
    """`count` float32 numbers, alternately positive and negative, of every magnitude.

    The magnitude of number i has the bit pattern low + floor((high - low) t) where t is
    (i G mod 2**64)/2**64, G = 0x9E3779B97F4A7C15 (2**64 over the golden ratio), and low and high
    are the patterns of 1e-38 and 1e38: every representable magnitude is equally likely, which is
    log-uniform up to the steps of the exponent. Only integers are involved.
    """
    low, high = (int(np.float32(bound).view(np.uint32)) for bound in (_SMALL, _LARGE))
    with np.errstate(over="ignore"):
        turns = np.arange(count, dtype=np.uint64) * GOLDEN
    patterns = (turns >> np.uint64(32)) * np.uint64(high - low) >> np.uint64(32)
    bits = (patterns + np.uint64(low)).astype(np.uint32)
    bits[1::2] |= np.uint32(1 << 31)
    return torch.from_numpy(bits.view(np.float32).copy())


def exponents(dtype: torch.dtype) -> Tensor:
    """One number of every exponent that a dtype has, of both signs, and its ends, in order.

    From the smallest subnormal number to the largest finite one; the numbers between are 1.375
    times a power of two, where the dtype holds it.
    """
    limit = torch.finfo(dtype)
    smallest, largest = limit.tiny * limit.eps, limit.max
    low, high = math.frexp(smallest)[1], math.frexp(largest)[1]
    inner = [math.ldexp(0.6875, power) for power in range(low + 1, high + 1)]
    sizes = torch.tensor([smallest, limit.tiny, *inner, largest], dtype=torch.float64)
    ordered: Tensor = torch.unique(torch.cat([-sizes, sizes]).to(dtype))
    return ordered


def mixed_ups(count: int, dtype: torch.dtype) -> Tensor:
    """`count` factors of both signs with magnitudes in [1, 2), by the sequence of `log_uniform_inputs`.

    None is below 1: a product then overflows no later than its first factor.
    """
    with np.errstate(over="ignore"):
        turns = (np.arange(1, count + 1, dtype=np.uint64) * GOLDEN) >> np.uint64(40)
    share = torch.from_numpy(turns.astype(np.float64)) / 2.0**24
    sign = torch.where((torch.from_numpy(turns.astype(np.int64)) & 1) == 0, 1.0, -1.0)
    return (sign * (1.0 + share)).to(dtype)


def knots(spec: Spec, values: Mapping[str, float]) -> list[float]:
    """Where one piece of the gradient ends and another begins, from left to right."""
    lows = [interval.low for interval in spec.intervals]
    return sorted({value_of(low, values) for low in lows if low is not None})


def zeros(spec: Spec, values: Mapping[str, float]) -> list[float]:
    """Where f or what the backward pass returns for f' changes its sign, from left to right.

    Found by bisection in float64 between points of a grid: a double zero is not among them, and
    neither is a plain jump across 0, which is a knot.
    """
    kernel = kernel_of(spec)
    parameters = kernel_parameters(spec, values)
    half = torch.logspace(-12, 3, _GRID, dtype=torch.float64)
    grid = torch.cat([-half.flip(0), torch.zeros(1, dtype=torch.float64), half])
    found: set[float] = set()
    for of in (
        lambda x: kernel.value(x, parameters),
        lambda x: kernel.slopes(x, parameters)[0],
    ):
        found |= set(_sign_changes(of, grid).tolist())
    return sorted(found - set(knots(spec, values)))


def _sign_changes(of: Callable[[Tensor], Tensor], grid: Tensor) -> Tensor:
    signs = torch.sign(of(grid))
    at_point = grid[(signs == 0) & (torch.roll(signs, 1) * torch.roll(signs, -1) < 0)]
    changed = signs[:-1] * signs[1:] < 0
    low, high = grid[:-1][changed], grid[1:][changed]
    left = signs[:-1][changed]
    for _ in range(_BISECTIONS):
        middle = low + (high - low) / 2
        same = torch.sign(of(middle)) == left
        low, high = torch.where(same, middle, low), torch.where(same, high, middle)
    return torch.cat([at_point, high])
