"""A decoder trained with LoRA is stored merged, and its adapters under PEFT's names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.models.hub import hub_state
from stamm.models.lora import add_adapters, init_adapters
from stamm.models.lora_config import Lora
from stamm.models.peft_adapter import save_adapted
from stamm.models.serialization import load_decoder

PLAIN = DecoderConfig(
    vocab_size=61, d_model=32, num_layers=2, num_kv_heads=2, ffn=PlainFFN(width=48)
)
GATED = replace(PLAIN, ffn=GatedFFN(width=40), tied_embeddings=True)
# Of LoraConfig(r=4).save_pretrained on transformers' Apertus and Qwen3 classes (peft 0.21.2).
ATTENTION = {"q_proj": (32, 32), "k_proj": (16, 32), "v_proj": (16, 32), "o_proj": (32, 32)}
MATRICES = {
    "plain": {"up_proj": (48, 32), "down_proj": (32, 48)},
    "gated": {"gate_proj": (40, 32), "up_proj": (40, 32), "down_proj": (32, 40)},
}


def _expected(kind: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for layer in (0, 1):
        for block, matrices in (("self_attn", ATTENTION), ("mlp", MATRICES[kind])):
            for name, (outputs, inputs) in matrices.items():
                place = f"base_model.model.model.layers.{layer}.{block}.{name}"
                found[f"{place}.lora_A.weight"] = (4, inputs)
                found[f"{place}.lora_B.weight"] = (outputs, 4)
    return found


@pytest.mark.parametrize("kind", ["plain", "gated"])
@pytest.mark.parametrize("train_activation", [False, True])
def test_names_and_shapes_are_pefts(tmp_path: Path, kind: str, train_activation: bool) -> None:
    config = PLAIN if kind == "plain" else GATED
    lora = Lora(rank=4, alpha=8.0, train_activation=train_activation)
    if train_activation and kind == "gated":
        pytest.skip("SwiGLU has no parameters")
    decoder = build_decoder(config, seed=1)
    add_adapters(decoder, lora)
    init_adapters(decoder, 5)
    draw = torch.Generator().manual_seed(4)
    for parameter in decoder.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=draw)
    weights = {name: p.detach() for name, p in decoder.named_parameters()}
    save_adapted(config, weights, tmp_path / "model", lora=lora)

    state = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    expected = _expected(kind)
    merged = hub_state(load_decoder(tmp_path / "model"))
    if train_activation:
        activation = {name: t for name, t in merged.items() if ".act_fn." in name}
        assert len(activation) == 2 * 4  # alpha_p, alpha_n, and the constants beta and eps
        for name, tensor in activation.items():
            assert torch.equal(state[f"base_model.model.{name}"], tensor), name
        expected |= {f"base_model.model.{n}": tuple(t.shape) for n, t in activation.items()}
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == expected

    described = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (described["peft_type"], described["r"], described["lora_alpha"]) == ("LORA", 4, 8.0)
    assert set(described["target_modules"]) == {*ATTENTION, *MATRICES[kind]}
    assert described["modules_to_save"] == (["act_fn"] if train_activation else None)

    place = "model.layers.1.mlp.up_proj"
    a, b = (state[f"base_model.model.{place}.lora_{x}.weight"].double() for x in "AB")
    start = hub_state(build_decoder(config, seed=1))[f"{place}.weight"].double()
    scale = described["lora_alpha"] / described["r"]
    torch.testing.assert_close(merged[f"{place}.weight"], (start + scale * b @ a).float())
