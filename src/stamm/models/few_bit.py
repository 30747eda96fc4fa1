"""Few-bit backward: f' quantized to a few bits for the backward pass (levels, packing, autograd).

Letters: C features, K bits of a code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.fused.operation import traced_inside_a_transform
from stamm.activations.module import Activation, GatedActivation
from stamm.activations.spec import Spec
from stamm.activations.spec.expressions import PieceInterval
from stamm.activations.spec.gradient_checks import value_of
from stamm.base.errors import ConfigError

_CELLS = 512  # candidate positions of knots; with twice as many no error up to 4 bits falls by 1 %
_NEAR = 0.6  # cells are about 0.01 wide up to here and grow with |x| beyond
_NODES = 4  # points per cell at which f' is evaluated
_EXACT = 1e-14  # relative square error that counts as rounding
_REACH = 16.0  # range of the knots, or twice the farthest knot of the spec
_OUTSIDE = 0.01  # weight of the Cauchy distribution
_LOWEST = 0x0101010101010101  # the lowest bit of each of eight bytes
_SIDE_BY_SIDE = 0x0102040810204080
# The eight bits of a byte, as eight bytes.
_SPREAD = tuple(sum((byte >> j & 1) << 8 * j for j in range(8)) for byte in range(256))


@dataclass(frozen=True, kw_only=True)
class QuantizedSlope:
    """A piecewise constant approximation of f': levels[i] on (knots[i - 1], knots[i]]."""

    bits: int
    knots: tuple[float, ...]
    levels: tuple[float, ...]


@lru_cache(maxsize=64)
def quantized_slope(spec: Spec, bits: int) -> QuantizedSlope:
    """The piecewise constant of at most 2**bits levels that is nearest to f' in the mean square.

    The mean is over pre-activations from N(0, 1), with 1 % of the weight on a Cauchy distribution, so
    that far inputs get levels of their own. Found by dynamic programming over a grid with every knot
    of the spec: exact where f' is a step function.

    Source   Novikov et al. 2022, arXiv 2202.00441 (few-bit backward); the hundredth is ours
    Checked  tests/unit/models/test_ffn_checkpointing.py::test_levels_come_near_the_best
    """
    values = spec.initial_values()
    own = [_knot(i, values) for i in spec.intervals if i.low is not None]
    reach = max([_REACH, *(2 * abs(knot) for knot in own)])
    bend = math.asinh(reach / _NEAR)
    grid = [_NEAR * math.sinh(bend * (2 * i / _CELLS - 1)) for i in range(_CELLS + 1)]
    edges = torch.tensor(sorted({*grid, *own}), dtype=torch.float64, device="cpu")
    step = edges.diff()[:, None]
    places = (torch.arange(_NODES, dtype=torch.float64, device="cpu") + 0.5) / _NODES
    x = edges[:-1, None] + step * places
    normal = torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    weight = step * ((1 - _OUTSIDE) * normal + _OUTSIDE / (math.pi * (1 + x**2)))
    slope = kernel_of(spec).slopes(x, tuple(values[p.name] for p in spec.parameters))[0]
    slope = slope.expand_as(x)
    mass, first, square = (
        F.pad((weight * slope**power).sum(-1).cumsum(0), (1, 0)) for power in (0, 1, 2)
    )

    def between(sums: Tensor) -> Tensor:
        return sums[None, :] - sums[:, None]

    error = (between(square) - between(first) ** 2 / between(mass)).clamp(min=0.0)
    error[torch.ones_like(error, dtype=torch.bool).tril()] = math.inf
    best = error[0]
    left: list[Tensor] = []
    while len(left) < 2**bits - 1:
        if best[-1] <= _EXACT * square[-1]:  # a step function: more levels would fit rounding
            break
        best, where = (best[:, None] + error).min(0)
        left.append(where)
    cuts = [edges.numel() - 1]
    for where in reversed(left):
        cuts.append(int(where[cuts[-1]]))
    cuts = [0, *reversed(cuts)]
    return QuantizedSlope(
        bits=bits,
        knots=tuple(float(edges[i]) for i in cuts[1:-1]),
        levels=tuple(float((first[b] - first[a]) / (mass[b] - mass[a])) for a, b in pairwise(cuts)),
    )


def _knot(interval: PieceInterval, values: dict[str, float]) -> float:
    """Start of an interval: the last float32 number below it."""
    start = torch.tensor(value_of(str(interval.low), values), dtype=torch.float32, device="cpu")
    if interval.low_closed:
        start = torch.nextafter(start, torch.full_like(start, -math.inf))
    return float(start)


