"""All-reduce of shape-parameter gradients under tensor, sequence and data parallelism.

A shape parameter is used by every element of the activations, so a process that holds a part of
them computes a part of its gradient. The parts are reduced as follows:

    tensor parallel             the hidden dimension is split       sum over the group
    sequence, context parallel  the tokens are split                sum over the group
    data parallel, FSDP         each process has its own loss       mean over the group

Without the sum each process steps on its own part and the replicas diverge without an error. Every
reduction here gathers the parts and adds them in float64 in the order of the ranks, rounded once:
all processes, and all runs, get the same bits.

The functions are for parameters that are plain tensors; `parallel_style` is for plans of
torch.distributed.tensor, which need no hook.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from stamm.activations.module.shape_parameters import shape_parameters
from stamm.base.config import nearest
from stamm.base.errors import ConfigError, RunError

Over = dist.ProcessGroup | DeviceMesh | None


def reduce_shape_gradients(
    model: nn.Module,
    *,
    sum_over: Over = None,
    mean_over: Over = None,
    sharded: Collection[str] = (),
) -> list[RemovableHandle]:
    """Register hooks: every backward pass reduces the gradients of the model's shape parameters.

    A hook on each parameter reduces what one backward pass contributes before it is added to
    `.grad`, so that gradients accumulated over micro-batches are reduced exactly once. Clip and
    step as usual afterwards. `reduce_now` does the same with one collective per step.

    sum_over    the processes that split the hidden dimension or the tokens of one loss
    mean_over   the processes that have a loss each (data parallel), taken after the sum
    sharded     names of parameters whose neurons are split over `sum_over`, a part on each
                process: they are complete there and are not summed
    Result      the handles that remove the hooks
    Edge        the processes of a group must run the same backward passes: a parameter that is used
                on one of them only waits for the others. Frozen parameters are left out.
    Raises      ConfigError for a parameter on the meta device or already sharded over the same
                processes; RunError when replicas differ at the start.
    Checked     tests/unit/activations/test_parallel.py
    """
    chosen = _chosen(model, sum_over, mean_over, sharded)
    for group, without in ((sum_over, sharded), (mean_over, ())):
        if group is not None:
            check_replicas(model, over=group, sharded=without)

    def hook(part: Tensor, summed: Over) -> Tensor:
        with torch.no_grad():
            whole = part.clone()
            local = _local(whole)
            local.copy_(_reduced(local, summed, mean_over))
        return whole

    return [
        parameter.register_hook(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            lambda part, summed=None if name in sharded else sum_over: hook(part, summed)
        )
        for name, parameter in chosen.items()
    ]


@torch.no_grad()
def reduce_now(
    model: nn.Module,
    *,
    sum_over: Over = None,
    mean_over: Over = None,
    sharded: Collection[str] = (),
) -> None:
    """Reduce `.grad` of every shape parameter in one collective: once a step, after all backwards.

    The same bits as the hooks of `reduce_shape_gradients` give for one backward pass; use one or
    the other. Arguments and errors are the same.

    Edge   a gradient that is missing on some processes counts as 0 there; one that is missing on
           all of them stays missing
    """
    chosen = _chosen(model, sum_over, mean_over, sharded)
    if not chosen:
        return
    used = [0.0 if p.grad is None else 1.0 for p in chosen.values()]
    parts = [
        _local(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1)
        for p in chosen.values()
    ]
    flat = torch.cat([parts[0].new_tensor(used), *parts])
    summed = _reduced(flat, sum_over, mean_over)
    own = _reduced(flat, None, mean_over) if sharded else summed
    found = summed[: len(used)].tolist()
    start = len(used)
    for index, ((name, parameter), part) in enumerate(zip(chosen.items(), parts, strict=True)):
        whole = own if name in sharded else summed
        if found[index] > 0:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            target = _local(parameter.grad)
            target.copy_(whole[start : start + part.numel()].reshape(target.shape))
        start += part.numel()


@torch.no_grad()
def check_replicas(model: nn.Module, *, over: Over, sharded: Collection[str] = ()) -> None:
    """Check that all processes of a group hold the same bits in every shape parameter.

    A collective call: cheap enough to make at every checkpoint.

    Raises   RunError, on every process, that names a parameter that differs and two of its values.
    """
    named = {n: p for n, p in shape_parameters(model).items() if n not in sharded}
    if not named or over is None:
        return
    flat = torch.cat([_local(p.detach()).reshape(-1).double() for p in named.values()])
    copies = _gathered(flat, _group(over))
    start = 0
    for name, parameter in named.items():
        end = start + _local(parameter.detach()).numel()
        for rank, other in enumerate(copies):
            differ = other[start:end] != copies[0][start:end]
            if bool(differ.any()):
                at = start + int(differ.nonzero()[0])
                raise RunError(
                    f"{name} is {copies[0][at].item()!r} on rank 0 of the group"
                    f" and {other[at].item()!r} on rank {rank}",
                    fix="Reduce its gradient over the group (reduce_shape_gradients), and start"
                    " from one checkpoint",
                )
        start = end


def sharding_exceptions(model: nn.Module) -> set[nn.Parameter]:
    """The parameters to give to FSDP2's `fully_shard` as `ignored_params`: every trainable shape.

    fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)) would give the
    activation a bfloat16 copy of its shape: 8 bits, whatever the optimizer keeps. Ignored, it stays
    a plain float32 parameter on every process, and its gradient is reduced only by
    `reduce_shape_gradients(model, mean_over=data_parallel_mesh)`.

    Edge   the set holds the parameters that the model has now: ask once it is materialised, and
           on its device, since fully_shard does not move what it ignores
    """
    return set(shape_parameters(model).values())


@torch.no_grad()
def clip_gradient_norm(model: nn.Module, max_norm: float) -> Tensor:
    """Scale all gradients so that their common norm is at most `max_norm`; returns the norm before.

    As torch.nn.utils.clip_grad_norm_, for models in which some gradients are DTensors and others
    are plain, or DTensors of another mesh: shapes beside weights that FSDP2 shards. torch's own
    raises for those when a shape has more than one number.

    Edge   plain gradients count once, as replicas. All processes must call this.
    """
    kinds: dict[DeviceMesh | None, list[Tensor]] = {}
    for parameter in model.parameters():
        if parameter.grad is not None:
            gradient = parameter.grad
            mesh = gradient.device_mesh if isinstance(gradient, DTensor) else None
            kinds.setdefault(mesh, []).append(gradient)
    norms = [torch.nn.utils.get_total_norm(gradients) for gradients in kinds.values()]
    whole = [n.full_tensor() if isinstance(n, DTensor) else n for n in norms]
    norm = torch.nn.utils.get_total_norm(whole)
    scale = max_norm / (norm.item() + 1e-6)
    for gradients in kinds.values() if scale < 1 else ():
        torch._foreach_mul_(gradients, scale)
    return norm


def added_in_rank_order(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of `part` over the processes of the group, in float64: the same bits on all of them."""
    first, *others = _gathered(part, group)
    total = first.double()
    for other in others:
        total = total + other.double()
    return total


