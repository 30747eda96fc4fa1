"""One of two processes that train a tiny model in every parallel way; test_parallel.py reads them.

Run as `python parallel_worker.py RANK FOLDER eager|fused`; writes FOLDER/RANK.json. Numbers are those of the
raw shape parameters after each of STEPS AdamW steps, and of their gradients in the last one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from stamm.activations.fused import operation
from stamm.activations.module import build_activation
from stamm.activations.module.parallel import (
    check_replicas,
    clip_gradient_norm,
    reduce_now,
    reduce_shape_gradients,
    sharding_exceptions,
)
from stamm.activations.module.parallel_style import ShapedActivationParallel
from stamm.activations.module.shape_parameters import export_values, shape_parameters
from stamm.base.errors import StammError
from stamm.base.shutdown import exit_immediately

STEPS, SIZE, WIDTH = 5, 6, 8
SHAPE = (4, 6, SIZE)  # sequences, tokens, model


class Block(nn.Module):
    """x + down(f(up(x)))."""

    def __init__(self, **shapes: int) -> None:
        super().__init__()
        self.up = nn.Linear(SIZE, WIDTH, bias=False)
        self.act_fn = build_activation("xielu", **shapes)
        self.down = nn.Linear(WIDTH, SIZE, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act_fn(self.up(x)))


class GatedBlock(nn.Module):
    """x + down(f(gate(x), up(x)))."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(SIZE, WIDTH, bias=False)
        self.up = nn.Linear(SIZE, WIDTH, bias=False)
        self.act_fn = build_activation("xsilu_glu")
        self.down = nn.Linear(WIDTH, SIZE, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act_fn(self.gate(x), self.up(x)))


def model_of(block: type[nn.Module] = Block, **shapes: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(block(**shapes) for _ in range(2)))


