"""What numbers depend on beside the configuration: threads and the choice of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def settle(threads: int) -> None:
    """Use `threads` CPU threads (sums depend on their number) and only repeatable kernels."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # Filling fresh memory guards against reading it unwritten; a test suite's job, not a run's.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010


@contextmanager
def operation_threads(count: int) -> Iterator[None]:
    """Each operation of the calling thread uses `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
