"""Tensor parallelism, FSDP and gradient clipping of a decoder.

Matrices and their biases are sharded over the processes of a replica (FSDP2), by default all of them, those of the
layers first split by neurons and heads over the `tensor` dimension. With several replicas their gradients
are reduce-scattered in each replica and all-reduced between replicas (HSDP). Other vectors (norms and activation parameters) are small: each process holds all of
them, in float32. As each process sees only its own tokens, heads and neurons, a vector's gradient is
all-reduced over all processes, so no activation parameter keeps the gradient of a part of its neurons.

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
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from stamm.activations.module import Activation
from stamm.base.errors import ConfigError
from stamm.engine.config import EngineConfig
from stamm.engine.distributed import DistributedContext
from stamm.models.config import Dense
from stamm.models.decoder import Decoder, DecoderLayer
from stamm.models.lora import LoraLinear
from stamm.models.reward_head import RewardHead
from stamm.models.rope import inverse_frequencies

_BY_COLUMNS = ("o_proj", "down_proj")


def apply_tensor_parallel(
    decoder: Decoder, world: DistributedContext, config: EngineConfig
) -> None:
    """Split the layers over the tensor dimension and set activation checkpointing, in place.

    In one process only activation checkpointing is set. Under context parallelism attention gathers keys
    and values.

    Raises   ConfigError when heads or neurons cannot be divided evenly
    """
    layers = [layer for layer in decoder.model.layers if isinstance(layer, DecoderLayer)]
    for layer in layers:
        layer.recompute = config.activation_checkpointing == "layers"
    if world.mesh is None:
        return
    if world.tensor > 1:
        _check_divides(decoder, world.tensor)
        for layer in layers:
            _split_adapters(layer, world.mesh["tensor"])
            parallelize_module(layer, world.mesh["tensor"], _tensor_parallel_plan(layer))
    if world.context > 1:
        group = world.mesh.get_group("context")
        for layer in layers:
            layer.self_attn.gather = _gather(group)


def apply_fsdp(decoder: Decoder, world: DistributedContext, config: EngineConfig) -> None:
    """Shard weights, gradients and optimizer state over the processes of a replica (FSDP2); after compilation."""
    if world.mesh is None:
        return
    short = None if config.precision == "float32" else torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=short, reduce_dtype=torch.float32)
    vectors = set(small_parameters(decoder))
    across = world.mesh["data", "context"]._flatten("pieces")
    whole = world.mesh["data", "context", "tensor"]._flatten("all")
    if world.replicas > 1:
        between = world.mesh["replicas"]
        across, whole = (DeviceMesh._concatenate([between, inside]) for inside in (across, whole))
    for layer in decoder.model.layers:
        fully_shard(layer, mesh=across, mp_policy=policy, ignored_params=vectors)
    fully_shard(decoder, mesh=whole, mp_policy=policy, ignored_params=vectors)
    for name in decoder.FORWARD_METHODS:
        register_fsdp_forward_method(decoder, name)
    for module in decoder.modules():
        if isinstance(module, FSDPModule):
            # Losses are divided by the tokens of the whole step: gradients are sums, not means.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other


@torch.no_grad()
def allocate_weights(decoder: Decoder, device: torch.device) -> None:
    """Allocate a decoder on the meta device whose weights are loaded afterwards; a reward head is 0."""
    decoder.to_empty(device=device)
    config = decoder.config
    decoder.model.frequencies.copy_(inverse_frequencies(config.rope, config.head_width))
    for module in decoder.modules():
        if isinstance(module, RewardHead):
            module.weight.zero_()
        if isinstance(module, Activation):
            module.reset_parameters()


@torch.no_grad()
def init_sharded_weights(decoder: Decoder, seed: int, device: torch.device) -> None:
    """Initialise a decoder on the meta device, sharded by `apply_fsdp`, to the weights of `build_decoder`.

    Memory   one whole matrix beside the local shards
    """
    allocate_weights(decoder, device)
    decoder.initialise(seed, copy_shard)


def copy_shard(parameter: Tensor, whole: Tensor) -> None:
    """Copy this process's shard of `whole`, of the same shape, into `parameter`."""
    local_shard(parameter).copy_(whole[local_region(parameter)])


def local_region(parameter: Tensor) -> tuple[slice, ...]:
    """The region of the whole parameter that this process's shard is."""
    if not isinstance(parameter, DTensor):
        return tuple(slice(0, n) for n in parameter.shape)
    shape, begin = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    return tuple(slice(b, b + n) for b, n in zip(begin, shape, strict=True))


