"""Untrained models of transformers, of one or two layers, with a batch for each."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor

_SMALL = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4,
}  # fmt: skip
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_GPT = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4}
_IMAGES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 16, "patch_size": 8,
}  # fmt: skip
# Class: its configuration, the settings, and whether its blocks are gated.
MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "LlamaForCausalLM": ("LlamaConfig", _GROUPED, True),
    "MistralForCausalLM": ("MistralConfig", _GROUPED, True),
    "Qwen2ForCausalLM": ("Qwen2Config", _GROUPED, True),
    "Qwen3ForCausalLM": ("Qwen3Config", {**_GROUPED, "head_dim": 8}, True),
    "Gemma2ForCausalLM": ("Gemma2Config", {**_GROUPED, "head_dim": 8}, True),
    "Phi3ForCausalLM": ("Phi3Config", {**_SMALL, "pad_token_id": 0}, True),
    "MixtralForCausalLM": ("MixtralConfig", {**_GROUPED, "num_local_experts": 4}, True),
    "PhiForCausalLM": ("PhiConfig", _SMALL, False),
    "GPT2LMHeadModel": ("GPT2Config", _GPT, False),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", _SMALL, False),
    "OPTForCausalLM": (
        "OPTConfig",
        {
            "vocab_size": 97, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "word_embed_proj_dim": 32,
        },
        False,
    ),
    "FalconForCausalLM": ("FalconConfig", {**_SMALL, "ffn_hidden_size": 48}, False),
    "BloomForCausalLM": (
        "BloomConfig",
        {"vocab_size": 97, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        False,
    ),
    "BertForMaskedLM": ("BertConfig", _SMALL, False),
    "T5ForConditionalGeneration": (
        "T5Config",
        {
            "vocab_size": 97, "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4,
            "feed_forward_proj": "gated-gelu",
        },
        True,
    ),
    "ViTForImageClassification": ("ViTConfig", _IMAGES, False),
}  # fmt: skip
IDS = (torch.arange(3, 19) * 5 % 97)[None]


def build(name: str, **changes: Any) -> Any:
    """The model of a row of `MODELS`, with random weights, in evaluation mode."""
    config, settings, _ = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**{**settings, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)  # pre-activations of the size of a trained model's
    return model.eval()


def batch(name: str) -> dict[str, Tensor]:
    """Inputs of the model."""
    if name == "ViTForImageClassification":
        return {
            "pixel_values": torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))
        }
    if name == "T5ForConditionalGeneration":
        return {"input_ids": IDS, "decoder_input_ids": IDS.flip(1)}
    return {"input_ids": IDS}


@torch.no_grad()
def logits(model: Any, name: str) -> Tensor:
    """Its logits on `batch`."""
    result: Tensor = model(**batch(name)).logits
    return result


@torch.no_grad()
def move_shapes(model: Any) -> None:
    """Change every shape parameter, each by another amount, as training would."""
    generator = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        if "alpha" in name:
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
