"""Folders for transformers: shards, a BF16 copy, keys of other engines, and memory while writing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from stamm.base.files import read_json
from stamm.export import job
from stamm.export.config import ExportConfig
from stamm.export.transformers_target import write_folder
from stamm.models.config import GatedFFN, Llama3Rope
from stamm.models.decoder import build_decoder
from stamm.models.hf_files import INDEX
from stamm.models.hub import HubModel
from stamm.models.hub_folder import load_hub
from stamm.models.weight_shards import write_weights
from stamm.runs.job import Workspace
from tests.unit.export.test_gguf import SMALL, decoder_of

# Keys without a default, or that decide what is computed, in the configuration classes of the
# engines: MLX-LM 0.32.2 models/apertus.py and qwen3.py (ModelArgs), vLLM 0.33.0 and SGLang 0.5.23
# models/apertus.py. Read there, not run.
COMMON = {
    "model_type", "architectures", "hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size",
    "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta",
    "max_position_embeddings", "tie_word_embeddings", "rope_parameters", "dtype", "attention_bias",
}  # fmt: skip
APERTUS = COMMON | {"hidden_act", "mlp_bias", "post_norm", "qk_norm"}


def test_shards_hold_the_tensors_and_an_index(tmp_path: Path) -> None:
    state = {f"t{n}": torch.randn(100, n + 1) for n in range(6)}
    kept = {name: torch.bfloat16 if name == "t3" else torch.float32 for name in state}
    write_weights(tmp_path, state, kept, 2000)
    index = read_json(tmp_path / INDEX)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files == [f"model-{n:05d}-of-00004.safetensors" for n in range(1, 5)]
    assert index["metadata"]["total_size"] == sum(
        state[n].numel() * kept[n].itemsize for n in state
    )
    for name, file in index["weight_map"].items():
        stored = load_file(tmp_path / file)[name]
        assert torch.equal(stored, state[name].to(kept[name]))
        assert stored.dtype == kept[name]


def test_a_folder_has_the_keys_of_other_engines(tmp_path: Path, inputs: dict[str, Path]) -> None:
    tokenizer = inputs["tokenizer"] / "tokenizer.json"
    rope = Llama3Rope(theta=10_000.0, original_context=16)
    for name, config, keys in (
        ("apertus", replace(SMALL, rope=rope, tied_embeddings=True), APERTUS | {"rope_scaling"}),
        ("qwen3", replace(SMALL, ffn=GatedFFN(width=48)), COMMON),
    ):
        (tmp_path / name).mkdir()
        write_folder(tmp_path / name, build_decoder(config, seed=1), tokenizer)
        stored = read_json(tmp_path / name / "config.json")
        assert keys <= set(stored)
        assert stored["rope_theta"] == config.rope.theta
        assert stored["rope_parameters"]["rope_theta"] == config.rope.theta
    weights = load_file(tmp_path / "apertus" / "model.safetensors")
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    assert weights["model.layers.0.mlp.act_fn.alpha_p"].shape == (1,)
    assert {"model.layers.0.mlp.act_fn.beta", "model.layers.0.mlp.act_fn.eps"} <= set(weights)


@pytest.mark.slow
def test_a_tied_sharded_folder_gives_the_same_logits(
    tmp_path: Path, inputs: dict[str, Path]
) -> None:
    rope = Llama3Rope(theta=10_000.0, original_context=16)
    decoder = decoder_of(replace(SMALL, rope=rope, tied_embeddings=True))
    write_folder(tmp_path, decoder, inputs["tokenizer"] / "tokenizer.json", "F32", 20_000)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    tokens = torch.arange(90)[None]
    with torch.no_grad():
        ours = decoder(tokens)
        torch.testing.assert_close(HubModel(tmp_path).logits(tokens), ours, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(load_hub(tmp_path)(tokens), ours)


@pytest.mark.slow
def test_a_bf16_copy_loads_as_bfloat16(inputs: dict[str, Path], tmp_path: Path) -> None:
    config = ExportConfig(
        quantization="BF16", parity_rows=1, parity_tokens=40, samples=0, threads=1
    )
    job.run(config, Workspace(folder=tmp_path, inputs=inputs))
    folder = tmp_path / "transformers_bf16"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    report = read_json(folder / "parity.json")
    assert report["bits_tolerance"] == 0.005
    assert "BF16 weights" in report["candidate"]
    state = load_file(folder / "model.safetensors")
    assert state["model.embed_tokens.weight"].dtype == torch.bfloat16
    assert state["model.layers.0.mlp.act_fn.alpha_p"].dtype == torch.float32


MEASURE = """
import resource, sys, torch
from pathlib import Path
from stamm.models.mapped_weights import map_weights
from stamm.models.weight_shards import write_weights
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
state = map_weights(Path(sys.argv[1]) / "model.safetensors")
write_weights(Path(sys.argv[2]), state, dict.fromkeys(state, getattr(torch, sys.argv[3])), 4 * 2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reading_and_writing_need_less_memory_than_a_shard(tmp_path: Path, dtype: str) -> None:
    """24 tensors of 16 MiB in shards of 64 MiB."""
    save_file({f"t{n:02d}": torch.ones(2**22) for n in range(24)}, tmp_path / "model.safetensors")
    given = [sys.executable, "-c", MEASURE, str(tmp_path), str(tmp_path / "out"), dtype]
    done = subprocess.run(given, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1.2 * 64 * 1024
