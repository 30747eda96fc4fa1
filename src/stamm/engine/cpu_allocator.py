"""Caching CPU allocator for training: steps after the first request no memory from the kernel.

A step frees activations and allocates gradients of different sizes. The C library's heap keeps
the holes between them, a fifth to two thirds of the peak (2026-11, glibc 2.36), or returns each page
and has it zeroed again. `activations/fused/mremap_allocator.cpp` does neither: it moves free pages
together under the addresses of the next tensor.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

from stamm.activations.fused.memory import MAX_PIECES, allocator_function
from stamm.base.errors import RunError

_FROM = 2**18  # bytes of a tensor; smaller ones leave small holes


@contextlib.contextmanager
def caching_allocator() -> Iterator[str]:
    """Allocate CPU tensors of 256 KiB and more from cached memory, in all threads, in this block.

    At the end torch has the allocator that it had before, and cached memory returns to the operating
    system. Tensors that outlive the block stay valid; their memory returns when they are freed.
    Blocks may be nested: the outermost counts. `activations.fused.memory.empty_cache` returns cached
    memory before the end.

    Yields   why torch's own allocator stays (no C++ compiler, for example); "" where it does not
    Checked  tests/unit/engine/test_cpu_allocator.py
    """
    reason = _enter()
    try:
        yield reason
    finally:
        if not reason:
            allocator_function("leave")()


def _enter() -> str:
    entered = ctypes.c_int()
    try:
        enter = allocator_function("enter")
    except RunError as error:
        return error.what
    enter(ctypes.c_size_t(_FROM), ctypes.c_size_t(MAX_PIECES), ctypes.byref(entered))
    if not entered.value:
        return "another library has set torch's CPU allocator, with a higher priority"
    return ""