def data(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = 2 * torch.randn(SHAPE, generator=generator)
    return x, torch.randn(SHAPE, generator=generator)


def train(
    model: nn.Module,
    backward: Callable[[nn.Module, Tensor, Tensor], None] | None = None,
    after: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """STEPS steps; shapes have a group of their own, as plain tensors and DTensors do not mix."""
    run = backward or (lambda model, x, y: loss_of(model(x), y).backward())
    shapes = shape_parameters(model)
    others = [p for name, p in model.named_parameters() if name not in shapes]
    groups = [{"params": others}, {"params": list(shapes.values()), "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1)
    trajectory, gradients = [], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        run(model, *data(step))
        after()
        gradients = {name: numbers(p.grad) for name, p in shapes.items()}
        optimizer.step()
        trajectory.append(export_values(model, raw=True))
    norms = [float(clip_gradient_norm(model, 0.1)) for _ in range(2)]
    return {"trajectory": trajectory, "gradients": gradients, "norms": norms}


def loss_of(y: Tensor, target: Tensor) -> Tensor:
    return ((y - target) ** 2).mean()


def numbers(gradient: Tensor | None) -> list[float] | None:
    if gradient is None:
        return None
    whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return [float(v) for v in whole.reshape(-1)]


def tensor_parallel(
    model: nn.Sequential, mesh: DeviceMesh, style: ParallelStyle | None, *, local: bool = True
) -> nn.Sequential:
    plan = {"up": ColwiseParallel(use_local_output=local), "down": RowwiseParallel()}
    if isinstance(model[0], GatedBlock):
        plan["gate"] = ColwiseParallel(use_local_output=local)
    if style is not None:
        plan["act_fn"] = style
    for block in model:
        parallelize_module(block, mesh, plan)
    return model


def split(mesh: DeviceMesh, dim: int) -> Callable[[nn.Module, Tensor, Tensor], None]:
    """The loss of this process's part of the data; the weights' gradients are summed by hand."""

    def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
        mine, wanted = (t.chunk(mesh.size(), dim)[mesh.get_local_rank()] for t in (x, y))
        (loss_of(model(mine), wanted) / mesh.size()).backward()
        shapes = shape_parameters(model)
        for name, parameter in model.named_parameters():
            if name not in shapes:
                dist.all_reduce(parameter.grad)

    return backward


def data_parallel(mesh: DeviceMesh) -> Callable[[nn.Module, Tensor, Tensor], None]:
    """The loss of this process's sequences."""

    def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
        mine, wanted = (t.chunk(mesh.size())[mesh.get_local_rank()] for t in (x, y))
        loss_of(model(mine), wanted).backward()

    return backward


def micro_batches(model: nn.Module, x: Tensor, y: Tensor) -> None:
    for part, wanted in zip(x.chunk(2), y.chunk(2), strict=True):
        (loss_of(model(part), wanted) / 2).backward()


class Rounded(nn.Module):
    """A block on one process with what FSDP2's mixed precision does to weights: a bfloat16 copy."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.up, self.act_fn, self.down = block.up, block.act_fn, block.down

    def forward(self, x: Tensor) -> Tensor:
        x = x.bfloat16()
        inner = self.act_fn(nn.functional.linear(x, self.up.weight.bfloat16()))
        return x + nn.functional.linear(inner, self.down.weight.bfloat16())


def sharded(mesh: DeviceMesh, *, except_shapes: bool, half: bool, **shapes: int) -> dict[str, Any]:
    """Trained with FSDP2; "seen" is the dtype in which a shape reaches its activation."""
    model = model_of(**shapes)
    policy = MixedPrecisionPolicy()
    if half:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    ignored = sharding_exceptions(model) if except_shapes else set()
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy, ignored_params=ignored)
    seen: set[str] = set()
    model[0].act_fn.register_forward_pre_hook(lambda module, _: seen.add(str(module.alpha_p.dtype)))
    if except_shapes:
        reduce_shape_gradients(model, mean_over=mesh)
    return {**train(model, data_parallel(mesh)), "seen": sorted(seen)}


def told(call: Callable[[], object]) -> str:
    try:
        call()
    except StammError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def cases(mesh: DeviceMesh) -> dict[str, Any]:
    found: dict[str, Any] = {"one": train(model_of())}
    style = ShapedActivationParallel
    found["tp style"] = train(tensor_parallel(model_of(), mesh, style()))
    found["tp style, dtensors"] = train(tensor_parallel(model_of(), mesh, style(), local=False))

    hooked = tensor_parallel(model_of(), mesh, None)
    reduce_shape_gradients(hooked, sum_over=mesh)
    found["tp hooks"] = train(hooked)
    now = tensor_parallel(model_of(), mesh, None)
    found["tp now"] = train(now, after=lambda: reduce_now(now, sum_over=mesh.get_group()))
    bare = tensor_parallel(model_of(), mesh, None)
    found["tp bare"] = train(bare)
    found["tp bare, check"] = told(lambda: check_replicas(bare, over=mesh))

    hooked = tensor_parallel(model_of(), mesh, None)
    reduce_shape_gradients(hooked, sum_over=mesh)
    found["one, micro-batches"] = train(model_of(), micro_batches)
    found["tp hooks, micro-batches"] = train(hooked, micro_batches)
    model = tensor_parallel(model_of(), mesh, style())
    found["tp style, micro-batches"] = train(model, micro_batches)

    hooked = model_of()
    reduce_shape_gradients(hooked, sum_over=mesh)
    found["tokens hooks"] = train(hooked, split(mesh, 1))
    styled = model_of()
    for block in styled:
        parallelize_module(block, mesh, {"act_fn": style(dim=1)})
    found["tokens style"] = train(styled, split(mesh, 1))
    found["tokens bare"] = train(model_of(), split(mesh, 1))

    for name, shapes in (("neurons", {}), ("groups", {"groups": 4}), ("two", {"groups": 2})):
        found[f"one, {name}"] = train(model_of(neurons=WIDTH, **shapes))
        model = tensor_parallel(model_of(neurons=WIDTH, **shapes), mesh, style())
        found[f"tp style, {name}"] = {**train(model), "repr": repr(model[0].act_fn)}
    found["one, gated"] = train(model_of(GatedBlock))
    found["tp style, gated"] = train(tensor_parallel(model_of(GatedBlock), mesh, style()))

    found["fsdp"] = sharded(mesh, except_shapes=True, half=False)
    found["fsdp, neurons"] = sharded(mesh, except_shapes=True, half=False, neurons=WIDTH)
    rounded = nn.Sequential(*(Rounded(block) for block in model_of()))
    found["one, bfloat16"] = train(rounded, micro_batches)
    found["fsdp, bfloat16"] = sharded(mesh, except_shapes=True, half=True)
    found["fsdp bare, bfloat16"] = sharded(mesh, except_shapes=False, half=True)
    return found


def refusals(mesh: DeviceMesh) -> dict[str, str]:
    style = ShapedActivationParallel()
    styled = tensor_parallel(model_of(), mesh, style)
    fsdp = model_of()
    fully_shard(fsdp, mesh=mesh)
    odd = build_activation("xielu", neurons=6, groups=3)
    with torch.device("meta"):
        meta = model_of()
    wide = ShapedActivationParallel(dim=2)
    last = parallelize_module(model_of()[0], mesh, {"act_fn": wide})
    return {
        "twice": told(lambda: reduce_shape_gradients(styled, sum_over=mesh)),
        "fsdp": told(lambda: reduce_now(fsdp, mean_over=mesh.get_group())),
        "meta": told(lambda: reduce_now(meta, sum_over=mesh)),
        "unknown": told(lambda: reduce_now(model_of(), sum_over=mesh, sharded=["0.act.alpha_p"])),
        "linear": told(lambda: parallelize_module(model_of()[0], mesh, {"up": style})),
        "odd": told(lambda: parallelize_module(odd, mesh, style)),
        "load": told(lambda: styled[0].act_fn.load_values({"alpha_p": 1.0}, raw=True)),
        "last": told(lambda: last(data(0)[0])),
        "repr": repr(styled[0].act_fn),
    }


def two_dimensions(data_ways: int) -> dict[str, Any]:
    """FSDP2 over one dimension of a mesh, tensor parallel over the other."""
    mesh = init_device_mesh("cpu", (data_ways, 2 // data_ways), mesh_dim_names=("dp", "tp"))
    model = tensor_parallel(model_of(), mesh["tp"], ShapedActivationParallel())
    for block in model:
        fully_shard(block, mesh=mesh["dp"], ignored_params=sharding_exceptions(model))
    reduce_shape_gradients(model, mean_over=mesh["dp"])
    both = told(lambda: reduce_now(model, mean_over=mesh))
    return {**train(model, data_parallel(mesh["dp"])), "both": both}


def unused(mesh: DeviceMesh) -> dict[str, Any]:
    """Gradients of a model of which one process uses the first block only, the other none."""
    model = model_of()
    if mesh.get_local_rank() == 0:
        model[0](data(0)[0]).sum().backward()
    before = {name: numbers(p.grad) for name, p in shape_parameters(model).items()}
    reduce_now(model, mean_over=mesh)
    after = {name: numbers(p.grad) for name, p in shape_parameters(model).items()}
    return {"before": before, "after": after}


def partly_sharded(mesh: DeviceMesh) -> dict[str, Any]:
    """Gradients of 1 and 2 on the two ranks, one parameter being sharded, by hooks and at once."""
    found: dict[str, Any] = {}
    everywhere = {"sum_over": mesh, "mean_over": mesh, "sharded": ["0.act_fn.alpha_n"]}
    for way in ("hooks", "now", "removed"):
        model = nn.ModuleList([nn.ModuleDict({"act_fn": build_activation("xielu")})])
        handles = [] if way == "now" else reduce_shape_gradients(model, **everywhere)
        for handle in handles if way == "removed" else ():
            handle.remove()
        (sum(p.sum() for p in model.parameters()) * (1.0 + mesh.get_local_rank())).backward()
        if way == "now":
            reduce_now(model, **everywhere)
        found[way] = {name: numbers(p.grad) for name, p in shape_parameters(model).items()}
    return found


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("all",))
    found = cases(mesh)
    found["fsdp x tp, 2 x 1"], found["fsdp x tp, 1 x 2"] = two_dimensions(2), two_dimensions(1)
    found |= {"refusals": refusals(mesh), "unused": unused(mesh), "partly": partly_sharded(mesh)}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    exit_immediately(0)


if __name__ == "__main__":
    if sys.argv[3] != "fused":
        operation.has_backend = lambda x: False
    main(int(sys.argv[1]), Path(sys.argv[2]))
