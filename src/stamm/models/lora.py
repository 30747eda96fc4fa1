"""Low-rank adaptation (LoRA) of a decoder: frozen matrices with trained low-rank adapters beside them.

Letters: N inputs, M outputs, R rank.

Frozen parameters keep their names, so that weights of a decoder without adapters are loaded as usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stamm.activations.module.shape_parameters import shape_parameters
from stamm.base.errors import ConfigError
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder, decoder_of, normal_values
from stamm.models.linear import StructuredLinear
from stamm.models.lora_config import Lora
from stamm.models.reward_head import REWARD_HEAD

_WEIGHT, _A, _B = ".weight", ".lora_A", ".lora_B"


class _FrozenProduct(torch.autograd.Function):
    """x W' (+ bias) of a frozen W in 16 bits, computed in the dtype of x; W is kept for backward, not its copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        # Without a gradient torch multiplies more than two dimensions in another order.
        return F.linear(x.flatten(0, -2), weight.to(x.dtype), bias).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        (grad,) = grads
        product = grad.flatten(0, -2) @ weight.to(grad.dtype)
        return product.view(*grad.shape[:-1], -1), None, None


class LoraLinear(nn.Linear):
    """W x + scale B A x (+ bias): `weight` W (M, N), `lora_A` (R, N), `lora_B` (M, R).

    Checked  tests/unit/models/test_lora.py
    """

    def __init__(self, linear: nn.Linear, lora: Lora) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        device = linear.weight.device
        self.lora_A = nn.Parameter(torch.empty(lora.rank, linear.in_features, device=device))
        self.lora_B = nn.Parameter(torch.zeros(linear.out_features, lora.rank, device=device))
        self.scale = lora.scale

    def forward(self, x: Tensor) -> Tensor:
        """The result, (..., M), from `x`, (..., N)."""
        low = self.scale * F.linear(F.linear(x, self.lora_A), self.lora_B)
        if self.weight.dtype == x.dtype or torch.is_autocast_enabled(x.device.type):
            return F.linear(x, self.weight, self.bias) + low
        product: Tensor = _FrozenProduct.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return product + low


def add_adapters(decoder: Decoder, lora: Lora) -> None:
    """Freeze `decoder` and put a LoraLinear in place of every target, in place; then `init_adapters`.

    Raises   ConfigError for a structured target, and for a decoder with self-guided training
    """
    if decoder.config.structured.guide is not None:
        raise ConfigError(
            "lora and self-guided training (model.structured.guide) exclude each other",
            fix="Set model.structured.guide=none, or train all parameters",
        )
    decoder.requires_grad_(requires_grad=False)
    for name, module in list(decoder.model.layers.named_modules()):
        if name.rpartition(".")[2] not in lora.targets:
            continue
        if isinstance(module, StructuredLinear):
            raise ConfigError(
                f"lora.targets has {name.rpartition('.')[2]}, which is a structured matrix "
                f"({type(module.form).__name__}) in this model",
                fix="Leave the matrices of the feed-forward block out of lora.targets",
            )
        if isinstance(module, nn.Linear):
            decoder.model.layers.set_submodule(name, LoraLinear(module, lora))
    if lora.train_activation:
        learned = shape_parameters(decoder)
        if not learned:
            raise ConfigError(
                f"lora.train_activation is set, and {decoder.config.ffn.spec.name} has no parameters",
                fix="Set lora.train_activation=false",
            )
        for parameter in learned.values():
            parameter.requires_grad_()


def keep_stored_types(decoder: Decoder, stored: Mapping[str, torch.dtype]) -> None:
    """Give the frozen matrices that have adapters the dtype in which the start model stores them.

    stored   dtype by name; bfloat16 halves the memory of the matrices, other types stay float32
    Edge     their values are lost: call it before they are loaded. Products are those of float32
    """
    for name, module in decoder.named_modules():
        if isinstance(module, LoraLinear) and stored.get(name + _WEIGHT) == torch.bfloat16:
            module.weight.data = torch.empty_like(module.weight, dtype=torch.bfloat16)


@torch.no_grad()
def init_adapters(
    decoder: Decoder, seed: int, put: Callable[[Tensor, Tensor], object] = Tensor.copy_
) -> None:
    """Draw every A from `seed`; B is 0, so that the decoder is the same function to the bit.

    A is normal with standard deviation 1 / sqrt(3 N), that of PEFT's uniform values. Its values
    depend only on the seed, its name and its shape.

    put   copies values into a parameter, for one that is sharded over processes
    """
    for name, parameter in decoder.named_parameters():
        if name.endswith(_A):
            drawn = normal_values(seed, name, parameter.shape)
            put(parameter, drawn.div_(math.sqrt(3 * parameter.shape[1])))
        elif name.endswith(_B):
            parameter.zero_()


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name is the A or B of an adapter."""
    return name.endswith((_A, _B))


def lora_sizes(decoder: Decoder) -> dict[str, int]:
    """Parameters of frozen matrices and of adapters, for `flops.training_flops`."""
    frozen = adapter = 0
    for name, parameter in decoder.named_parameters():
        if is_adapter(name):
            adapter += parameter.numel()
        # A tied output matrix is a parameter once, by the name of the embedding.
        elif not parameter.requires_grad and parameter.ndim > 1:
            frozen += parameter.numel()
    embedding = decoder.model.embed_tokens.weight
    if decoder.lm_head.weight is not embedding and not embedding.requires_grad:
        frozen -= embedding.numel()
    return {"frozen": frozen, "adapters": adapter}


def base_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by name without those of adapters and of a reward head: those of the start model."""
    return {
        name: p
        for name, p in model.named_parameters()
        if not is_adapter(name) and name != REWARD_HEAD
    }


def adapters(weights: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B of every adapter in the unsharded `weights`, by the name of its matrix."""
    return {
        name.removesuffix(_A): (a, weights[name.removesuffix(_A) + _B])
        for name, a in weights.items()
        if name.endswith(_A)
    }


@torch.no_grad()
def merged_weights(weights: Mapping[str, Tensor], lora: Lora) -> dict[str, Tensor]:
    """Weights by name with W + scale B A, summed in float64 and rounded to float32, in place of each target.

    weights   all parameters by name, unsharded; they do not change
    Checked   tests/unit/models/test_lora.py
    """
    dense = {name: tensor for name, tensor in weights.items() if not is_adapter(name)}
    for name, (a, b) in adapters(weights).items():
        weight = dense[name + _WEIGHT]
        product = b.double() @ a.double()
        dense[name + _WEIGHT] = (weight.double() + lora.scale * product).float()
    return dense


def merged_decoder(config: DecoderConfig, weights: Mapping[str, Tensor], lora: Lora) -> Decoder:
    """A decoder with `merged_weights`.

    Checked   tests/unit/models/test_lora.py
    """
    dense = merged_weights(weights, lora)
    if config.tied_embeddings:
        dense["lm_head.weight"] = dense["model.embed_tokens.weight"]
    return decoder_of(config, dense)
