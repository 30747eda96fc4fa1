"""Memory for the outputs of fused activations on a CPU, cached between calls.

The kernel allocates zeroed pages one page fault at a time: for an output of 64 MiB that takes longer
than computing it. So freed outputs are cached (`mremap_allocator.cpp`), as CUDA's caching allocator
does. Inside `caching_allocator` (engine/cpu_allocator.py), which caches every large tensor, outputs
come from there. It affects speed only.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from stamm.activations.fused import build
from stamm.base.errors import RunError

FROM = 2**23  # bytes; the C library caches smaller ones itself
MAX_CACHED = 2**30  # bytes
MAX_PIECES = 2**14  # of the 65,530 mappings that Linux gives a process (vm.max_map_count)
_SOURCE = Path(__file__).with_name("mremap_allocator.cpp")


@dataclass(frozen=True)
class MemoryStats:
    """Bytes of an allocator: in tensors, cached, and moved by mremap since the process began."""

    allocated: int
    cached: int
    moved: int


@cache
def allocator_function(name: str) -> Callable[..., None]:
    """A function of `mremap_allocator.cpp`, which stays loaded until the process ends.

    Raises   RunError when it cannot be compiled
    """
    return build.function(_SOURCE.read_text(), name, torch_headers=True)


def fresh(shape: Sequence[int], dtype: torch.dtype, order: Sequence[int] | None = None) -> Tensor:
    """An uninitialised dense tensor on the CPU.

    order   its axes from the outermost to the innermost in memory; None: row-major

    Checked  tests/unit/activations/test_fused_memory.py
    """
    size = math.prod(shape) * dtype.itemsize
    allocator = results_allocator() if size >= FROM else None
    axes = tuple(range(len(shape)) if order is None else order)
    if allocator is None:
        return torch.empty_permuted(tuple(shape), axes, dtype=dtype, device="cpu")
    storage = torch.UntypedStorage(size, allocator=allocator)  # type: ignore[no-untyped-call]
    # Not a view of the bytes: autograd does not allow a view to be changed in place.
    strides = torch.empty_permuted(tuple(shape), axes, dtype=dtype, device="meta").stride()
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, tuple(shape), strides)


@cache
def results_allocator() -> int | None:
    """The address of the C++ allocator, None where it cannot be compiled."""
    address = ctypes.c_size_t()
    try:
        make = allocator_function("results_allocator")
    except RunError:
        return None
    make(ctypes.c_size_t(MAX_CACHED), ctypes.c_size_t(MAX_PIECES), ctypes.byref(address))
    return address.value


def memory_stats() -> tuple[MemoryStats, MemoryStats]:
    """Of the scopes of `caching_allocator`, and of the outputs of fused activations outside them."""
    six = (ctypes.c_size_t * 6)()
    if _is_loaded():
        allocator_function("memory_stats")(six)
    return MemoryStats(*six[:3]), MemoryStats(*six[3:])


def empty_cache() -> None:
    """Return all cached memory to the operating system."""
    if _is_loaded():
        allocator_function("empty_cache")()


def _is_loaded() -> bool:
    return bool(allocator_function.cache_info().currsize)
