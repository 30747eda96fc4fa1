"""Fused AdEMAMix step, one pass over memory: C++ on CPUs, Triton on GPUs, both generated from `formula`.

The kernel generator is that of activations (activations/fused), without fused multiply-add, so that
the bits are those of `update_lists`. A kernel that fails a comparison of bits is not used.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from stamm.activations.fused import build, gpu
from stamm.activations.fused.cpp import source as cpp_source
from stamm.activations.fused.graph import Graph, Node
from stamm.activations.fused.triton_source import source as triton_source
from stamm.base.errors import RunError
from stamm.optim.ademamix_math import Numbers, formula, numbers_at, update_lists
from stamm.optim.config import AdEMAMix

_NAME = "ademamix"
_READ = 5  # p, g, fast, slow, square
_WRITTEN = (0, 2, 3, 4)  # the same without g
# GCC takes the first, Clang the second. Both would otherwise round a product and a sum once.
_APART = '#pragma GCC optimize("fp-contract=off")\n#pragma STDC FP_CONTRACT OFF\n'
_WARPS = 8


class _Strided(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("row_step", ctypes.c_int64),
        ("column_step", ctypes.c_int64),
    )


def unavailable_reason(device: torch.device) -> str | None:
    """Why the fused step is unavailable on `device`; None where it is available.

    The first call builds it and compares its bits on numbers that reveal a missing rounding.
    """
    return _unavailable(device.type)


def is_supported(*tensors: Tensor) -> bool:
    """Whether the kernels support the memory layout of a parameter, its gradient and its averages."""
    return all(
        type(t) in (Tensor, torch.nn.Parameter)  # not a DTensor
        and t.dtype == torch.float32
        and t.is_contiguous()
        and not (t.is_conj() or t.is_neg())
        for t in tensors
    )


def update_fused(tensors: Sequence[Tensor], numbers: Numbers) -> None:
    """One step on (p, g, fast, slow, square), in place; all but g change.

    Needs    `is_supported(*tensors)`, and `unavailable_reason` of their device is None
    Edge     the same bits as `update_lists`, with any number of threads
    Checked  tests/unit/optim/test_fused_update.py
    """
    if tensors[0].numel() == 0:
        return
    if tensors[0].is_cuda:
        with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
            update_triton(tensors, numbers)
    else:
        _update_cpu(tensors, numbers)


def update_triton(tensors: Sequence[Tensor], numbers: Numbers) -> None:
    """`update_fused` by Triton, on the GPU in use, or in its interpreter."""
    module = _module()
    first, count = tensors[0], tensors[0].numel()
    given = _on(numbers, first.device)
    nothing = given.new_empty(0)
    sizes = {"BLOCK": gpu.BLOCK // 2, "WHOLE": count % (gpu.BLOCK // 2) == 0}
    options = {"num_warps": _WARPS, "enable_fp_fusion": False}
    if torch.version.hip is None:
        options["enable_reflect_ftz"] = False  # subnormal numbers are kept, as everywhere else
    gpu.launch(
        module.run,
        -(-count // sizes["BLOCK"]),
        [*tensors, *(tensors[k] for k in _WRITTEN), *given.unbind(), nothing, nothing, count],
        {**sizes, **options},
    )


def _update_cpu(tensors: Sequence[Tensor], numbers: Numbers) -> None:
    count = tensors[0].numel()
    layouts = [_Strided(t.data_ptr(), count, 1) for t in tensors]
    _function()(
        (_Strided * _READ)(*layouts),
        (_Strided * len(_WRITTEN))(*(layouts[k] for k in _WRITTEN)),
        ctypes.c_int64(1),
        ctypes.c_int64(count),
        (ctypes.c_double * len(numbers))(*numbers),
        None,  # nothing is summed
        None,
        ctypes.c_int(torch.get_num_threads()),
    )


@lru_cache(maxsize=1)
def graph() -> Graph:
    """`formula` as a graph of operations."""
    made = Graph(dtype=torch.float32, inputs=_READ)
    read = [made.add(Node("input", number=k)) for k in range(_READ)]
    numbers = [made.add(Node("parameter", number=k)) for k in range(len(Numbers._fields))]
    made.outputs = tuple(output.place for output in formula(read, numbers))
    return made


@lru_cache(maxsize=1)
def _function() -> Callable[..., None]:
    text = cpp_source({_NAME: graph()}, torch.float32, by_column=False)
    return build.function(_APART + text, _NAME)


@lru_cache(maxsize=1)
def _module() -> ModuleType:
    interpreted = bool(importlib.import_module("triton").knobs.runtime.interpret)
    parameters = len(Numbers._fields)
    return gpu.imported(
        triton_source(
            graph(), torch.float32, "flat", parameters=parameters, interpreted=interpreted
        )
    )


@lru_cache(maxsize=8)
def _on(numbers: Numbers, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.tensor(numbers, dtype=torch.float32)
    # From pinned memory, so that the CPU does not wait for the GPU.
    held = torch.tensor(numbers, dtype=torch.float32, pin_memory=True)
    return held.to(device, non_blocking=True)


@lru_cache(maxsize=4)
def _unavailable(kind: str) -> str | None:
    if kind not in ("cpu", "cuda"):
        return f"no kernel is written for {kind}"
    why = build.unavailable_reason() if kind == "cpu" else gpu.unavailable_reason()
    if why is not None:
        return why
    try:
        return None if _same_bits(torch.device(kind)) else "its bits differ from foreach here"
    except RunError as error:
        return error.line()


def _same_bits(device: torch.device) -> bool:
    random = torch.Generator().manual_seed(0)
    size = torch.logspace(-30, 3, 4099)[torch.randperm(4099, generator=random)]
    listed = [torch.randn(4099, generator=random) * size for _ in range(_READ)]
    listed[4] = listed[4].abs()
    fused = [t.to(device, copy=True) for t in listed]
    numbers = numbers_at(AdEMAMix(), 3, 7, 1e-3, 0.1)
    update_lists([listed], numbers)
    update_fused(fused, numbers)
    return all(torch.equal(a, b.cpu()) for a, b in zip(listed, fused, strict=True))