def full_state_dict(
    model: nn.Module, world: DistributedContext, *, everywhere: bool = False
) -> dict[str, Tensor]:
    """Every parameter unsharded, on the CPU of the main process; the others get an empty dict.

    everywhere   every process gets them
    """
    state: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        whole = parameter.detach()
        whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
        if everywhere or world.is_main_process:
            state[name] = whole.cpu()
    return state


def small_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Norms and activation parameters: vectors and scalars, whole in every process.

    Biases of matrices are not among them: they are sharded, and cast, as their matrices are.
    """
    biases = {id(m.bias) for m in model.modules() if isinstance(m, nn.Linear)}
    return [p for p in model.parameters() if p.dim() < 2 and id(p) not in biases]


def local_shard(tensor: Tensor) -> Tensor:
    """This process's shard of `tensor`, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# On a CPU torch sums a tensor's squares in float32, sequentially: the norm of 5 million numbers has a
# relative error of 1.3e-4; in chunks of this size it is 3e-7.
_CHUNK = 2**14


@torch.no_grad()
def clip_grad_norm(model: nn.Module, world: DistributedContext, clip_norm: float) -> Tensor:
    """Gradient clipping: scale all gradients so that their norm is at most `clip_norm`.

    All-reduces the vectors' gradients over the processes first.

    Returns  the norm before clipping, float32
    Order    fixed: by parameter, then over the processes
    """
    whole = small_parameters(model)
    small = [p.grad for p in whole if p.grad is not None]
    if world.size > 1 and small:
        flat = world.all_reduce_sum(torch.cat([g.flatten() for g in small]))
        parts = torch.split(flat, [g.numel() for g in small])
        for gradient, summed in zip(small, parts, strict=True):
            gradient.copy_(summed.view_as(gradient))
    vectors = set(whole)
    sharded = [
        local_shard(p.grad) for p in model.parameters() if p.grad is not None and p not in vectors
    ]
    # Every replica has all shards. Summed over all processes, the norm has the same bits in each.
    squares = world.all_reduce_sum(_square_sum(sharded, world.device)) / world.replicas
    squares += _square_sum(small, world.device)
    norm = squares.sqrt().to(torch.float32)
    torch._foreach_mul_([*sharded, *small], (clip_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def _square_sum(tensors: Iterable[Tensor], device: torch.device) -> Tensor:
    """Sum of squares in float64, so that it does not depend on how matrices are sharded."""
    held = [t.flatten() for t in tensors if t.numel()]
    if not held:
        return torch.zeros((), dtype=torch.float64, device=device)
    if device.type == "cpu":
        held = [chunk for t in held for chunk in torch.split(t, _CHUNK)]
    return torch.stack(torch._foreach_norm(held)).double().square().sum()


def _tensor_parallel_plan(layer: DecoderLayer) -> dict[str, ParallelStyle]:
    """Which matrices are split by rows or columns; between the blocks tokens are (sequence parallelism)."""
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
                last = name in _BY_COLUMNS
                plan[f"{block}.{name}"] = (
                    RowwiseParallel(output_layouts=tokens) if last else ColwiseParallel()
                )
    return plan


def _split_adapters(layer: DecoderLayer, mesh: DeviceMesh) -> None:
    """Split the adapters of matrices that are split by columns: A by columns, B by rank.

    ColwiseParallel splits A by rank and B by rows. RowwiseParallel would leave both whole.
    """
    for name, module in layer.named_modules():
        if isinstance(module, LoraLinear) and name.rpartition(".")[2] in _BY_COLUMNS:
            for factor in ("lora_A", "lora_B"):
                split = distribute_tensor(module.get_parameter(factor), mesh, [Shard(1)])
                module.register_parameter(factor, nn.Parameter(split))


def _gather(group: dist.ProcessGroup) -> Callable[[Tensor], Tensor]:
    # torch 2.13 has both names and deprecates the second.
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
            f"engine.parallel.tensor = {ways} cannot split {type(model.ffn.linear).__name__} matrices",
            fix="Divide the work over engine.parallel.data or context",
        )
    if model.ffn.experts is not None:
        raise ConfigError(
            f"engine.parallel.tensor = {ways} cannot split a feed-forward block with experts",
            fix="Divide the work over engine.parallel.data or context",
        )
    ranks = {m.lora_A.shape[0] for m in decoder.modules() if isinstance(m, LoraLinear)}
    for name, count in (
        ("model.num_kv_heads", model.num_kv_heads),
        ("model.num_heads", model.num_heads),
        ("model.ffn.width", model.ffn.width),
        *(("lora.rank", rank) for rank in ranks),
    ):
        if count % ways:
            raise ConfigError(
                f"engine.parallel.tensor = {ways} does not divide {name} = {count}",
                fix="Use a smaller engine.parallel.tensor",
            )
