"""Distributed training: process groups, the device mesh, and the collectives that the engine uses.

One process is the plain case. Under `torchrun` the processes form a mesh: `replicas` and `data` take
other sequences, `context` other parts of the same sequences, `tensor` other neurons and heads. Each of
the `replicas` holds all weights, sharded over its processes, whose ranks are consecutive.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from stamm.base.errors import ConfigError, RunError
from stamm.engine.config import Parallel
from stamm.runs.torchrun_env import local_rank, rank_and_size

# A collective that takes longer has lost a process. Saving many gigabytes takes less.
COLLECTIVE_TIMEOUT = timedelta(minutes=20)
MESH_DIMS = ("replicas", "data", "context", "tensor")


@dataclass(frozen=True)
class DistributedContext:
    """This process among those that train together.

    device      device on which it computes
    rank, size  its rank and the number of processes; rank 0 is the main process, which alone writes
                files and reports progress
    data, context, tensor   number of processes in each direction; `data` counts those of all replicas
    mesh_coordinates        this process's index in each direction
    mesh        with the dimensions `MESH_DIMS`, of which `data` is that of one replica; None in one
                process without collectives
    replicas    number of groups of processes that each hold all weights
    """

    device: torch.device
    rank: int = 0
    size: int = 1
    data: int = 1
    context: int = 1
    tensor: int = 1
    mesh_coordinates: tuple[int, int, int] = (0, 0, 0)
    mesh: DeviceMesh | None = None
    replicas: int = 1

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that writes files and reports progress."""
        return self.rank == 0

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """All-reduce: `tensor`, in place, summed over all processes."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def all_reduce_sequences(self, tensor: Tensor) -> Tensor:
        """All-reduce: `tensor`, in place, summed over the processes that divide the same sequences."""
        for name, size in (("context", self.context), ("tensor", self.tensor)):
            if size > 1 and self.mesh is not None:
                dist.all_reduce(tensor, group=self.mesh.get_group(name))
        return tensor

    def broadcast_object(self, value: Any) -> Any:
        """The main process's `value`, in every process; a small plain Python object."""
        if self.size == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def all_gather_object(self, value: Any) -> list[Any]:
        """Every process's `value`, by rank."""
        if self.size == 1:
            return [value]
        held: list[Any] = [None] * self.size
        dist.all_gather_object(held, value)
        return held

    def assert_same_on_all_ranks(self, what: str, value: str) -> None:
        """Check that `value` is the same in all processes.

        Raises   RunError, in every process, when it is not
        """
        held = self.all_gather_object(value)
        others = [str(rank) for rank, other in enumerate(held) if other != held[0]]
        if others:
            raise RunError(
                f"{what} of process {', '.join(others)} of {self.size} is not that of process 0",
                fix="Start the same command with the same files on every machine",
            )


def mesh_coordinates_of(
    rank: int, parallel: Parallel, size: int
) -> tuple[tuple[int, int, int], int]:
    """The coordinates of `rank` in the mesh, and the size of its data dimension.

    Processes of one tensor-parallel group have neighbouring ranks: they communicate in every layer.

    Raises   ConfigError when `size` processes do not fill the mesh, or are not divided into replicas
    """
    block = parallel.context * parallel.tensor
    data = size // block if parallel.data is None else parallel.data
    if data * block != size or data < 1:
        asked = "?" if parallel.data is None else parallel.data
        raise ConfigError(
            f"engine.parallel asks for {asked} x {parallel.context} x {parallel.tensor} processes "
            f"(data x context x tensor), and there are {size}",
            fix=f"Start with torchrun --nproc-per-node={max(data, 1) * block}, or change it",
        )
    if data % parallel.replicas:
        raise ConfigError(
            f"engine.parallel.replicas = {parallel.replicas} does not divide the {data} data-parallel "
            f"processes ({size} / {block} of context x tensor)",
            fix=f"Use a divisor of {data}, or start other numbers of processes",
        )
    return (rank // block, rank // parallel.tensor % parallel.context, rank % parallel.tensor), data


def select_device(name: str, where: str = "engine.device") -> torch.device:
    """The device for `where` = "auto", "cpu" or "cuda".

    Raises   ConfigError when there is no GPU, or none for this process
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(f"{where} = 'cuda', and torch sees no GPU", fix=f"Set {where}=cpu")
    number, count = local_rank(), torch.cuda.device_count()
    if number >= count:
        raise ConfigError(
            f"process {number} of this machine has no GPU of its own: torch sees {count}",
            fix=f"Start {count} processes on it (torchrun --nproc-per-node={count}), or set "
            f"{where}=cpu",
        )
    return torch.device("cuda", number)


def init_distributed(
    parallel: Parallel, device: torch.device, *, collectives: bool
) -> DistributedContext:
    """Join the process group that torchrun started and build the mesh; one process needs neither.

    collectives   build the mesh even in one process (FSDP needs it to cast weights)
    Raises        ConfigError when the processes do not fill the mesh; RunError when they cannot connect
    """
    rank, size = rank_and_size()
    coordinates, data = mesh_coordinates_of(rank, parallel, size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if size == 1 and not collectives:
        return DistributedContext(device)
    init_process_group(device.type == "cuda")
    ways, replicas = (parallel.context, parallel.tensor), parallel.replicas
    shape = (replicas, data // replicas, *ways)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=MESH_DIMS)
    return DistributedContext(device, rank, size, data, *ways, coordinates, mesh, replicas)


def is_lost_peer_error(error: RuntimeError) -> bool:
    """Whether `error` means that another process did not answer."""
    # gloo has no exception class of its own; its messages contain its source file.
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


@contextlib.contextmanager
def report_lost_peers() -> Iterator[None]:
    """Report a collective that failed because another process ended, for a block or a function.

    Raises   RunError when a peer process is lost
    """
    try:
        yield
    except RuntimeError as error:
        if not is_lost_peer_error(error):
            raise
        raise RunError(
            "a peer process of this training run was lost",
            fix="See the end of its log. Run the same command again to resume",
        ) from error


def destroy_process_group() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def init_process_group(gpus: bool) -> None:
    """Connect all processes that torchrun started; does nothing when they are connected.

    Raises   RunError when they cannot connect
    """
    if dist.is_initialized():
        return
    rank, size = rank_and_size()
    # Python objects use gloo on any device.
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    store = HashStore() if size == 1 else None
    try:
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT
        )
    except (dist.DistError, ValueError) as error:
        raise RunError(
            f"{size} processes could not connect: {str(error).splitlines()[0]}",
            fix="Start all of them with one torchrun command",
        ) from error
