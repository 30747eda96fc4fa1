"""What numbers depend on beside the configuration: threads and the choice of kernels."""

from __future__ import annotations

import torch


def settle(threads: int) -> None:
    """Use `threads` CPU threads (sums depend on their number) and only repeatable kernels."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # Filling fresh memory guards against reading it unwritten; a test suite's job, not a run's.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
