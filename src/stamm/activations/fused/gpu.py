"""Runs one pass over tensors on a GPU: layouts, launches, and sums as a fixed tree.

Every program computes a tile that depends on the shape only and writes its own partial sums; a
second kernel adds them, 64 or 4096 at a time. Without atomics, and independent of the number of
processors, the same input gives the same bits on every run.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from stamm.activations.codegen.kernel_lookup import Kernel
from stamm.activations.fused import build
from stamm.activations.fused.passes import STORED, Fixed, PassName, arranged, graph_of, shaped
from stamm.activations.fused.triton_source import Layout, source, tables
from stamm.base.cache_folder import is_private
from stamm.base.errors import RunError
from stamm.base.files import sha256_bytes, write_text

BLOCK = 4096  # elements of a program: 16 for each of 256 threads
TILE = 2048  # likewise for rows and columns, whose strides take registers
WIDE = 256  # columns of a tile: a warp reads 16 bytes in each lane
ROWS = 64  # rows that one program adds up, tile by tile
ADDED = 4096  # partial sums that one program adds up
WARPS = 8
# AMD's, none of which ran a kernel: for gfx942 every entry's kernels were compiled, for gfx90a
# those of entries that cover every operation.
_ARCHITECTURES = ("gfx90a", "gfx942")
CAPABILITY = (8, 0)  # the first with bfloat16 and with a minimum that propagates NaN


def unavailable_reason() -> str | None:
    """Why GPU kernels cannot run here, or None where they can. Triton itself is not loaded."""
    return _unavailable_reason()


@lru_cache(maxsize=1)
def _unavailable_reason() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    if torch.version.hip is not None:
        architecture = torch.cuda.get_device_properties(0).gcnArchName.partition(":")[0]
        if architecture not in _ARCHITECTURES:
            known = ", ".join(_ARCHITECTURES)
            return f"the GPU is AMD's {architecture}, and kernels were tried with a compiler for {known} only"
    elif torch.cuda.get_device_capability() < CAPABILITY:
        capability, needed = (
            ".".join(map(str, c)) for c in (torch.cuda.get_device_capability(), CAPABILITY)
        )
        return f"the GPU has compute capability {capability}, and {needed} is needed"
    if build.folder() is None:
        return "there is no home folder to keep the kernels' source"
    return None


def caveat() -> str | None:
    """Caveat about kernels that can run here, or None."""
    if torch.version.hip is None:
        return None
    return "on AMD's GPUs: compiled, never run by the authors"


def is_supported(x: Tensor) -> bool:
    """Whether a pass over tensors like this one can run here."""
    return x.is_cuda and x.dtype in STORED and unavailable_reason() is None


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
    Dtypes   inputs and outputs bfloat16, float16 or float32; computing float32 or float64
    Raises   ConfigError for an output that is not a matrix of rows and columns: it cannot be written
    Edge     a program sums in the computing dtype, programs are added in float64, in an order that
             depends on the shape only.
    """
    first = inputs[0]
    summed = parameters if name.endswith("backward") else ()
    if first.numel() == 0:
        return [torch.zeros_like(p) for p in summed]
    matrices = arranged(inputs, outputs, parameters)
    rows, columns, by_column = matrices.rows, matrices.columns, matrices.by_column
    share = (computing.itemsize // 4) ** 2  # float64 takes twice the registers, and longer formulas
    numbers: list[int]
    if matrices.flat:
        layout: Layout = "flat"
        block = BLOCK // share
        sizes = {"BLOCK": block, "WHOLE": columns % block == 0}
        programs = parts = -(-columns // block)
        numbers = [columns]
    else:
        layout = "columns" if by_column else "rows"
        wide = min(WIDE, 1 << (columns - 1).bit_length())
        tall = TILE // share // wide
        high = max(ROWS, tall)
        whole = rows % high == 0 and columns % wide == 0
        sizes = {"ROWS": high, "TALL": tall, "WIDE": wide, "WHOLE": whole}
        blocks = -(-rows // high)
        programs = blocks * -(-columns // wide)
        parts = blocks if by_column else programs
        steps = [step for t in (*matrices.read, *matrices.written) for step in t.stride()]
        numbers = [rows, columns, *steps]
    given = [p.detach().reshape(-1) for p in parameters]
    if by_column:
        numbers += [p.stride(0) if p.numel() > 1 else 0 for p in given]
    module, table = _module(name, kernel, fixed, computing, first.dtype, layout)
    width = columns if by_column else 1
    partial = torch.empty(len(summed), parts, width, dtype=computing, device=first.device)
    looked = looked_up(table, computing, first.device)
    tensors = [*matrices.read, *matrices.written, *given, looked, partial]
    with torch.cuda.device_of(first):  # type: ignore[no-untyped-call]
        options = {"num_warps": WARPS, **_digits(first.dtype)}
        launch(module.run, programs, [*tensors, *numbers], {**sizes, **options})
        return parameter_sums(module, partial, summed)


def launch(kernel: Any, programs: int, arguments: list[Any], sizes: dict[str, Any]) -> None:
    """Start a kernel: arguments in its order, constants and options by name."""
    kernel[(programs,)](*arguments, **sizes)


def parameter_sums(
    module: ModuleType, partial: Tensor, parameters: Sequence[Tensor]
) -> list[Tensor]:
    """Partial sums (count, parts, width) added up, one sum for each parameter, shaped like it."""
    if not parameters:
        return []
    sums = added_up(module, partial)
    return shaped(sums, parameters, lambda s: added_up(module, s.view(1, -1, 1)))


def added_up(module: ModuleType, partial: Tensor) -> Tensor:
    """(count, parts, width) -> (count, width), a tile of parts at a time, in float64."""
    count, parts, width = partial.shape
    wide = min(64, 1 << (width - 1).bit_length())
    tall = ADDED // wide
    while parts > 1:
        groups = -(-parts // tall)
        added = torch.empty(count, groups, width, dtype=torch.float64, device=partial.device)
        programs = count * groups * -(-width // wide)
        sizes = {"TALL": tall, "WIDE": wide, "num_warps": WARPS}
        launch(module.add, programs, [partial, added, parts, width], sizes)
        partial, parts = added, groups
    return partial[:, 0]


def _digits(stored: torch.dtype) -> dict[str, bool]:
    # Device functions keep subnormal numbers: on an H200, bfloat16 results of 14 entries whose steps
    # (not results) lie below 2^-126 were wrong where they were flushed, among them atlu, 0 for -0.318
    # below -1.7e38. float16 does not reach that far down. AMD's keep them anyway.
    keep = stored != torch.float16 and torch.version.hip is None
    return {"enable_reflect_ftz": False} if keep else {}


@lru_cache(maxsize=512)
def _module(
    name: PassName,
    kernel: Kernel,
    fixed: Fixed,
    computing: torch.dtype,
    stored: torch.dtype,
    layout: Layout,
) -> tuple[ModuleType, tuple[float, ...]]:
    graph = graph_of(name, kernel, fixed, computing)
    interpreted = bool(importlib.import_module("triton").knobs.runtime.interpret)
    parameters = fixed.count(None)
    text = source(graph, stored, layout, parameters=parameters, interpreted=interpreted)
    return imported(text), tables(graph)


@lru_cache(maxsize=64)
def looked_up(table: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The tables of gathers, concatenated, on the device."""
    return torch.tensor(table, dtype=dtype, device=device)


def imported(text: str) -> ModuleType:
    """Import the module with source `text`, from a file, because Triton reads its kernels from files.

    The file is named by the hash of its content, and is rewritten when its content differs.
    Raises   RunError when it cannot be written.
    """
    folder, key = build.folder(), sha256_bytes(text.encode())
    if folder is None:
        raise RunError(f"GPU kernels cannot be written: {unavailable_reason()}")
    path = folder / f"{key}.py"
    try:
        if not (path.is_file() and is_private(path) and path.read_bytes() == text.encode()):
            write_text(path, text)
    except OSError as error:
        raise RunError(f"a GPU kernel's source cannot be written: {error}") from error
    module = ModuleType(f"stamm_fused_{key[:16]}")
    module.__file__ = str(path)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module