def coded(
    code: QuantizedSlope, activation: Activation | GatedActivation, *inputs: Tensor
) -> Tensor:
    """The activation of its inputs; its backward pass uses the quantized f'.

    Saved are the result (which its consumer saves anyway), the codes and, in a gated unit, up. The
    gate's value, which up's gradient needs, is result / up.

    Shapes   inputs and result (..., C); the code takes K ceil(C / 8) bytes a row
    Edge     a NaN result has NaN gradients; at infinite inputs the code uses a limit of f', where
             exact gradients may be NaN. Where up is 0 the gate's value is unknown and up's gradient
             is 0; where up is infinite it is NaN. A second derivative raises RuntimeError.
    Raises   ConfigError inside grad, vjp and jacrev of torch.func, and where a compiler traces
             any of its transforms with gradients enabled
    """
    wanted = traced_inside_a_transform() or any(t.requires_grad for t in inputs)
    if not (wanted and torch.is_grad_enabled() and inputs[0].numel()):
        result: Tensor = activation(*inputs)
    elif torch._C._functorch.get_dynamic_layer_stack_depth() > 0:
        raise ConfigError(
            "FewBit saves codes for one backward pass, which torch.func cannot transform",
            fix="Use SavePost, or torch.no_grad if no gradient is needed",
        )
    elif inputs[0].dim() == 0:
        result = coded(code, activation, *(t[None] for t in inputs))[0]
    else:
        result = _Coded.apply(code, activation, *inputs)  # type: ignore[no-untyped-call]
    return result


class _Coded(torch.autograd.Function):
    """An activation of an input, or of gate and up, whose f' is coded."""

    @staticmethod
    def forward(
        ctx: Any, code: QuantizedSlope, activation: Any, first: Tensor, *up: Tensor
    ) -> Tensor:
        result: Tensor = activation(first, *up)
        ctx.code, ctx.features = code, first.shape[-1]
        ctx.save_for_backward(_packed(_codes(first, code), code.bits), result, *up)
        return result

    @staticmethod
    def backward(ctx: Any, into: Tensor) -> tuple[Tensor | None, ...]:
        # Raised here: a second backward pass would omit this operation without an error.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "the gradient of a block under FewBit cannot be differentiated again, its f' is a"
                " constant on each interval: use SavePre"
            )
        packed, result, *up = ctx.saved_tensors
        dtype = _computing(into)
        levels = torch.tensor(ctx.code.levels, dtype=dtype, device=into.device)
        slope = _at(levels, _unpacked(packed, ctx.features).int())
        slope = torch.where(result.isnan(), math.nan, slope)  # codes cannot encode NaN
        wide = into.to(dtype)
        if not up:
            return None, None, (wide * slope).to(into.dtype)
        product, factor = result.to(dtype), up[0].to(dtype)
        gate = torch.where(factor == 0, product.abs(), product / factor)  # 0, or still NaN
        return None, None, (wide * factor * slope).to(into.dtype), (wide * gate).to(into.dtype)


def _codes(x: Tensor, code: QuantizedSlope) -> Tensor:
    """Index of each number's interval, by binary search: as torch.bucketize, but faster."""
    dtype = _computing(x)
    beyond = [math.inf] * (2**code.bits - 1 - len(code.knots))
    knots = torch.tensor([*code.knots, *beyond], dtype=dtype, device=x.device)
    wide = x.to(dtype)
    found = torch.zeros_like(wide, dtype=torch.int32)
    for k in reversed(range(code.bits)):
        found = found + ((wide > _at(knots, found + (2**k - 1))).int() << k)
    return found.to(torch.uint8)


def _at(table: Tensor, place: Tensor) -> Tensor:
    return table.index_select(0, place.flatten()).view(place.shape)


def _packed(codes: Tensor, bits: int) -> Tensor:
    """Codes (..., C) of K bits as (..., K, ceil(C / 8)) bytes: one row of bytes for each bit."""
    eights = F.pad(codes, (0, -codes.shape[-1] % 8)).contiguous().view(torch.int64)
    # Eight codes form one integer; the product gathers bit k of each in its top byte.
    rows = [((((eights >> k) & _LOWEST) * _SIDE_BY_SIDE) >> 56) & 255 for k in range(bits)]
    return torch.stack(rows, dim=-2).to(torch.uint8)


def _unpacked(packed: Tensor, features: int) -> Tensor:
    """The codes from their packed form: the inverse of `_packed`."""
    spread = torch.tensor(_SPREAD, dtype=torch.int64, device=packed.device)
    rows = _at(spread, packed.int())
    eights = rows[..., 0, :]
    for k in range(1, packed.shape[-2]):
        eights = eights | (rows[..., k, :] << k)
    return eights.contiguous().view(torch.uint8)[..., :features]


def _computing(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
