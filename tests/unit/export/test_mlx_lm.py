"""Exported folders in MLX-LM on a CPU: the logits of the original."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stamm.export.parity import difference, random_tokens
from stamm.export.transformers_target import write_folder
from stamm.models.config import GatedFFN, PlainFFN
from tests.unit.export.test_gguf import LAYOUTS, SMALL, decoder_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("mlx_lm") is None, reason="MLX-LM is not installed"
    ),
]
# Refused by MLX-LM 0.32.2: no arcee, and an Apertus whose heads are not hidden size / heads wide.
REFUSED = {"arcee": "arcee not supported", "wide heads": "Expected shape"}
CASES = [*(name for name, (_, kind) in LAYOUTS.items() if kind != "arcee"), "arcee", "own code"]


@pytest.mark.parametrize("name", CASES)
def test_mlx_lm_has_the_logits_of_the_original(
    name: str, inputs: dict[str, Path], tmp_path: Path
) -> None:
    import mlx.core as mx
    from mlx_lm.utils import load_model

    config = LAYOUTS[name][0] if name in LAYOUTS else SMALL
    if name == "own code":
        config = replace(SMALL, ffn=PlainFFN(width=64, activation="mish"), qk_norm=False)
    decoder = decoder_of(config)
    write_folder(tmp_path, decoder, inputs["tokenizer"] / "tokenizer.json")
    if name in REFUSED or name == "own code":
        with pytest.raises(ValueError, match=REFUSED.get(name, "not supported")):
            load_model(tmp_path)
        return
    model, _ = load_model(tmp_path)

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.array(model(mx.array(tokens.numpy())).astype(mx.float32)))

    measured = difference("", decoder, logits, random_tokens(config.vocab_size, 2, 40, seed=1))
    assert measured.max_relative < 1e-5, measured


def test_mlx_lm_reads_no_name_of_an_activation(inputs: dict[str, Path], tmp_path: Path) -> None:
    """GEGLU loads as a Llama, and is computed as SwiGLU: docs/export.md warns of it."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    decoder = decoder_of(replace(SMALL, ffn=GatedFFN(width=64, activation="geglu"), qk_norm=False))
    write_folder(tmp_path, decoder, inputs["tokenizer"] / "tokenizer.json")
    model, _ = load_model(tmp_path)
    tokens = torch.stack(random_tokens(SMALL.vocab_size, 1, 20, seed=1))
    logits = torch.from_numpy(np.array(model(mx.array(tokens.numpy()))))
    assert (logits - decoder(tokens)).abs().max() > 1e-2
