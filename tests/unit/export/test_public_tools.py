"""The recipes of docs/adapt.md that need no code of stamm, on an exported folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from stamm.base.files import write_json
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.models.hub import HubSpecialIds, hub_config, hub_state, quiet_transformers

TOKENS = torch.randint(61, (2, 24), generator=torch.Generator().manual_seed(3))


@pytest.fixture
def exported(tmp_path: Path) -> Any:
    """An Apertus model with xIELU that transformers has loaded."""
    config = DecoderConfig(
        vocab_size=61, d_model=64, num_layers=2, num_heads=2, ffn=PlainFFN(width=96), init_std=0.2
    )
    decoder = build_decoder(config, seed=7)
    special = HubSpecialIds(begin=1, end=2, pad=0)
    write_json(tmp_path / "config.json", hub_config(config, special))
    state = {name: tensor.clone() for name, tensor in hub_state(decoder).items()}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with quiet_transformers() as transformers:
        return transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()


def logits_of(model: Any) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(TOKENS).logits
    return logits


def test_peft_trains_the_activation_alone(exported: Any) -> None:
    peft = pytest.importorskip("peft")
    before = logits_of(exported)
    config = peft.LNTuningConfig(target_modules=["act_fn"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(exported, config)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 2 and all(".act_fn." in name for name in trained)
    assert torch.equal(logits_of(model), before)
    model(TOKENS, labels=TOKENS).loss.backward()
    gradients = [p.grad for p in model.parameters() if p.requires_grad]
    assert all(g is not None and float(g.abs().sum()) > 0 for g in gradients)


def test_peft_trains_lora_with_the_activation(exported: Any) -> None:
    peft = pytest.importorskip("peft")
    before = logits_of(exported)
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj", "up_proj"], modules_to_save=["act_fn"], task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(exported, config)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {"lora_A", "act_fn"} <= {part for name in trained for part in name.split(".")}
    torch.testing.assert_close(logits_of(model), before, rtol=0, atol=1e-5)


def test_torchao_stores_weights_in_8_bits(exported: Any) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    before = logits_of(exported)
    quantization.quantize_(exported, quantization.Int8WeightOnlyConfig())
    after = logits_of(exported)
    spread = float(before.std())
    assert 0 < float((after - before).abs().mean()) < 0.02 * spread
