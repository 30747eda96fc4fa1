"""Trains a swapped model, as one process of several: `swap_processes.py OUT WAY`, with WAY one, ddp or fsdp2."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

import stamm
from stamm.swap.callback import keep_from_decay
from stamm.swap.shapes import shape_parameters, shape_values
from tests.unit.swap.small_models import IDS, build, move_shapes


def train(way: str, out: Path) -> None:
    """Three steps of AdamW; the first process writes the weights and the model's folder."""
    rank, count = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    model = build("LlamaForCausalLM")
    stamm.swap(model, "xielu")
    move_shapes(model)
    model.train()
    inner: Any = model
    called: Any = model
    if way == "ddp":
        called = torch.nn.parallel.DistributedDataParallel(model)
    elif way == "fsdp2":
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    keep_from_decay(optimizer, list(shape_parameters(model).values()))
    rows = torch.stack([IDS[0].roll(k) for k in range(4)])
    mine = rows[rank::count]
    for _ in range(3):
        called(input_ids=mine, labels=mine).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    values = shape_values(model)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(inner, options=options)
    if rank == 0:
        out.mkdir(parents=True)
        held = {name: value.clone().contiguous() for name, value in state.items()}
        held |= {f"effective {name}": value for name, value in values.items()}
        save_file(held, out / "trained.safetensors")
        model.save_pretrained(out / "model", state_dict=state)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[2] != "one":
        dist.init_process_group("gloo")
    train(sys.argv[2], Path(sys.argv[1]))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
