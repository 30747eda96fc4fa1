"""Environment variables of torchrun, read, and of a Slurm job, hidden. Does not import torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

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


@contextlib.contextmanager
def outside_slurm_job() -> Iterator[None]:
    """Hide the variables of the Slurm job that this process runs in, which its ranks would inherit.

    SLURM_CPU_BIND, SLURM_MEM_PER_NODE and others contradict the resources of a rank: srun refuses them, or
    binds the rank to the cores of this job.
    """
    inside = "SLURM_JOB_ID" in os.environ
    hidden = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if inside and name.startswith(("SLURM_", "SRUN_")) and name != "SLURM_CONF"
    }
    try:
        yield
    finally:
        os.environ.update(hidden)
