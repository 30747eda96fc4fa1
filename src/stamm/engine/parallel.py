"""A decoder laid over the processes of a world.

Matrices lie in pieces over all processes (FSDP2), those of the layers first cut by neurons and
heads in the direction of `tensor`. Vectors (norms and the shapes of activations) are few: each
process holds all of them, in float32, and as each sees only its own tokens, heads and neurons, a
vector's gradient is one sum over all processes. So no scalar of an activation is left with the
gradient of a part of its neurons.

Source   Zhao et al. 2023 (arXiv 2304.11277) for sharding; Korthikanti et al. 2022 (arXiv
         2205.05198) for tokens divided between the layers' products; Grattafiori et al. 2024
         (arXiv 2407.21783, section 3.3.2) for keys and values gathered instead of passed around.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from stamm.base.errors import ConfigError
from stamm.engine.config import EngineConfig
from stamm.engine.distributed import World
from stamm.models.config import Dense
from stamm.models.decoder import Decoder, Layer
from stamm.models.rope import inverse_frequencies


def spread(decoder: Decoder, world: World, config: EngineConfig) -> None:
    """Lay `decoder` over the processes of `world`, in place; nothing happens in a lone one.

    Raises   ConfigError when heads or neurons do not divide
    """
    layers = [layer for layer in decoder.model.layers if isinstance(layer, Layer)]
    for layer in layers:
        layer.recompute = config.recompute == "layers"
    if world.mesh is None:
        return
    if world.tensor > 1:
        _check_divides(decoder, world.tensor)
        for layer in layers:
            parallelize_module(layer, world.mesh["tensor"], _cut(layer))
    if world.context > 1:
        group = world.mesh.get_group("context")
        for layer in layers:
            layer.self_attn.gather = _gather(group)


def shard(decoder: Decoder, world: World, config: EngineConfig) -> None:
    """Lay weights, gradients and moments in pieces over the processes; after compilation."""
    if world.mesh is None:
        return
    short = None if config.precision == "float32" else torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=short, reduce_dtype=torch.float32)
    vectors = set(small_parameters(decoder))
    across = world.mesh["data", "context"]._flatten("pieces")
    for layer in decoder.model.layers:
        fully_shard(layer, mesh=across, mp_policy=policy, ignored_params=vectors)
    whole = world.mesh._flatten("all")
    fully_shard(decoder, mesh=whole, mp_policy=policy, ignored_params=vectors)
    register_fsdp_forward_method(decoder, "losses")
    for module in decoder.modules():
        if isinstance(module, FSDPModule):
            # Losses are divided by the tokens of the whole step: gradients are sums, not means.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other


@torch.no_grad()
def fill(decoder: Decoder, seed: int, device: torch.device) -> None:
    """Give a blank decoder, divided by `shard`, the numbers that `build_decoder` draws.

    Memory   of one matrix in one piece beside what lies here
    """
    decoder.to_empty(device=device)
    config = decoder.config
    decoder.model.frequencies.copy_(inverse_frequencies(config.rope, config.head_width))
    decoder.initialise(seed, put)


def put(parameter: Tensor, whole: Tensor) -> None:
    """Fill `parameter` with `whole`, of the same shape: with the piece of it that lies here."""
    if not isinstance(parameter, DTensor):
        parameter.copy_(whole)
        return
    shape, begin = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    piece = tuple(slice(b, b + n) for b, n in zip(begin, shape, strict=True))
    parameter.to_local().copy_(whole[piece])


def whole_weights(decoder: nn.Module, world: World) -> dict[str, Tensor]:
    """Every parameter in one piece, on the CPU of the leader; the others get none."""
    found: dict[str, Tensor] = {}
    for name, parameter in decoder.named_parameters():
        whole = parameter.detach()
        whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
        if world.leads:
            found[name] = whole.cpu()
    return found


def small_parameters(decoder: nn.Module) -> list[nn.Parameter]:
    """Vectors: norms and shapes of activations. Every process holds all of each."""
    return [p for p in decoder.parameters() if p.dim() < 2]


def local(tensor: Tensor) -> Tensor:
    """The piece of `tensor` that lies on this process, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# On a CPU torch adds a tensor's squares up in float32, one after the other: of 5 million numbers the
