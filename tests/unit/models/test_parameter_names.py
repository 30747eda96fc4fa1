"""Names and shapes told without torch are those of the module."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from stamm.models.config import (
    BlockDense,
    BlockShuffle,
    DecoderConfig,
    GatedFFN,
    LowRank,
    PlainFFN,
    SelfGuide,
    Structured,
)
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.flops import count_parameters, guide_parameters
from stamm.models.lora import add_adapters
from stamm.models.lora_config import Lora
from stamm.models.parameter_shapes import parameter_shapes, trained_shapes


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_embeddings": True, "qk_norm": False},
        {"ffn": GatedFFN(width=32), "num_kv_heads": 4},
        {"ffn": GatedFFN(width=32), "qk_norm": False, "qkv_bias": True},
        {"ffn": PlainFFN(width=64, linear=LowRank(rank=8))},
        {"ffn": GatedFFN(width=64, linear=BlockDense(blocks=2, rank=8))},
        {
            "ffn": PlainFFN(width=64, linear=BlockShuffle(blocks=2)),
            "structured": Structured(keep_first=False),
        },
    ],
)
def test_names_and_shapes_are_the_modules(changes: dict[str, Any]) -> None:
    config = DecoderConfig(vocab_size=50, d_model=32, num_layers=2, **changes)
    with torch.device("meta"):
        module = Decoder(config)
    assert list(parameter_shapes(config).items()) == _shapes(module)


@pytest.mark.parametrize(
    "linear", [LowRank(rank=8), BlockDense(blocks=2, rank=8), BlockShuffle(blocks=2)]
)
@pytest.mark.parametrize("kind", [PlainFFN, GatedFFN])
@pytest.mark.parametrize("keep_first", [False, True])
def test_guides_stand_where_the_module_has_them(
    linear: LowRank | BlockDense | BlockShuffle,
    kind: type[PlainFFN | GatedFFN],
    keep_first: bool,
) -> None:
    structured = Structured(guide=SelfGuide(), keep_first=keep_first)
    ffn = kind(width=64, linear=linear)
    config = DecoderConfig(vocab_size=50, d_model=32, num_layers=2, ffn=ffn, structured=structured)
    module = build_decoder(config, seed=0)
    assert list(parameter_shapes(config).items()) == _shapes(module)
    module.add_guides()
    assert list(parameter_shapes(config, guides=True).items()) == _shapes(module)
    numbers = sum(math.prod(shape) for shape in parameter_shapes(config, guides=True).values())
    assert numbers == count_parameters(config).total + guide_parameters(config)


@pytest.mark.parametrize("ffn", [PlainFFN(width=48), GatedFFN(width=32)])
@pytest.mark.parametrize("train_activation", [False, True])
def test_names_and_shapes_of_adapters_are_the_modules(
    ffn: PlainFFN | GatedFFN, train_activation: bool
) -> None:
    config = DecoderConfig(vocab_size=50, d_model=32, num_layers=2, ffn=ffn)
    lora = Lora(rank=3, targets=("v_proj", "gate_proj", "down_proj"))
    if isinstance(ffn, PlainFFN):
        lora = replace(lora, train_activation=train_activation)
    module = build_decoder(config, seed=0)
    add_adapters(module, lora)
    trained = {n: tuple(p.shape) for n, p in module.named_parameters() if p.requires_grad}
    assert trained_shapes(config, lora=lora) == trained


def _shapes(module: Decoder) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(p.shape)) for name, p in module.named_parameters()]
