"""Started by torchrun: Muon on pieces of matrices, held against whole ones given the same gradients."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from stamm.base.shutdown import exit_immediately
from stamm.optim.build import build_optimizer
from stamm.optim.config import Muon
from stamm.optim.groups import set_learning_rate


class Layered(nn.Module):
    """Matrices of shapes that divide and that do not, the last with fewer rows than processes."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(24, 52), (52, 24), (24, 3), (3, 7)]
        self.layers = nn.ModuleList([nn.Linear(i, o, bias=False) for i, o in sizes])


def own(whole: Tensor, layout: DTensor) -> Tensor:
    """The piece of this process: cut for tensor parallelism first, then by FSDP."""
    for axis, placement in reversed(list(enumerate(layout.placements))):
        if isinstance(placement, Replicate):  # between replicas
            continue
        pieces = whole.chunk(layout.device_mesh.size(axis), placement.dim)  # type: ignore[attr-defined]  # all others are cut
        place = layout.device_mesh.get_local_rank(axis)
        whole = pieces[place] if place < len(pieces) else whole[:0]
    return whole.contiguous()


def main() -> None:
    """Six steps of both; what differs is written by the leader."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tensor, replicas = int(sys.argv[2]), int(sys.argv[3])
    names = ("replicas", "data", "tensor")
    shape = (replicas, dist.get_world_size() // (replicas * tensor), tensor)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Layered())
    whole, cut = models
    if tensor > 1:
        plan = {"layers.0": ColwiseParallel(), "layers.1": RowwiseParallel()}
        parallelize_module(cut, mesh["tensor"], plan)
    for layer in cut.layers:
        fully_shard(layer, mesh=mesh["replicas", "data"] if replicas > 1 else mesh["data"])
    layouts = {name: p for name, p in cut.named_parameters() if isinstance(p, DTensor)}
    pieces = {p: nn.Parameter(p.to_local().detach()) for p in layouts.values()}
    one = build_optimizer(Muon(), whole, total_steps=6)
    many = build_optimizer(Muon(), cut, 6, piece=lambda p: pieces[p])  # type: ignore[index]  # DTensors are parameters
    before = {name: p.detach().clone() for name, p in whole.named_parameters()}
    for step in range(6):
        torch.manual_seed(1 + step)
        for name, p in whole.named_parameters():
            p.grad = torch.randn(p.shape)
            pieces[layouts[name]].grad = own(p.grad, layouts[name])
        for optimizer in (one, many):
            set_learning_rate(optimizer, 1e-2)
            optimizer.step()
    found = {}
    for name, p in whole.named_parameters():
        layout = layouts[name]
        found[name] = {
            "same": torch.equal(layout.full_tensor(), p),
            "cut": any(placement.is_shard() for placement in layout.placements),
            "moved": (p - before[name]).abs().max().item(),
        }
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))
    dist.destroy_process_group()
    exit_immediately(0)


if __name__ == "__main__":
    main()