# norm is wrong by 1.3e-4 of itself; of pieces like these it is right to 3e-7.
_PIECE = 2**14


@torch.no_grad()
def finish_gradients(decoder: nn.Module, world: World, clip_norm: float) -> Tensor:
    """Sum the vectors' gradients over the processes, then shorten all to `clip_norm`. The norm before.

    Order   fixed: by parameter, then over the processes
    """
    small = [p.grad for p in small_parameters(decoder) if p.grad is not None]
    if world.size > 1 and small:
        flat = world.sum_(torch.cat([g.flatten() for g in small]))
        pieces = torch.split(flat, [g.numel() for g in small])
        for gradient, summed in zip(small, pieces, strict=True):
            gradient.copy_(summed.view_as(gradient))
    cut = [local(p.grad) for p in decoder.parameters() if p.grad is not None and p.dim() >= 2]
    squares = world.sum_(_square_sum(cut, world.device)) + _square_sum(small, world.device)
    norm = squares.sqrt().to(torch.float32)
    torch._foreach_mul_([*cut, *small], (clip_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def _square_sum(tensors: Iterable[Tensor], device: torch.device) -> Tensor:
    """Float64, so that it does not depend on how matrices are cut."""
    held = [t.flatten() for t in tensors if t.numel()]
    if not held:
        return torch.zeros((), dtype=torch.float64, device=device)
    if device.type == "cpu":
        held = [piece for t in held for piece in torch.split(t, _PIECE)]
    return torch.stack(torch._foreach_norm(held)).double().square().sum()


def _cut(layer: Layer) -> dict[str, ParallelStyle]:
    """Which matrices are cut by rows or columns; between the blocks tokens are divided instead."""
    tokens = Shard(1)
    plan: dict[str, ParallelStyle] = {
        "self_attn": PrepareModuleInput(
            input_layouts=(tokens, None, None, None),
            desired_input_layouts=(Replicate(), None, None, None),
        ),
        "mlp": PrepareModuleInput(input_layouts=(tokens,), desired_input_layouts=(Replicate(),)),
    }
    for block, module in (("self_attn", layer.self_attn), ("mlp", layer.mlp)):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                last = name in ("o_proj", "down_proj")
                plan[f"{block}.{name}"] = (
                    RowwiseParallel(output_layouts=tokens) if last else ColwiseParallel()
                )
    return plan


def _gather(group: dist.ProcessGroup) -> Callable[[Tensor], Tensor]:
    # torch 2.13 has both names and warns of the second, the older one.
    renamed = hasattr(collectives, "all_gather_single_autograd")
    name = "all_gather_single_autograd" if renamed else "all_gather_tensor_autograd"
    differentiable = getattr(collectives, name)

    def gather(x_BKTE: Tensor) -> Tensor:
        whole: Tensor = differentiable(x_BKTE, gather_dim=2, group=group)
        return whole

    return gather


def _check_divides(decoder: Decoder, ways: int) -> None:
    model = decoder.config
    if not isinstance(model.ffn.linear, Dense):
        raise ConfigError(
            f"engine.parallel.tensor = {ways} cannot cut {type(model.ffn.linear).__name__} matrices",
            fix="Divide the work over engine.parallel.data or context",
        )
    for name, count in (
        ("num_kv_heads", model.num_kv_heads),
        ("num_heads", model.num_heads),
        ("ffn.width", model.ffn.width),
    ):
        if count % ways:
            raise ConfigError(
                f"engine.parallel.tensor = {ways} does not divide model.{name} = {count}",
                fix="Use fewer processes in that direction",
            )
