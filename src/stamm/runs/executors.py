"""Executors of sharded jobs: local processes, Slurm job arrays through submitit, Ray tasks.

The outputs of a shard do not depend on the executor, so a run may be resumed with another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class LocalExecutor:
    """Worker processes on this machine.

    workers    number of processes; 0: one for each core this process may use
    attempts   how often a shard is tried whose worker died; retries run one shard at a time
    """

    workers: int = 0
    attempts: int = 3

    def __post_init__(self) -> None:
        validate(
            self,
            ("workers", 0 <= self.workers <= 4096, "must lie in [0, 4096]"),
            ("attempts", self.attempts >= 1, "must be at least 1"),
        )


@dataclass(frozen=True, kw_only=True)
class SlurmExecutor:
    """Slurm job arrays, submitted through submitit.

    tasks           number of ranks; shards are distributed round-robin
    partition       "": the default of the cluster; account and qos likewise
    hours           time limit of a rank
    cpus            cores of a rank, which processes as many shards in parallel; they share memory_gib
    attempts        how often the shards of lost ranks (killed, out of time, node failure) are
                    submitted, and within a rank how often a shard is tried whose process died
    max_array_size  the cluster's MaxArraySize (`scontrol show config`), the largest array
    simulated       run the ranks as processes of this machine, through submitit
    """

    tasks: int
    partition: str = ""
    account: str = ""
    qos: str = ""
    hours: float = 12.0
    cpus: int = 1
    memory_gib: float = 4.0
    attempts: int = 3
    max_array_size: int = 1001
    simulated: bool = False

    def __post_init__(self) -> None:
        validate(
            self,
            ("tasks", self.tasks >= 1, "must be at least 1"),
            ("hours", self.hours > 0, "must be positive"),
            ("cpus", self.cpus >= 1, "must be at least 1"),
            ("memory_gib", self.memory_gib > 0, "must be positive"),
            ("attempts", self.attempts >= 1, "must be at least 1"),
            ("max_array_size", self.max_array_size >= 1, "must be at least 1"),
        )


@dataclass(frozen=True, kw_only=True)
class RayExecutor:
    """Tasks of a Ray cluster.

    address    "auto" for the cluster of this machine, or "ray://host:port"
    cpus       cores of a shard
    attempts   how often a shard is tried whose worker died
    """

    address: str = "auto"
    cpus: float = 1.0
    attempts: int = 3

    def __post_init__(self) -> None:
        validate(
            self,
            ("address", bool(self.address.strip()), "is empty"),
            ("cpus", self.cpus > 0, "must be positive"),
            ("attempts", self.attempts >= 1, "must be at least 1"),
        )


Execution = LocalExecutor | SlurmExecutor | RayExecutor
