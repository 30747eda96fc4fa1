"""Which of several processes that do one thing together this is, as torchrun says. No torch here."""

from __future__ import annotations

import os

from stamm.base.errors import ConfigError


def rank_and_size() -> tuple[int, int]:
    """This process's number and how many there are; (0, 1) where torchrun did not start it.

    Raises   ConfigError when the two do not fit each other
    """
    told = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    try:
        rank, size = int(told[0]), int(told[1])
    except ValueError:
        rank, size = -1, 0
    if not 0 <= rank < size:
        raise ConfigError(
            f"RANK = {told[0]!r} and WORLD_SIZE = {told[1]!r} in the environment are no place in a group",
            fix="Start with torchrun, or unset both",
        )
    return rank, size


def has_torchrun() -> bool:
    """Whether torchrun started this process, and waits for its end."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def local_rank() -> int:
    """This process's number on its machine: which GPU is its own."""
    return int(os.environ.get("LOCAL_RANK", "0"))
