"""Deterministic kernels and the number of CPU threads, on which results depend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def set_determinism(threads: int) -> None:
    """Use `threads` CPU threads (sums depend on their number) and deterministic kernels only."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # Filling new tensors reveals reads of uninitialised memory: for tests; runs save the time.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010


@contextmanager
def operation_threads(count: int) -> Iterator[None]:
    """Context in which each operation of the calling thread uses `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
