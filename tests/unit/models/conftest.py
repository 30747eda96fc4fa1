"""Hugging Face folders of each architecture that is read, written by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 96,
    "pad_token_id": 0,
}  # fmt: skip
TYPES = ("llama", "mistral", "phi3", "qwen2", "qwen3", "arcee", "apertus")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each architecture, written by transformers, with weights that spread."""
    transformers = pytest.importorskip("transformers")
    root = tmp_path_factory.mktemp("models")
    for name in TYPES:
        torch.manual_seed(3)
        config = transformers.AutoConfig.for_model(name, **SIZES)
        if name == "mistral":
            config.sliding_window = None
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=0.2)
                elif key.endswith("bias"):
                    parameter.normal_()
                elif "act_fn" not in key:
                    parameter.uniform_(0.5, 1.5)
        model.save_pretrained(root / name)
    return {name: root / name for name in TYPES}
