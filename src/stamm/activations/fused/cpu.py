"""One pass over tensors in a CPU's memory: layouts, fresh memory, parameters, the call itself."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from stamm.activations.fused import build
from stamm.activations.fused.cpp import STORED, source
from stamm.activations.fused.graph import Graph
from stamm.activations.fused.layouts import matrix
from stamm.activations.fused.passes import GATED, PLAIN, Fixed, PassName, graph_of
from stamm.activations.kernels import Kernel

CHUNK = 16 * 512  # elements that are summed up together; as in pointwise.h
ROWS = 64  # rows, likewise, where every column has its own parameters


class _Strided(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("row_step", ctypes.c_int64),
        ("column_step", ctypes.c_int64),
    )


def serves(x: Tensor) -> bool:
    """Whether a pass over tensors like this one can run here."""
    return x.device.type == "cpu" and x.dtype in STORED and build.unavailable() is None


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
    Edge     sums are added in float64 in an order that only the shape decides.
    """
    count = len(parameters) if name.endswith("backward") else 0
    if inputs[0].numel() == 0:
        return [torch.zeros_like(p) for p in parameters[:count]]
    columns = inputs[0].shape[-1] if inputs[0].dim() else 1
    by_column = any(p.numel() > 1 for p in parameters)
    read = [t.reshape(-1, columns) for t in inputs]
    written = [matrix(t, columns) for t in outputs]
    rows = read[0].shape[0]
    if not by_column and all(t.is_contiguous() for t in (*read, *written)):
        rows, columns = 1, rows * columns
        read = [t.view(1, columns) for t in read]
        written = [t.view(1, columns) for t in written]
    width = columns if by_column else 1
    numbers = [p.detach().double().reshape(-1).expand(width) for p in parameters]
    given = torch.stack(numbers).contiguous() if numbers else torch.empty(0)
    parts = -(-rows // ROWS) if by_column else -(-rows * columns // CHUNK)
    sums = torch.empty(count, width, dtype=torch.float64)
    partial = torch.empty(parts, count, width, dtype=torch.float64)
    function = _function(name, kernel, fixed, computing, inputs[0].dtype, by_column)
    function(
        _layouts(read),
        _layouts(written),
        ctypes.c_int64(rows),
        ctypes.c_int64(columns),
        ctypes.c_void_p(given.data_ptr()),
        ctypes.c_void_p(sums.data_ptr()),
        ctypes.c_void_p(partial.data_ptr()),
        ctypes.c_int(torch.get_num_threads()),
    )
    return [
        (s if p.numel() > 1 else s.sum() if by_column else s[0]).to(p.dtype).reshape(p.shape)
        for s, p in zip(sums, parameters, strict=False)
    ]


@lru_cache(maxsize=512)
def _function(
    name: PassName,
    kernel: Kernel,
    fixed: Fixed,
    computing: torch.dtype,
    stored: torch.dtype,
    by_column: bool,
) -> Callable[..., None]:
    # Both directions in one object: the compiler's start costs more than the second pass.
    names = PLAIN if name in PLAIN else GATED
    graphs: dict[str, Graph] = {each: graph_of(each, kernel, fixed, computing) for each in names}
    return build.function(source(graphs, stored, by_column=by_column), name)


def _layouts(tensors: Sequence[Tensor]) -> ctypes.Array[_Strided]:
    return (_Strided * len(tensors))(*[_Strided(t.data_ptr(), *t.stride()) for t in tensors])
