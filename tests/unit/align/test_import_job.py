"""Importing a Hugging Face folder: the stored decoder computes the same, with the same chat format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stamm.align.import_config import ImportConfig, import_files
from stamm.align.import_job import run
from stamm.align.model_source import find_model, load_chat_model
from stamm.base.errors import DataError
from stamm.base.files import read_json, write_json
from stamm.chat.conversation import Conversation, UserTurn
from stamm.corpus.tokenizer.imported import ImportedTokenizer
from stamm.evaluate.text_model import text_model
from stamm.export.transformers_target import imported_special_ids
from stamm.models.config import DecoderConfig, GatedFFN
from stamm.models.decoder import build_decoder
from stamm.models.hub import HubSpecialIds, hub_config, hub_state
from stamm.runs.job import Workspace
from tests.unit.chat.imported_folders import TEMPLATES, imported_folder

ASKED = Conversation(turns=(UserTurn("Hello"),), system="Be brief.")


def llama_folder(folder: Path, *, vocab_size: int = 352, sharded: bool = False) -> Path:
    """A small Llama with random weights, in bfloat16, with the format of Llama 3."""
    imported_folder(folder, TEMPLATES["llama3"])
    config = DecoderConfig(
        vocab_size=vocab_size,
        d_model=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        ffn=GatedFFN(width=48),
        qk_norm=False,
        max_context=96,
        init_std=0.2,
    )
    decoder = build_decoder(config, seed=3).bfloat16()
    state = hub_state(decoder)
    write_json(folder / "config.json", hub_config(config, HubSpecialIds(begin=1, end=2, pad=3)))
    names = sorted(state)
    if not sharded:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    table = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"model-{number}.safetensors"
        save_file({name: state[name] for name in part}, folder / file)
        table.update(dict.fromkeys(part, file))
    write_json(folder / "model.safetensors.index.json", {"weight_map": table})
    return folder


def imported(source: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    run(ImportConfig(), Workspace(folder=folder, inputs={"source": source}))


@pytest.mark.parametrize("sharded", [False, True])
def test_the_import_computes_the_same(tmp_path: Path, sharded: bool) -> None:
    source = llama_folder(tmp_path / "hub", sharded=sharded)
    imported(source, tmp_path / "run")
    theirs = load_chat_model(find_model(str(source)))
    ours = load_chat_model(find_model(str(tmp_path / "run")))
    assert find_model(str(tmp_path / "run")).kind == "run"
    tokens = torch.arange(60)[None]
    with torch.no_grad():
        assert torch.equal(ours.decoder(tokens), theirs.decoder(tokens))
    assert ours.chat.sha256 == theirs.chat.sha256
    assert ours.chat.encode(ASKED) == theirs.chat.encode(ASKED)
    record = read_json(tmp_path / "run" / "import.json")
    assert record["chat_format"] == "llama3"
    assert (record["folder"], record["weights_sha256"]) == ("hub", theirs.weights_sha256)
    read = {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    weights = {path.name for path in source.glob("*.safetensors*")}
    assert set(import_files(source)) == read | weights


def test_tokens_of_the_other_files_are_kept(tmp_path: Path) -> None:
    """eos_token_id of generation_config.json ends answers, also where the tokenizer names one of them."""
    source = llama_folder(tmp_path / "hub")
    ids = sorted(load_chat_model(find_model(str(source))).chat.stop_ids)
    tokenizer = ImportedTokenizer.load(source)
    other = next(
        number for number in range(352) if tokenizer.control_token(number) and number not in ids
    )
    write_json(source / "generation_config.json", {"eos_token_id": [other, 2], "temperature": 0.6})
    config = read_json(source / "tokenizer_config.json")
    write_json(source / "special_tokens_map.json", {"eos_token": config.pop("eos_token")})
    write_json(source / "tokenizer_config.json", config)
    assert {"generation_config.json", "special_tokens_map.json"} <= set(import_files(source))
    imported(source, tmp_path / "run")
    written = tmp_path / "run" / "tokenizer"
    assert read_json(written / "generation_config.json") == {"eos_token_id": [2, other]}
    assert "eos_token" in read_json(written / "tokenizer_config.json")
    model = load_chat_model(find_model(str(tmp_path / "run")))
    assert model.chat.stop_ids == {*ids, other}
    read = text_model(model.decoder, tokenizer, written, "", model.chat)
    assert read.stop_ids == {*ids, other, 2}
    assert {2, other} < set(imported_special_ids(written)[1])


def test_a_smaller_vocabulary_than_the_tokenizers_is_refused(tmp_path: Path) -> None:
    source = llama_folder(tmp_path / "hub", vocab_size=200)
    with pytest.raises(DataError, match=r"the tokenizer has \d+ ids, and the model 200"):
        imported(source, tmp_path / "run")


def test_attention_biases_are_refused(tmp_path: Path) -> None:
    source = llama_folder(tmp_path / "hub")
    plain = read_json(source / "config.json")
    write_json(source / "config.json", {**plain, "attention_bias": True})
    with pytest.raises(DataError, match="attention_bias = True adds biases"):
        imported(source, tmp_path / "run")


def test_missing_and_foreign_files_are_named(tmp_path: Path) -> None:
    source = llama_folder(tmp_path / "hub")
    state = load_file(source / "model.safetensors")
    del state["lm_head.weight"]
    save_file(state, source / "model.safetensors")
    with pytest.raises(DataError, match=r"do not fit config\.json: they lack lm_head\.weight"):
        imported(source, tmp_path / "run")
    (source / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"has no tokenizer\.json"):
        import_files(source)
    table = json.dumps({"weight_map": {"x": "../outside.safetensors"}})
    (source / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (source / "model.safetensors.index.json").write_text(table)
    with pytest.raises(DataError, match=r"points outside its folder: '\.\./outside"):
        import_files(source)
