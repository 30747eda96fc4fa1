"""Where the shards of a job are done: on this machine, or on a cluster through an engine made for it.

What a shard leaves does not depend on this choice, so a run may be continued under another.
"""

from __future__ import annotations

from dataclasses import dataclass

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class LocalWork:
    """Processes of this machine.

    workers    0: one for each core this process may use
    attempts   how often a shard whose worker died is tried, the later times alone
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
class SlurmWork:
    """Slurm job arrays, submitted through submitit.

    tasks           ranks: shards are dealt to them in turn
    partition       "" leaves it to the cluster; account and qos likewise
    hours           time limit of a rank
    cpus            per rank, which does as many shards at once; they share memory_gib
    attempts        how often the shards of ranks that were lost (killed, out of time, a node gone)
                    are submitted, and within a rank how often a shard whose process died is tried
    max_array_size  the cluster's MaxArraySize (`scontrol show config`): no array gets longer
    simulated       run the ranks as processes of this machine, through submitit all the same
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
class RayWork:
    """Tasks of a Ray cluster.

    address    "auto" for the cluster of this machine, or "ray://host:port"
    cpus       per shard
    attempts   how often a shard whose worker died is tried
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


Execution = LocalWork | SlurmWork | RayWork
