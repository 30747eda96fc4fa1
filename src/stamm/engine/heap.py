"""Memory of training: what a step gives up is kept for the next, and what runs out is told."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import torch

from stamm.base.errors import RunError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of mallopt, as glibc's malloc.h has them
_LARGEST_KEPT = 2**25  # the most that glibc takes
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed, up to pieces of 32 MiB, until the process ends.

    Otherwise it gives activations back at the end of every step and asks for them again, a page at
    a time: 13,000 faults and 9 % of a step's processor time with 1.3 million parameters and 4,096
    tokens (2 threads, 2026-11); so 50 faults. The holes in what is kept are those that glibc's own settings
    leave, too. Holds for the whole process.

    Returns  whether there is something to tell: False where the C library is not glibc
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # Either of them ends glibc's own adjusting of both, so that each has to be set.
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) and mallopt(_TRIM_THRESHOLD, _NEVER))


def give_back_freed_memory() -> None:
    """Give the system what was freed and kept: before something that takes memory of another shape.

    A checkpoint's buffers do not fit into the holes that activations leave: with 14 million parameters
    writing it took 430 MiB above the highest of the steps, and nothing after this.
    """
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
