"""Inputs of the judge, and the truth there in float64: every quantity of a spec from its exact, stable formulas.

It is itself checked against 120 digits by `truth_check`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stamm.activations.codegen.kernel_lookup import Kernel, kernel_of
from stamm.activations.conformance.ulp import neighbours
from stamm.activations.primitives import Parameters
from stamm.activations.spec import Spec
from stamm.activations.spec.gradient_checks import value_of
from stamm.base.hashing import GOLDEN

ILL_CONDITIONED = 32.0
CONDITION_TEXT = (
    "judged where the condition number |x v'(x)/v(x)| of the value v is below"
    f" {ILL_CONDITIONED:g}, that is, away from its zeros and its tails"
)
FUNCTION, SLOPE, UP_SLOPE = "function", "slope", "up_slope"
_STEP = 2.0**-24


@dataclass(frozen=True, eq=False)
class ExactValues:
    """One quantity at every input.

    values      float64
    condition   |x v'(x)/v(x)|: the relative condition number;
                0 where the value is 0 and stays 0, infinite where it is 0 and does not
    terms       the largest intermediate magnitude, where it is not the value's own
    """

    values: Tensor
    condition: Tensor
    terms: Tensor | None = None

    @property
    def size(self) -> Tensor:
        """The largest intermediate magnitude of the computation of the value."""
        return self.values.abs() if self.terms is None else self.terms

    @property
    def well_conditioned(self) -> Tensor:
        """Where an implementation is held to its budget."""
        return self.condition < ILL_CONDITIONED


def parameter_slope(name: str) -> str:
    """Name of the slope in the parameter `name` among quantities."""
    return f"slope_in_{name}"


def exact_quantities(
    spec: Spec, values: Mapping[str, float], x: Tensor, up: Tensor | None = None
) -> dict[str, ExactValues]:
    """f, f' (or the declared surrogate), df/dp for each trainable p; with `up`, of f(x) h(up).

    x, up   float64, shape (N,)
    Edge    for a gated spec `slope` is the slope in the gate, and `up_slope` joins it
    """
    kernel = kernel_of(spec)
    parameters = kernel_parameters(spec, values)
    value = kernel.value(x, parameters)
    slope, *by_parameter = kernel.slopes(x, parameters)
    curvature, *rest = kernel.curvatures(x, parameters)
    mixed = rest[: len(by_parameter)]
    growth = _difference(kernel, parameters, x) if spec.surrogate else slope
    quantities = {
        FUNCTION: ExactValues(value, condition(x, value, growth)),
        SLOPE: ExactValues(slope, condition(x, slope, curvature)),
    }
    for parameter, partial, change in zip(spec.trainable, by_parameter, mixed, strict=True):
        quantities[parameter_slope(parameter.name)] = ExactValues(
            partial, condition(x, partial, change)
        )
    return quantities if up is None else _times_up(kernel, parameters, quantities, up)


def slope_size(quantities: Mapping[str, ExactValues], x: Tensor) -> Tensor:
    """|f| + |x f'| + |f'|: magnitude of the terms whose difference is a parameter's slope."""
    f, slope = quantities[FUNCTION].values.abs(), quantities[SLOPE].values.abs()
    return f + (x * slope).abs() + slope


def without_vanishing_slopes(
    quantities: Mapping[str, ExactValues], x: Tensor
) -> dict[str, ExactValues]:
    """The quantities, without a verdict on slopes in parameters that are negligible.

    Where a gate is shut or saturated, its slope in a shift is the difference of numbers of
    `slope_size`. Below 1/256 of that size its last digits are not significant.
    """
    least = slope_size(quantities, x) / 256
    return {
        name: exact
        if name in (FUNCTION, SLOPE, UP_SLOPE)
        else ExactValues(
            exact.values,
            torch.where(exact.values.abs() < least, torch.inf, exact.condition),
            exact.terms,
        )
        for name, exact in quantities.items()
    }


def kernel_parameters(spec: Spec, values: Mapping[str, float]) -> Parameters:
    """The effective values as kernels take them: trainable ones as float64 tensors, in order."""
    return tuple(
        torch.tensor(values[p.name], dtype=torch.float64) if p.trainable else p.initial
        for p in spec.parameters
    )


def condition(x: Tensor, value: Tensor, slope: Tensor) -> Tensor:
    """|x slope/value|, with 0 where value and product are both 0."""
    change = (x * slope).abs()
    ratio = change / value.abs()
    still = torch.where(change == 0, 0.0, torch.inf).to(ratio.dtype)
    ratio = torch.where(value == 0, still, ratio)
    return torch.where(torch.isnan(ratio), torch.inf, ratio)


def _times_up(
    kernel: Kernel, parameters: Parameters, gate: dict[str, ExactValues], up: Tensor
) -> dict[str, ExactValues]:
    flat = torch.ones_like(up), torch.zeros_like(up)
    height, slope, curvature = up, *flat
    if kernel.up is not None:
        height = kernel.up.value(up, parameters)
        slope = kernel.up.slopes(up, parameters)[0]
        curvature = kernel.up.curvatures(up, parameters)[0]
    along = condition(up, height, slope)
    products = {
        name: ExactValues(exact.values * height, exact.condition + along)
        for name, exact in gate.items()
    }
    function = gate[FUNCTION]
    products[UP_SLOPE] = ExactValues(
        function.values * slope, function.condition + condition(up, slope, curvature)
    )
    return products


def _difference(kernel: Kernel, parameters: Parameters, x: Tensor) -> Tensor:
    """f' where the kernel's slope is a surrogate: a central difference, for a magnitude only."""
    above, below = x * (1 + _STEP), x * (1 - _STEP)
    rise = kernel.value(above, parameters) - kernel.value(below, parameters)
    return torch.where(x == 0, 0.0, rise / (above - below))


def raw_slopes(spec: Spec, raw: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """For each stored number, the slope in it of every effective value that depends on it.

    raw      the stored number of each trainable parameter
    Edge     a bound that is itself trained passes its own slope on to what it bounds.
    """
    trainable = {p.name: p for p in spec.trainable}
    effective = spec.effective_values(raw)
    table: dict[str, dict[str, float]] = {}
    for name, parameter in trainable.items():
        own, of_bound = parameter.slopes(raw[name], spec.bound_of(parameter, effective))
        table.setdefault(name, {})[name] = own
        bound = trainable.get(parameter.above_name or "")
        if bound is not None:
            passed, _ = bound.slopes(raw[bound.name])
            table.setdefault(bound.name, {})[name] = passed * of_bound
    return table


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
    roots: set[float] = set()
    for function in (
        lambda x: kernel.value(x, parameters),
        lambda x: kernel.slopes(x, parameters)[0],
    ):
        roots |= set(_sign_changes(function, grid).tolist())
    return sorted(roots - set(knots(spec, values)))


def _sign_changes(function: Callable[[Tensor], Tensor], grid: Tensor) -> Tensor:
    signs = torch.sign(function(grid))
    at_point = grid[(signs == 0) & (torch.roll(signs, 1) * torch.roll(signs, -1) < 0)]
    changed = signs[:-1] * signs[1:] < 0
    low, high = grid[:-1][changed], grid[1:][changed]
    low_sign = signs[:-1][changed]
    for _ in range(_BISECTIONS):
        middle = low + (high - low) / 2
        same = torch.sign(function(middle)) == low_sign
        low, high = torch.where(same, middle, low), torch.where(same, high, middle)
    return torch.cat([at_point, high])
