"""Sums in an order that no thread count changes, and passes in blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

_GROUP = 256
_BLOCK = 2**16  # elements; xielu forward in bfloat16: 10.6 ns each, 12.0 in one block (2026-11)


def by_blocks(function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
    """function(*inputs), on a CPU by blocks of rows that stay in the cache.

    An uncompiled kernel is a chain of passes over memory; on blocks of this size the passes run
    in cache and the temporaries stay small. Rows are independent, so no bit changes.

    Shapes   with blocks, leading axes of the results are one: the caller reshapes.
    """
    first = inputs[0]
    if (
        torch.compiler.is_compiling()
        or first.device.type != "cpu"
        or first.numel() <= _BLOCK
        or first.dim() < 2
    ):
        return function(*inputs)
    width = first.shape[-1]
    step = max(1, _BLOCK // width)
    flat = [t.reshape(-1, width) for t in inputs]
    parts = [function(*(t[i : i + step] for t in flat)) for i in range(0, flat[0].shape[0], step)]
    return tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))


def shaped(result: Tensor, like: Tensor) -> Tensor:
    """A result of `by_blocks` in the shape of its input, neither the input itself nor a view.

    A view that a Function returns may not be changed in place.
    """
    if result is like:
        return result.clone()
    if result.shape == like.shape:
        return result
    whole: Tensor = torch.ops.aten._unsafe_view(result, like.shape)
    return whole


def rows(contributions: Tensor, like: Tensor) -> Tensor:
    """Partial sums of what each element adds to a parameter's gradient.

    like     the parameter: one number is summed over the last axis, one for each neuron over all
             the others, into one row
    Edge     every sum is added up by one thread, so thread counts change nothing.
    """
    if like.numel() > 1:
        columns = contributions.reshape(-1, contributions.shape[-1]).t().contiguous()
        return columns.sum(-1).reshape(1, -1)
    if contributions.dim() == 0:
        return contributions
    if 0 < contributions.numel() == contributions.shape[-1]:  # one row: threads would share it
        return _sum(contributions).to(contributions.dtype).reshape(contributions.shape[:-1])
    return contributions.sum(-1)


def total(rows: Tensor, like: Tensor) -> Tensor:
    """The sum of the partial sums, added in float64, shaped and typed as `like`."""
    if like.numel() > 1:
        return rows.double().t().contiguous().sum(-1).to(like.dtype).reshape(like.shape)
    return _sum(rows).to(like.dtype).reshape(like.shape)


def out_of_range(sums: Sequence[Tensor], x: Tensor) -> bool:
    """Whether a sum is non-finite, perhaps by overflow of float32, where that can be read at once.

    Edge     False on a GPU, where reading it would synchronise, and inside transforms and traces
    """
    if x.device.type != "cpu" or type(x) is not Tensor or torch.compiler.is_compiling():
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack():
        return False
    return not all(bool(torch.isfinite(s).all()) for s in sums)


def _sum(values: Tensor) -> Tensor:
    """The sum of everything in float64, as a tree of groups of _GROUP: one shape, one order.

    torch splits a long sum with a single result into one part per thread; a group is too short.
    """
    flat = values.reshape(-1).double()
    while flat.numel() > 1:
        flat = F.pad(flat, (0, -flat.numel() % _GROUP)).reshape(-1, _GROUP).sum(-1)
    return flat.sum() if flat.numel() == 0 else flat.reshape(())


def square(upper: list[Tensor], count: int) -> list[list[Tensor]]:
    """The symmetric table whose upper triangle is given row by row."""
    cells = iter(upper)
    table: dict[tuple[int, int], Tensor] = {}
    for i in range(count):
        for j in range(i, count):
            table[i, j] = table[j, i] = next(cells)
    return [[table[i, j] for j in range(count)] for i in range(count)]
