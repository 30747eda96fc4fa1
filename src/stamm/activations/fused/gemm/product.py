"""Launching products with an activation in their last step.

The partial sums of a parameter's gradient belong to tiles, not to programs, and are added like
those of the pointwise passes: no atomics, the same bits on every run, however many processors.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from stamm.activations.fused import gpu
from stamm.activations.fused.gemm.choice import Shape, Step, Tile, tile_for
from stamm.activations.fused.gemm.source import STORED, Written, source
from stamm.activations.fused.passes import Fixed, graph_of
from stamm.activations.fused.triton_source import tables
from stamm.activations.kernel_lookup import Kernel
from stamm.activations.spec import Spec
from stamm.base.errors import ConfigError

_LINE = 16  # bytes: what a descriptor's rows must be multiples of


def forward(
    kernel: Kernel,
    fixed: Fixed,
    x: Tensor,
    up: Tensor,
    parameters: Sequence[Tensor],
    *,
    written: Written = "both",
    tile: Tile | None = None,
) -> dict[str, Tensor]:
    """{"pre": x up^T, "post": f(pre)}, or one of them, in one kernel.

    Shapes   x (M, K), up (N, K); results (M, N); a parameter holds one number or N
    Dtypes   x and up alike, bfloat16 or float16; products are added in float32
    tile     None for the one that was measured, or that the shape decides
    Edge     f takes pre as it is stored: post has the same bits whether pre is written or not, and
             those of a pointwise pass over pre. Matrices that are not contiguous are copied.
    Raises   ConfigError when shapes or dtypes do not go together.
    Checked  tests/unit/activations/test_fused_gemm.py
    """
    shape = _shape(x, up, up.shape[::-1])
    names = ("pre", "post") if written == "both" else (written,)
    results = [
        torch.empty(shape.rows, shape.columns, dtype=x.dtype, device=x.device) for _ in names
    ]
    _run("forward", kernel, fixed, [x, up], results, parameters, shape, written, tile)
    return dict(zip(names, results, strict=True))


def backward(
    kernel: Kernel,
    fixed: Fixed,
    into: Tensor,
    down: Tensor,
    pre: Tensor,
    parameters: Sequence[Tensor],
    *,
    tile: Tile | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """(into down) f'(pre), and for each parameter the sum of (into down) df/dp, in one pass.

    Shapes   into (M, K), down (K, N), pre and the result (M, N); parameters and sums as `forward`
    Dtypes   into, down and pre alike, bfloat16 or float16
    Edge     the product is not rounded before it meets f'.
    Raises   ConfigError when shapes or dtypes do not go together.
    Checked  tests/unit/activations/test_fused_gemm.py
    """
    shape = _shape(into, down, down.shape)
    if pre.shape != (shape.rows, shape.columns) or pre.dtype != into.dtype:
        raise ConfigError(
            f"pre is {tuple(pre.shape)} {pre.dtype}, and the product is"
            f" {(shape.rows, shape.columns)} {into.dtype}",
            fix="Give what the forward pass stored",
        )
    result = torch.empty_like(pre, memory_format=torch.contiguous_format)
    matrices = [into, down, pre]
    sums = _run("backward", kernel, fixed, matrices, [result], parameters, shape, "both", tile)
    return result, sums


def fixed_values(spec: Spec) -> Fixed:
    """Per parameter its constant value, or None where it is trained."""
    return tuple(None if p.trainable else p.initial for p in spec.parameters)


def _shape(left: Tensor, right: Tensor, inner_outer: Sequence[int]) -> Shape:
    fits = left.dim() == right.dim() == 2 and left.shape[1] == inner_outer[0]
    if not fits or left.dtype != right.dtype or left.dtype not in STORED:
        raise ConfigError(
            f"{tuple(left.shape)} {left.dtype} and {tuple(right.shape)} {right.dtype}"
            " are no matrices to multiply here",
            fix="Give two matrices with one inner dimension, both bfloat16 or both float16",
        )
    return Shape(rows=left.shape[0], columns=inner_outer[1], depth=left.shape[1])


def _run(
    step: Step,
    kernel: Kernel,
    fixed: Fixed,
    read: Sequence[Tensor],
    results: Sequence[Tensor],
    parameters: Sequence[Tensor],
    shape: Shape,
    written: Written,
    tile: Tile | None,
) -> list[Tensor]:
    first = read[0]
    summed = parameters if step == "backward" else ()
    if shape.rows == 0 or shape.columns == 0:
        return [torch.zeros_like(p) for p in summed]
    matrices = [t.contiguous() for t in (*read, *results)]
    if tile is None:
        tile = tile_for(step, shape, first.dtype, first.device, kernel.content_hash)
    if tile.descriptors and not _lined_up(matrices):
        tile = replace(tile, descriptors=False, parts=1)
    by_column = any(p.numel() > 1 for p in parameters)
    module, table = _module(
        step, kernel, fixed, first.dtype, by_column, tile.descriptors, tile.parts, written
    )
    down, across = -(-shape.rows // tile.tall), -(-shape.columns // tile.wide)
    parts, width = (down, shape.columns) if by_column else (down * across, 1)
    partial = torch.empty(len(summed), parts, width, dtype=torch.float32, device=first.device)
    given = [p.detach().reshape(-1) for p in parameters]
    arguments: list[Any] = [
        *(_described(matrices, step, tile) if tile.descriptors else matrices),
        *given,
        gpu.looked_up(table, torch.float32, first.device),
        partial,
        *(shape.rows, shape.columns, shape.depth),
        *(p.stride(0) if p.numel() > 1 else 0 for p in given if by_column),
    ]
    whole = not (shape.rows % tile.tall or shape.columns % tile.wide or shape.depth % tile.deep)
    sizes = {"TALL": tile.tall, "WIDE": tile.wide, "DEEP": tile.deep, "GROUP": tile.group}
    options = {"WHOLE": whole, "num_warps": tile.warps, "num_stages": tile.stages}
    with torch.cuda.device_of(first):  # type: ignore[no-untyped-call]
        gpu.launch(module.run, _programs(tile, down * across, first), arguments, sizes | options)
        return gpu.parameter_sums(module, partial, summed)


def _programs(tile: Tile, tiles: int, like: Tensor) -> int:
    if not tile.descriptors or not like.is_cuda:
        return tiles
    processors = torch.cuda.get_device_properties(like.device).multi_processor_count
    return min(tiles, tile.resident * processors)


def _lined_up(matrices: Sequence[Tensor]) -> bool:
    """Whether descriptors can be made: every row begins at a multiple of 16 bytes."""
    rows = [t.shape[1] * t.element_size() for t in matrices]
    return all(n and n % _LINE == 0 for n in (*rows, *(t.data_ptr() for t in matrices)))


def _described(matrices: Sequence[Tensor], step: Step, tile: Tile) -> list[Any]:
    descriptor = importlib.import_module("triton.tools.tensor_descriptor").TensorDescriptor
    right = [tile.wide, tile.deep] if step == "forward" else [tile.deep, tile.wide]
    result = [tile.tall, tile.wide // tile.parts]
    blocks = [[tile.tall, tile.deep], right, *(result for _ in matrices[2:])]
    return [descriptor.from_tensor(t, block) for t, block in zip(matrices, blocks, strict=True)]


@lru_cache(maxsize=512)
def _module(
    step: Step,
    kernel: Kernel,
    fixed: Fixed,
    stored: torch.dtype,
    by_column: bool,
    descriptors: bool,
    parts: int,
    written: Written,
) -> tuple[ModuleType, tuple[float, ...]]:
    graph = graph_of(step, kernel, fixed, torch.float32)
    text = source(
        graph,
        stored,
        parameters=fixed.count(None),
        by_column=by_column,
        descriptors=descriptors,
        parts=parts,
        written=written,
        interpreted=bool(importlib.import_module("triton").knobs.runtime.interpret),
    )
    return gpu.imported(text), tables(graph)
