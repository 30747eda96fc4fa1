"""Finding and loading a model: a run, one arm of it, or a Hugging Face folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from stamm.base.errors import ConfigError, DataError, RunError
from stamm.base.files import sha256_file, write_json
from stamm.export.transformers_target import write_folder
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.models.hf_chat_format import load_chat_format
from stamm.models.loading import config_of, open_model
from stamm.models.model_source import find_model
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
        model = open_model(source, chat=True)
        assert (source.kind, source.model) == ("run", run / "arms" / "b" / "model")
        assert model.sha256 == sha256_file(source.model / "model.safetensors")
        assert model.tokenizer.sha256 == sha256_file(run / "tokenizer" / "tokenizer.json")
        assert model.chat.name == "apertus"
        assert load_chat_format(run / "tokenizer").sha256 == model.chat.sha256


def test_a_hugging_face_folder_is_loaded(run: Path, tmp_path: Path) -> None:
    decoder = load_decoder(run / "arms" / "a" / "model")
    write_folder(tmp_path, decoder, run / "tokenizer" / "tokenizer.json")
    source = find_model(str(tmp_path))
    model = open_model(source, chat=True)
    assert source.kind == "hub"
    assert model.sha256 == sha256_file(tmp_path / "model.safetensors")
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


def test_inside_a_model_folder_the_arm_is_the_one_around_it(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run / "arms" / "b" / "model")
    assert find_model(".").model.parent == (run / "arms" / "b").resolve()
    assert find_model(".", "b") == find_model(".")


def test_an_export_written_into_a_run_folder_is_not_taken_for_the_run(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run / "arms" / "a" / "model", tmp_path / "model")
    shutil.copytree(run / "tokenizer", tmp_path / "tokenizer")
    write_json(tmp_path / "transformers" / "config.json", {"model_type": "llama"})
    assert find_model(tmp_path).model == tmp_path / "model"


def test_exports_of_two_arms_have_two_names(run: Path, tmp_path: Path) -> None:
    for arm in ("one", "two"):
        export = tmp_path / "demo" / "arms" / arm / "export" / "transformers"
        export.mkdir(parents=True)
        write_folder(
            export,
            load_decoder(run / "arms" / "a" / "model"),
            run / "tokenizer" / "tokenizer.json",
        )
        assert find_model(export.parent).name == f"demo-{arm}-transformers"
        assert find_model(export).name == f"demo-{arm}-transformers"


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
        open_model(tmp_path, chat=True)


@pytest.mark.parametrize("content", [{}, [], {"decoder": []}])
def test_a_file_that_describes_no_decoder_is_named(
    run: Path, tmp_path: Path, content: object
) -> None:
    shutil.copytree(run / "tokenizer", tmp_path / "tokenizer")
    write_json(tmp_path / "model" / "decoder.json", content)
    for read in (config_of, open_model):
        with pytest.raises((ConfigError, DataError), match=r"decoder\.json"):
            read(find_model(tmp_path))


def test_several_files_of_weights_have_one_hash(run: Path, tmp_path: Path) -> None:
    decoder = load_decoder(run / "arms" / "a" / "model")
    write_folder(tmp_path, decoder, run / "tokenizer" / "tokenizer.json")
    whole = open_model(tmp_path, chat=True).sha256
    (tmp_path / "model.safetensors").rename(tmp_path / "part.safetensors")
    write_json(
        tmp_path / "model.safetensors.index.json",
        {"weight_map": {"lm_head.weight": "part.safetensors"}},
    )
    parts = open_model(tmp_path, chat=True).sha256
    assert parts != whole
