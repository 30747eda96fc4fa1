"""Executors of sharded jobs: local processes, Slurm job arrays through submitit, Ray tasks.

The outputs of a shard do not depend on the executor, so a run may be resumed with another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stamm.base.bounds import AtLeastOne, Positive, Text, within
from stamm.base.config import Bounded


@dataclass(frozen=True, kw_only=True)
class LocalExecutor(Bounded):
    """Worker processes on this machine.

    workers    number of processes; 0: one for each core this process may use
    attempts   how often a shard is tried whose worker died; retries run one shard at a time
    """

    workers: Annotated[int, within("[0, 4096]")] = 0
    attempts: AtLeastOne = 3


@dataclass(frozen=True, kw_only=True)
class SlurmExecutor(Bounded):
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

    tasks: AtLeastOne
    partition: str = ""
    account: str = ""
    qos: str = ""
    hours: Positive = 12.0
    cpus: AtLeastOne = 1
    memory_gib: Positive = 4.0
    attempts: AtLeastOne = 3
    max_array_size: AtLeastOne = 1001
    simulated: bool = False


@dataclass(frozen=True, kw_only=True)
class RayExecutor(Bounded):
    """Tasks of a Ray cluster.

    address    "auto" for the cluster of this machine, or "ray://host:port"
    cpus       cores of a shard
    attempts   how often a shard is tried whose worker died
    """

    address: Text = "auto"
    cpus: Positive = 1.0
    attempts: AtLeastOne = 3


Execution = LocalExecutor | SlurmExecutor | RayExecutor
