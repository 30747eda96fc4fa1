"""Memory of training: what a step gives up is kept for the next, and what runs out is told.

A step frees activations of some sizes and asks for gradients of others. The C library would keep the
holes between them, a fifth to two thirds of the peak (2026-11, glibc 2.36), or give every page back
and get it zeroed again. `pages.cpp` does neither: free pages are moved together under the addresses
of what is asked for, so that a run holds as much as it once needed at the same time, and no step but
the first asks the system for anything.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import torch

from stamm.activations.fused import build
from stamm.activations.fused.memory import leave_to_torch
from stamm.base.errors import RunError

_PAGES_FROM = 2**18  # bytes of a tensor; holes of smaller ones are small, too
_MOST_PIECES = 2**14  # of the 65,530 mappings that Linux gives a process (vm.max_map_count)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of mallopt, as glibc's malloc.h has them
_LARGEST_KEPT = 2**25  # the most that glibc takes
_NEVER = 2**31 - 1


def keep_freed_memory() -> str:
    """Keep what tensors free on the CPU, for the whole process and until it ends.

    Tensors of 256 KiB and more lie in pages that are kept; of the rest the C library keeps what is
    freed, where it is glibc.

    Returns  why large tensors stay in the C library's heap, holes and all; "" where they do not
    """
    # Either of them ends glibc's own adjusting of both, so that each has to be set.
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
        mallopt(_TRIM_THRESHOLD, _NEVER)
    return _take_over()


@lru_cache(maxsize=1)
def _take_over() -> str:
    try:
        take_over = build.function(_source(), "take_over", torch_headers=True)
    except RunError as error:
        return error.what
    take_over(ctypes.c_size_t(_PAGES_FROM), ctypes.c_size_t(_MOST_PIECES))
    leave_to_torch()
    return ""


def _in_place() -> bool:
    return bool(_take_over.cache_info().currsize) and not _take_over()


@lru_cache(maxsize=1)
def _source() -> str:
    return Path(__file__).with_name("pages.cpp").read_text()


def give_back_freed_memory() -> None:
    """Give the system what was freed and kept: before something that takes memory of another kind.

    A checkpoint's buffers are not tensors: with 14 million parameters writing it took 430 MiB above
    the highest of the steps, and nothing after this.
    """
    if _in_place():
        build.function(_source(), "release", torch_headers=True)()
    with contextlib.suppress(AttributeError, OSError, TypeError):  # no glibc: nothing was kept
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def memory_told() -> Iterator[None]:
    """Turn what torch and Python say when memory runs out into one line with the remedies."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        # On a CPU torch raises a bare RuntimeError.
        if type(error) is RuntimeError and "DefaultCPUAllocator" not in str(error):
            raise
        said = (str(error).splitlines() or ["no memory"])[0]
        raise RunError(
            f"there is too little memory to train: {said}",
            fix="Use a smaller micro_batch, engine.recompute=layers, or more devices;"
            " `stamm plan` says what is needed",
        ) from error
