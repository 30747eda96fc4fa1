"""Store a decoder trained with LoRA: merged, and its adapters as PEFT stores them.

The adapters are loaded on the exported start model:

    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("exported-start"), "adapter")

Source   PEFT's documentation, "PEFT checkpoint format"; loaded with peft 0.21 and transformers 5.23
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from stamm.base.files import atomic, write_json
from stamm.models.config import DecoderConfig
from stamm.models.hub import xielu_constants
from stamm.models.lora import adapters, merged_weight
from stamm.models.lora_config import Lora
from stamm.models.serialization import save_weights

ADAPTER = "adapter"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_ACTIVATION = "act_fn"


def save_adapted(
    config: DecoderConfig, weights: Mapping[str, Tensor], folder: Path, *, lora: Lora
) -> None:
    """Store the merged decoder in `folder` ("model"), its adapters in the folder "adapter" beside.

    weights   all parameters of the decoder by name, unsharded

    Memory    one merged matrix beyond `weights`
    Edge      without adapters there is no such folder: PEFT has no form for activations alone
    Checked   tests/unit/models/test_peft_adapter.py
    """
    if lora.targets:
        _save_adapter(config, weights, lora, folder.with_name(ADAPTER))
    save_weights(config, lambda name: merged_weight(weights, name, lora), folder)


def _save_adapter(
    config: DecoderConfig, weights: Mapping[str, Tensor], lora: Lora, folder: Path
) -> None:
    """Write adapter_model.safetensors and adapter_config.json into `folder`."""
    state: dict[str, Tensor] = {}
    for name, (a, b) in adapters(weights).items():
        state[f"{_PREFIX}{name}.lora_A.weight"] = a.contiguous()
        state[f"{_PREFIX}{name}.lora_B.weight"] = b.contiguous()
    if lora.train_activation:
        for name, tensor in weights.items():
            if f".{_ACTIVATION}." in name:
                state[f"{_PREFIX}{name}"] = tensor.contiguous()
        # PEFT replaces the whole module, in transformers with these constants.
        constants = xielu_constants() if config.ffn.spec.name == "xielu" else {}
        for layer, (name, value) in itertools.product(range(config.num_layers), constants.items()):
            key = f"{_PREFIX}model.layers.{layer}.mlp.{_ACTIVATION}.{name}"
            state[key] = torch.tensor(value, dtype=torch.float32)
    with atomic(folder / ADAPTER_WEIGHTS) as temporary:
        save_file(state, temporary, {"format": "pt"})
    matrices = {name.rpartition(".")[2] for name in adapters(weights)}
    write_json(folder / ADAPTER_CONFIG, _adapter_config(lora, sorted(matrices)))


def _adapter_config(lora: Lora, matrices: list[str]) -> dict[str, Any]:
    """Content of adapter_config.json: what differs from PEFT's defaults, and what other readers need."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "target_modules": matrices,
        "modules_to_save": [_ACTIVATION] if lora.train_activation else None,
    }
