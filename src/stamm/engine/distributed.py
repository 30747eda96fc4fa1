"""The processes that train together, and how they divide a step.

One process is the plain case. Under `torchrun` the processes stand in a grid of three directions:
`data` takes other sequences, `context` other stretches of the same sequences, `tensor` other
neurons and heads. Every process knows its place; nothing here depends on what is trained.
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

# A collective that takes longer has lost a process. A save of many gigabytes is not one.
PATIENCE = timedelta(minutes=20)
DIRECTIONS = ("data", "context", "tensor")


@dataclass(frozen=True)
class World:
    """This process among those that train together.

    device      where it computes
    size, rank  how many there are, and which one this is; rank 0 leads: it alone writes and talks
    data, context, tensor   how many there are in each direction
    place       this process's number in each direction
    mesh        the grid; None in one process without collectives
    """

    device: torch.device
    rank: int = 0
    size: int = 1
    data: int = 1
    context: int = 1
    tensor: int = 1
    place: tuple[int, int, int] = (0, 0, 0)
    mesh: DeviceMesh | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes and talks."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> Tensor:
        """`tensor`, in place, summed over all processes."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def of_leader(self, value: Any) -> Any:
        """The leader's `value`: small and made of plain Python objects."""
        if self.size == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def agree(self, what: str, value: str) -> None:
        """See that `value` is the same in all processes.

        Raises   RunError, in each of them, when it is not
        """
        held = self.of_all(value)
        others = [str(rank) for rank, other in enumerate(held) if other != held[0]]
        if others:
            raise RunError(
                f"{what} of process {', '.join(others)} of {self.size} is not that of process 0",
                fix="Start the same command with the same files on every machine",
            )

    def of_all(self, value: Any) -> list[Any]:
        """Every process's `value`, by rank."""
        if self.size == 1:
            return [value]
        held: list[Any] = [None] * self.size
        dist.all_gather_object(held, value)
        return held


def place_of(rank: int, parallel: Parallel, size: int) -> tuple[tuple[int, int, int], int]:
    """The place of `rank` in the grid, and the grid's size in the direction of data.

    Processes that share neurons are neighbours: theirs is the traffic of every layer.

    Raises   ConfigError when `size` processes do not fill the grid.
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
    return (rank // block, rank // parallel.tensor % parallel.context, rank % parallel.tensor), data


def device_of(name: str) -> torch.device:
    """The device called "auto", "cpu" or "cuda".

    Raises   ConfigError for a GPU that is not there
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            "engine.device = 'cuda', and torch sees no GPU", fix="Set engine.device=cpu"
        )
    number, there = local_rank(), torch.cuda.device_count()
    if number >= there:
        raise ConfigError(
            f"process {number} of this machine has no GPU of its own: torch sees {there}",
            fix=f"Start {there} processes on it (torchrun --nproc-per-node={there}), or set "
            "engine.device=cpu",
        )
    return torch.device("cuda", number)


def join(parallel: Parallel, device: torch.device, *, collectives: bool) -> World:
    """Meet the other processes that torchrun started, or stay alone.

    collectives   make the grid even in one process (sharding needs it to cast weights)
    Raises        ConfigError when the processes do not fill the grid; RunError when they do not meet
    """
    rank, size = rank_and_size()
    place, data = place_of(rank, parallel, size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if size == 1 and not collectives:
        return World(device)
    meet(device.type == "cuda")
    shape = (data, parallel.context, parallel.tensor)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=DIRECTIONS)
    return World(device, rank, size, *shape, place, mesh)


def is_loss_of_process(error: RuntimeError) -> bool:
    """Whether `error` says that another process did not answer."""
    # gloo's errors have no class of their own, and name the file that they come from.
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """What several processes do with one another, for a block or a function.

    Raises   RunError when another of them is gone
    """
    try:
        yield
    except RuntimeError as error:
        if not is_loss_of_process(error):
            raise
        raise RunError(
            "another process that trains with this one is gone",
            fix="Its own last lines say why. The same command goes on",
        ) from error


def leave() -> None:
    """Part from the other processes, at the end of what was done together."""
    if dist.is_initialized():
        dist.destroy_process_group()


def meet(gpus: bool) -> None:
    """Meet all processes that torchrun started; nothing happens when they have met.

    Raises   RunError when they do not meet
    """
    if dist.is_initialized():
        return
    rank, size = rank_and_size()
    # Objects and files go over gloo, whatever the numbers go over.
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    store = HashStore() if size == 1 else None
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    except (dist.DistError, ValueError) as error:
        raise RunError(
            f"{size} processes did not meet: {str(error).splitlines()[0]}",
            fix="Start all of them with one torchrun command",
        ) from error
