"""Finding and loading a model: a run, one arm of it, or a Hugging Face folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from stamm.align.model_source import find_model, load_chat_format, load_chat_model
from stamm.base.errors import DataError, RunError
from stamm.base.files import sha256_file, write_json
from stamm.export.transformers_target import write_folder
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.models.serialization import load_decoder, save_decoder
from tests.unit.untrained_run import untrained_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two arms, of an untrained model."""
    root = tmp_path_factory.mktemp("run")
    untrained_run(root)
    for arm in ("a", "b"):
        (root / "arms" / arm).mkdir(parents=True)
        shutil.copytree(root / "model", root / "arms" / arm / "model")
    shutil.rmtree(root / "model")
    return root


def test_an_arm_of_a_run_is_loaded_with_its_tokenizer(run: Path) -> None:
    for source in (find_model(str(run), "b"), find_model(str(run / "arms" / "b"))):
        model = load_chat_model(source)
        assert (source.kind, source.model) == ("run", run / "arms" / "b" / "model")
        assert model.weights_sha256 == sha256_file(source.model / "model.safetensors")
        assert model.tokenizer_sha256 == sha256_file(run / "tokenizer" / "tokenizer.json")
        assert model.chat.name == "apertus"
        assert load_chat_format(run / "tokenizer").sha256 == model.chat.sha256


def test_a_hugging_face_folder_is_loaded(run: Path, tmp_path: Path) -> None:
    decoder = load_decoder(run / "arms" / "a" / "model")
    write_folder(tmp_path, decoder, run / "tokenizer" / "tokenizer.json")
    source = find_model(str(tmp_path))
    model = load_chat_model(source)
    assert source.kind == "hub"
    assert model.weights_sha256 == sha256_file(tmp_path / "model.safetensors")
    tokens = torch.arange(60)[None]
    with torch.no_grad():
        assert torch.equal(model.decoder(tokens), decoder(tokens))


@pytest.mark.parametrize(
    ("arm", "message"),
    [(None, r"holds 2 trained models.*arms/a, .*arms/b"), ("c", r"no arm 'c'.*Known: a, b")],
)
def test_an_arm_must_be_named(run: Path, arm: str | None, message: str) -> None:
    with pytest.raises(RunError, match=message):
        find_model(str(run), arm)


def test_other_folders_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no trained model"):
        find_model(str(tmp_path))
    with pytest.raises(RunError, match="is not a folder"):
        find_model(str(tmp_path / "absent"))
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(
        DataError,
        match=r"no model\.safetensors, but pytorch_model\.bin.*Save the model as safetensors",
    ):
        find_model(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(DataError, match=r"no tokenizer\.json"):
        find_model(str(tmp_path))


def test_a_smaller_vocabulary_is_refused_with_both_numbers(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "tokenizer", tmp_path / "tokenizer")
    config = DecoderConfig(vocab_size=351, d_model=16, num_layers=1, ffn=PlainFFN(width=8))
    (tmp_path / "model").mkdir()
    save_decoder(build_decoder(config, seed=1), tmp_path / "model")
    with pytest.raises(DataError, match="the tokenizer has 352 ids, and the model 351"):
        load_chat_model(find_model(str(tmp_path)))


def test_several_files_of_weights_have_one_hash(run: Path, tmp_path: Path) -> None:
    decoder = load_decoder(run / "arms" / "a" / "model")
    write_folder(tmp_path, decoder, run / "tokenizer" / "tokenizer.json")
    whole = load_chat_model(find_model(str(tmp_path))).weights_sha256
    (tmp_path / "model.safetensors").rename(tmp_path / "part.safetensors")
    write_json(
        tmp_path / "model.safetensors.index.json",
        {"weight_map": {"lm_head.weight": "part.safetensors"}},
    )
    parts = load_chat_model(find_model(str(tmp_path))).weights_sha256
    assert parts != whole
