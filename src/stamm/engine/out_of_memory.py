"""Out of memory: what torch and Python raise, as one line with the remedies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from stamm.base.errors import RunError


@contextlib.contextmanager
def out_of_memory_explained() -> Iterator[None]:
    """Raise RunError, with what helps, in place of torch's and Python's out-of-memory errors."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        # On a CPU torch raises a bare RuntimeError.
        if type(error) is RuntimeError and "DefaultCPUAllocator" not in str(error):
            raise
        reason = (str(error).splitlines() or ["no memory"])[0]
        raise RunError(
            f"there is too little memory to train: {reason}",
            fix="Use a smaller micro_batch, engine.activation_checkpointing=layers, or more devices;"
            " `stamm plan` says what is needed",
        ) from error
