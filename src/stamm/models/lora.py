"""Low-rank adaptation (LoRA) of a decoder: frozen matrices with trained low-rank adapters beside them.

Letters: N inputs, M outputs, R rank.

Frozen parameters keep their names, so that weights of a decoder without adapters are loaded as usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stamm.activations.module.shape_parameters import shape_parameters
from stamm.base.errors import ConfigError
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder, decoder_of, normal_values
from stamm.models.frozen_linear import frozen_product
from stamm.models.linear import StructuredLinear
from stamm.models.lora_config import Lora
from stamm.models.reward_head import REWARD_HEAD

_WEIGHT, _A, _B = ".weight", ".lora_A", ".lora_B"


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
        return frozen_product(x, self.weight, self.bias) + low


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
def merged_weight(weights: Mapping[str, Tensor], name: str, lora: Lora) -> Tensor:
    """The weight `name` with W + scale B A, summed in float64 and rounded to float32, if it has an adapter.

    weights   all parameters by name, unsharded; they do not change
    """
    matrix = name.removesuffix(_WEIGHT)
    if matrix == name or matrix + _A not in weights:
        return weights[name]
    product = weights[matrix + _B].double() @ weights[matrix + _A].double()
    return weights[name].double().add_(product.mul_(lora.scale)).float()


def merged_weights(weights: Mapping[str, Tensor], lora: Lora) -> dict[str, Tensor]:
    """`merged_weight` of every weight by name, without the adapters.

    Checked   tests/unit/models/test_lora.py
    """
    return {name: merged_weight(weights, name, lora) for name in weights if not is_adapter(name)}


def merged_decoder(config: DecoderConfig, weights: Mapping[str, Tensor], lora: Lora) -> Decoder:
    """A decoder with `merged_weights`.

    Checked   tests/unit/models/test_lora.py
    """
    dense = merged_weights(weights, lora)
    if config.tied_embeddings:
        dense["lm_head.weight"] = dense["model.embed_tokens.weight"]
    return decoder_of(config, dense)
