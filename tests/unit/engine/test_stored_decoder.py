"""A run that starts from a stored decoder has its weights, and refuses another model's or a damaged one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.schema import write_record
from stamm.engine.checkpoint import Checkpoints
from stamm.engine.distributed import DistributedContext
from stamm.engine.sharded_optimizer import ShardedOptimizer
from stamm.engine.stored_decoder import load_stored_decoder
from stamm.models.config import BlockDense, DecoderConfig, GatedFFN, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.serialization import save_decoder
from stamm.runs.model_outputs import weights_sha256
from stamm.runs.records import ConfigFile

CPU = DistributedContext(torch.device("cpu"))
MODEL = DecoderConfig(vocab_size=61, d_model=32, num_layers=2, ffn=PlainFFN(width=48))
MODELS = {
    "plain": MODEL,
    "gated and tied": replace(MODEL, ffn=GatedFFN(width=32), tied_embeddings=True),
    "structured": replace(MODEL, ffn=PlainFFN(width=48, linear=BlockDense(rank=8))),
}


def _load(folder: Path, decoder: Decoder, *, moments: bool = False) -> None:
    updater = ShardedOptimizer(decoder, lambda shard: torch.optim.AdamW(decoder.parameters()))
    store = Checkpoints(folder / "checkpoints", keep=1, world=CPU)
    store.load(folder, decoder, updater, moments=moments)


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_are_those_of_the_stored_decoder(tmp_path: Path, name: str) -> None:
    stored = build_decoder(MODELS[name], seed=1)
    save_decoder(stored, tmp_path)
    started = build_decoder(MODELS[name], seed=2)
    _load(tmp_path, started)
    for (key, found), expected in zip(started.named_parameters(), stored.parameters(), strict=True):
        assert torch.equal(found, expected), key
    if MODELS[name].tied_embeddings:
        assert started.lm_head.weight is started.model.embed_tokens.weight
    assert load_stored_decoder(tmp_path, started, CPU) == weights_sha256(tmp_path)


def test_other_safetensors_files_of_the_folder_are_not_read(tmp_path: Path) -> None:
    stored = build_decoder(MODEL, seed=1)
    save_decoder(stored, tmp_path)
    save_file({"model.norm.weight": torch.zeros(32)}, tmp_path / "zzz.safetensors")
    started = build_decoder(MODEL, seed=2)
    _load(tmp_path, started)
    assert torch.equal(started.model.norm.weight, stored.model.norm.weight)


SETTINGS: list[tuple[dict[str, object], str]] = [
    ({"vocab_size": 64}, r"has vocab_size = 61, and this run has model.vocab_size = 64"),
    ({"tied_embeddings": True}, r"has tied_embeddings = False, .*model.tied_embeddings = True"),
    ({"ffn": PlainFFN(width=48, activation="gelu")}, r"ffn.activation = 'xielu', .* 'gelu'"),
    ({"num_heads": 8, "head_dim": 4}, r"has head_dim = 8, .*model.head_dim = 4"),
]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        *SETTINGS,
        ({"ffn": PlainFFN(width=40)}, r"up_proj.weight has shape \(48, 32\) in .* and \(40, 32\)"),
        (
            {"num_layers": 1},
            r"model.safetensors has the tensor model.layers.1.*, and this model does",
        ),
        ({"num_layers": 3}, r"this model has the tensor model.layers.2.*, and .*safetensors does"),
    ],
)
def test_another_model_is_refused_with_both_values(
    tmp_path: Path, changed: dict[str, object], told: str
) -> None:
    save_decoder(build_decoder(MODEL, seed=1), tmp_path)
    with pytest.raises(DataError, match=told):
        _load(tmp_path, build_decoder(replace(MODEL, **changed), seed=2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        *SETTINGS,
        ({"ffn": PlainFFN(width=40)}, r"not fit the model: Size mismatch .*48.* and current: .*40"),
        ({"num_layers": 1}, r"the checkpoint has the tensor model.layers.1.*, and the model does"),
        ({"num_layers": 3}, r"the model has the tensor model.layers.2.*, and the checkpoint does"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_as_well(
    tmp_path: Path, changed: dict[str, object], told: str
) -> None:
    """By the configuration of the run that wrote it, and without one by its tensors."""
    written = build_decoder(MODEL, seed=1)
    updater = ShardedOptimizer(written, lambda shard: torch.optim.AdamW(written.parameters()))
    store = Checkpoints(tmp_path / "checkpoints", keep=1, world=CPU)
    store.save(1, written, updater, "")
    described = {"kind": "pretrain", "config": {"model": to_plain(MODEL)}}
    write_record(tmp_path / "config.json", ConfigFile, described)
    place = tmp_path / "checkpoints" / "step-00000001"
    _load(place, build_decoder(MODEL, seed=2))
    with pytest.raises(DataError, match=told):
        _load(place, build_decoder(replace(MODEL, **changed), seed=2))  # type: ignore[arg-type]


def test_damaged_weights_are_refused_with_both_hashes(tmp_path: Path) -> None:
    save_decoder(build_decoder(MODEL, seed=1), tmp_path)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    state["model.norm.weight"] += 1
    save_file(state, path)
    recorded = json.loads((tmp_path / "decoder.json").read_text())["weights_sha256"]
    with pytest.raises(DataError, match=rf"has SHA-256 .* records {recorded[:12]}"):
        _load(tmp_path, build_decoder(MODEL, seed=2))
    path.unlink()
    with pytest.raises(DataError, match=r"model\.safetensors cannot be read"):
        _load(tmp_path, build_decoder(MODEL, seed=2))


def test_a_stored_decoder_has_no_optimizer_state(tmp_path: Path) -> None:
    save_decoder(build_decoder(MODEL, seed=1), tmp_path)
    with pytest.raises(ConfigError, match="is a stored decoder, without optimizer state"):
        _load(tmp_path, build_decoder(MODEL, seed=2), moments=True)