def _reduced(part: Tensor, sum_over: Over, mean_over: Over) -> Tensor:
    """The sum, then the mean, rounded once to the dtype of `part`."""
    whole = part
    if sum_over is not None:
        whole = added_in_rank_order(whole, _group(sum_over))
    if mean_over is not None:
        group = _group(mean_over)
        whole = added_in_rank_order(whole, group) / dist.get_world_size(group)
    return whole.to(part.dtype)


def _gathered(part: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    """The tensor of every process of the group, by rank."""
    part = part.contiguous()
    copies = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(copies, part, group=group)
    return copies


def _chosen(
    model: nn.Module, sum_over: Over, mean_over: Over, sharded: Collection[str]
) -> dict[str, nn.Parameter]:
    """The shape parameters to reduce, after the arguments are checked."""
    named = shape_parameters(model)
    for name in sharded:
        if name not in named:
            raise ConfigError(
                f"{name!r} is not a shape parameter of the model", fix=nearest(name, named)
            )
    groups = [_group(over) for over in (sum_over, mean_over) if over is not None]
    for name, parameter in named.items():
        if parameter.is_meta:
            raise ConfigError(
                f"{name} is on the meta device", fix="Materialise the model, then reduce"
            )
        meshed = parameter.device_mesh.get_all_groups() if isinstance(parameter, DTensor) else []
        spread = [_ranks(group) for group in meshed]
        if any(_ranks(group) in spread for group in groups):
            raise ConfigError(
                f"{name} is already sharded over the same processes, which reduces its gradient",
                fix="Leave this group out, or keep the parameter plain (for FSDP2:"
                " ignored_params=sharding_exceptions(model))",
            )
    return {name: p for name, p in named.items() if p.requires_grad}


def _group(over: dist.ProcessGroup | DeviceMesh) -> dist.ProcessGroup:
    """The process group of a mesh of one dimension."""
    if not isinstance(over, DeviceMesh):
        return over
    if over.ndim != 1:
        raise ConfigError(
            f"the mesh has {over.ndim} dimensions {over.mesh_dim_names}",
            fix='Choose one of them, for example mesh["tp"]',
        )
    return over.get_group()


def _ranks(group: dist.ProcessGroup) -> list[int]:
    return sorted(dist.get_process_group_ranks(group))


def _local(tensor: Tensor) -> Tensor:
    """The local part of a DTensor; a plain tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
