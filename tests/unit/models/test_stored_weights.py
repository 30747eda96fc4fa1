"""Stored decoders are written and read tensor by tensor: the same bytes and bits, one tensor in memory."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stamm.models.config import DecoderConfig, GatedFFN
from stamm.models.decoder import build_decoder
from stamm.models.frozen_linear import FrozenLinear
from stamm.models.lora import add_adapters, init_adapters, merged_decoder
from stamm.models.lora_config import Lora
from stamm.models.peft_adapter import save_adapted
from stamm.models.serialization import load_decoder, load_frozen_decoder, save_decoder
from stamm.models.weight_shards import StoredTensor, write_tensors
from tests.conftest import environment
from tests.unit.models.hub_models import hub_model
from tests.unit.models.test_mapped_weights import CONFIG

GATED = DecoderConfig(
    vocab_size=90, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, ffn=GatedFFN(width=48),
    qk_norm=False, qkv_bias=True, max_context=64,
)  # fmt: skip


def test_a_file_has_the_bytes_of_save_file(tmp_path: Path) -> None:
    kinds = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
    for count in range(1, 9):
        state = {
            f"{'é' * (n % 2)}layers.{n}": torch.randn(n + 1, 3).to(kinds[n % len(kinds)])
            for n in range(count)
        }
        save_file(state, tmp_path / "theirs")
        stored = {name: StoredTensor(tuple(each.shape), each.dtype) for name, each in state.items()}
        write_tensors(tmp_path / "ours", stored, state.__getitem__)
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("config", [CONFIG, GATED, replace(GATED, tied_embeddings=True)], ids=str)
def test_a_decoder_is_stored_with_its_state(tmp_path: Path, config: DecoderConfig) -> None:
    """Constants of activations are stored, a tied output matrix is not."""
    decoder = build_decoder(config, seed=1)
    save_decoder(decoder, tmp_path)
    state = decoder.state_dict()
    if config.tied_embeddings:
        del state["lm_head.weight"]
    save_file(state, tmp_path / "theirs")
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("tied", [False, True])
def test_a_frozen_decoder_computes_the_bits_of_float32(tmp_path: Path, tied: bool) -> None:
    decoder = build_decoder(replace(GATED, tied_embeddings=tied), seed=1)
    for parameter in decoder.parameters():
        parameter.data = parameter.data.bfloat16().float()
    save_decoder(decoder, tmp_path, dict.fromkeys(decoder.state_dict(), torch.bfloat16))
    frozen, wide = load_frozen_decoder(tmp_path), load_decoder(tmp_path)
    kinds = {name: each.dtype for name, each in frozen.named_parameters()}
    matrices = {
        f"{n}.weight" for n, each in frozen.named_modules() if isinstance(each, FrozenLinear)
    }
    assert len(matrices) == 2 * 7
    assert {name for name, kind in kinds.items() if kind == torch.bfloat16} == matrices
    assert {each.dtype for each in wide.parameters()} == {torch.float32}
    tokens = torch.arange(120).view(3, 40) % 90
    for grad in (torch.enable_grad, torch.no_grad):
        with grad():
            assert torch.equal(frozen(tokens), wide(tokens))


def test_a_decoder_in_float32_stays_mapped_and_another_does_not(tmp_path: Path) -> None:
    decoder = build_decoder(GATED, seed=1)
    kept = {"model.layers.0.mlp.up_proj.weight": torch.bfloat16}
    save_decoder(decoder, tmp_path, kept)
    mapped = load_decoder(tmp_path, mapped=True)
    state = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(each, state[name].float()) for name, each in mapped.named_parameters())


def test_adapters_are_merged_tensor_by_tensor(tmp_path: Path) -> None:
    lora = Lora(rank=2)
    for config in (GATED, replace(GATED, tied_embeddings=True)):
        decoder = build_decoder(config, seed=1)
        add_adapters(decoder, lora)
        init_adapters(decoder, 3)
        for name, parameter in decoder.named_parameters():
            if name.endswith("lora_B"):
                parameter.data.normal_()
        weights = {name: each.detach() for name, each in decoder.named_parameters()}
        save_adapted(config, weights, tmp_path / "ours", lora=lora)
        save_decoder(merged_decoder(config, weights, lora), tmp_path / "theirs")
        ours, theirs = (tmp_path / name / "model.safetensors" for name in ("ours", "theirs"))
        assert ours.read_bytes() == theirs.read_bytes()


STAGES = """
import ctypes, sys, torch
from pathlib import Path
from stamm.engine.distributed import DistributedContext
from stamm.engine.parallel import allocate_weights
from stamm.engine.stored_decoder import load_stored_decoder
from stamm.models.decoder import build_blank
from stamm.models.hub_folder import open_hub
from stamm.models.lora import add_adapters, init_adapters, keep_stored_types
from stamm.models.lora_config import Lora
from stamm.models.peft_adapter import save_adapted
from stamm.models.serialization import (
    checked_config, load_decoder, load_frozen_decoder, save_weights, stored_types,
)

def memory(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) / 1024

def begin():
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
    return memory("VmRSS")

def imported():
    weights = open_hub(hub)
    save_weights(weights.config, weights.read, stored, weights.dtypes)

def tuned():
    decoder = build_blank(checked_config(stored))
    add_adapters(decoder, Lora())
    keep_stored_types(decoder, stored_types(stored))
    allocate_weights(decoder, torch.device("cpu"))
    decoder.lm_head.weight = decoder.model.embed_tokens.weight
    init_adapters(decoder, 1)
    load_stored_decoder(stored, decoder, DistributedContext(torch.device("cpu")))
    return decoder

stages = {
    "import": imported,
    "load": lambda: load_decoder(stored),
    "frozen": lambda: load_frozen_decoder(stored),
    "lora": tuned,
    "save": lambda: save_adapted(
        decoder.config, dict(decoder.named_parameters()), stored.parent / "model", lora=Lora()
    ),
}
for hub in map(Path, sys.argv[1:]):  # a tiny model first, which loads the code
    stored = hub / "stored"
    for name, stage in stages.items():
        before = begin()
        kept = stage()
        print(hub.name, name, memory("VmHWM") - before)
        decoder = kept if name == "lora" else None
        del kept
"""


@pytest.mark.slow
def test_each_stage_holds_the_weights_once(tmp_path: Path) -> None:
    """MiB beyond the loaded code, of a model with 128 MiB of matrices in bfloat16 and an embedding of 16 MiB.

    Twice the weights in float32, or beside them the file that they are read from, exceed the bounds.
    """
    small = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 352}
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 8192}
    for name, given in (("tiny", small), ("hub", sizes)):
        hub_model(
            tmp_path / name, "qwen2", torch.bfloat16, num_hidden_layers=4, num_attention_heads=8,
            num_key_value_heads=8, tie_word_embeddings=True, **given,
        )  # fmt: skip
    command = [sys.executable, "-c", STAGES, str(tmp_path / "tiny"), str(tmp_path / "hub")]
    # A large block goes back to the system when it is freed, whatever was freed before.
    fixed = {**environment(), "MALLOC_MMAP_THRESHOLD_": "1048576"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=fixed)
    lines = [line.split() for line in done.stdout.splitlines()]
    peaks = {name: float(peak) for model, name, peak in lines if model == "hub"}
    most = {"import": 80, "load": 340, "frozen": 80, "lora": 224, "save": 128}
    assert peaks.keys() == most.keys()
    assert {name: peak for name, peak in peaks.items() if peak > most[name]} == {}
