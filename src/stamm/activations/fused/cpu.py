"""Runs one pass over tensors on a CPU: layouts, output memory, parameters, the call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from stamm.activations.codegen.kernel_lookup import Kernel
from stamm.activations.fused import build
from stamm.activations.fused.cpp import source
from stamm.activations.fused.graph import Graph
from stamm.activations.fused.passes import (
    GATED,
    PLAIN,
    STORED,
    Fixed,
    PassName,
    arranged,
    graph_of,
    shaped,
)


class _Strided(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("row_step", ctypes.c_int64),
        ("column_step", ctypes.c_int64),
    )


def is_supported(x: Tensor) -> bool:
    """Whether a pass over tensors like this one can run here."""
    return x.device.type == "cpu" and x.dtype in STORED and build.unavailable_reason() is None


def run(
    name: PassName,
    kernel: Kernel,
    fixed: Fixed,
    computing: torch.dtype,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
) -> list[Tensor]:
    """Write the outputs of a pass, and return its sums: one for each parameter, shaped like it.

    Shapes   inputs and outputs (..., C) alike, with any strides; a parameter holds one number or C
    Raises   ConfigError for an output whose leading axes cannot be joined: it cannot be written
    Edge     sums are added in float64 in an order that depends on the shape only.
    """
    summed = parameters if name.endswith("backward") else ()
    if inputs[0].numel() == 0:
        return [torch.zeros_like(p) for p in summed]
    matrices = arranged(inputs, outputs, parameters)
    rows, columns, by_column = matrices.rows, matrices.columns, matrices.by_column
    width = columns if by_column else 1
    numbers = [p.detach().double().reshape(-1).expand(width) for p in parameters]
    given = torch.stack(numbers).contiguous() if numbers else torch.empty(0, device="cpu")
    parts = -(-rows // build.ROWS) if by_column else -(-rows * columns // build.CHUNK)
    # Named, because `torch.set_default_device` may have set another.
    wide: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
    sums = torch.empty(len(summed), width, **wide)
    partial = torch.empty(parts, len(summed), width, **wide)
    function = function_of(name, kernel, fixed, computing, inputs[0].dtype, by_column)
    function(
        _layouts(matrices.read),
        _layouts(matrices.written),
        ctypes.c_int64(rows),
        ctypes.c_int64(columns),
        ctypes.c_void_p(given.data_ptr()),
        ctypes.c_void_p(sums.data_ptr()),
        ctypes.c_void_p(partial.data_ptr()),
        ctypes.c_int(torch.get_num_threads()),
    )
    return shaped(sums, summed, torch.sum)


@lru_cache(maxsize=512)
def function_of(
    name: PassName,
    kernel: Kernel,
    fixed: Fixed,
    computing: torch.dtype,
    stored: torch.dtype,
    by_column: bool,
) -> Callable[..., None]:
    """The compiled pass: from dtype `stored` to `stored`, computed in `computing`."""
    text = source_of(name, kernel, fixed, computing, stored, by_column=by_column)
    return build.function(text, name)


def source_of(
    name: PassName,
    kernel: Kernel,
    fixed: Fixed,
    computing: torch.dtype,
    stored: torch.dtype,
    *,
    by_column: bool,
) -> str:
    """The C++ of a pass and of the one in the other direction.

    Both are in one object: the compiler's start takes longer than the second pass.
    """
    names = PLAIN if name in PLAIN else GATED
    whole = computing == torch.float64  # `elementary.h` has such functions in double
    graphs: dict[str, Graph] = {
        pass_name: graph_of(pass_name, kernel, fixed, computing, whole=whole) for pass_name in names
    }
    return source(graphs, stored, by_column=by_column)


def _layouts(tensors: Sequence[Tensor]) -> ctypes.Array[_Strided]:
    return (_Strided * len(tensors))(*[_Strided(t.data_ptr(), *t.stride()) for t in tensors])
