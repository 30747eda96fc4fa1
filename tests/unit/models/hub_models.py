"""Folders as Hugging Face has them: random weights that transformers saves, and a small tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

SIZES: dict[str, Any] = {
    "vocab_size": 352, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3,
}  # fmt: skip
_TEXT = "The wind turns the mill. Hello! 12 + 30 = 42\n user assistant système naïve"


def hub_model(
    folder: Path, model_type: str, dtype: torch.dtype = torch.float32, **sizes: Any
) -> None:
    """Write config.json and model.safetensors of a small model of a type, as transformers does."""
    import transformers

    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(model_type, **{**SIZES, **sizes})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.08)
            elif name.endswith("bias"):
                parameter.normal_(std=0.3)
    model.to(dtype).save_pretrained(folder)


def base_tokenizer(folder: Path) -> None:
    """Write the tokenizer of a base model, whose texts begin with <s> and end with </s>."""
    names = ["<unk>", "<s>", "</s>", "<pad>"]
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=names,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT] * 50, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    keys = ("unk_token", "bos_token", "eos_token", "pad_token")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **dict(zip(keys, names, strict=True))}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
