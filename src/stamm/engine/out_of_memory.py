"""Out-of-memory errors of torch and Python as one line with the fix."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from stamm.base.errors import RunError


@contextlib.contextmanager
def out_of_memory_explained() -> Iterator[None]:
    """Convert out-of-memory errors of torch and Python to a RunError with a fix."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        # On a CPU torch raises a bare RuntimeError, of which other errors are subclasses.
        named = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not named and "DefaultCPUAllocator" not in str(error):
            raise
        reason = (str(error).splitlines() or ["no memory"])[0]
        raise RunError(
            f"out of memory: {reason}",
            fix="Use a smaller micro_batch, engine.activation_checkpointing=layers, or more devices;"
            " `stamm plan` estimates the memory",
        ) from error
