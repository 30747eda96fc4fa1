"""Rank and world size from the environment variables of torchrun. Does not import torch."""

from __future__ import annotations

import os

from stamm.base.errors import ConfigError


def rank_and_size() -> tuple[int, int]:
    """Rank of this process and world size; (0, 1) without torchrun.

    Raises   ConfigError when RANK is not in [0, WORLD_SIZE)
    """
    given = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    try:
        rank, size = int(given[0]), int(given[1])
    except ValueError:
        rank, size = -1, 0
    if not 0 <= rank < size:
        raise ConfigError(
            f"RANK = {given[0]!r} and WORLD_SIZE = {given[1]!r} in the environment are not a valid rank",
            fix="Start with torchrun, or unset both",
        )
    return rank, size


def has_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def local_rank() -> int:
    """Rank of this process on its machine: the index of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))
