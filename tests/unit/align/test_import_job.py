"""Importing a Hugging Face folder: the stored decoder computes the same, with the same chat format."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from stamm.align.import_config import ImportConfig, import_files
from stamm.align.import_job import run
from stamm.base.errors import DataError
from stamm.base.files import read_json, write_json
from stamm.chat.conversation import Conversation, UserTurn
from stamm.export.transformers_target import imported_special_ids
from stamm.models.config import DecoderConfig, GatedFFN
from stamm.models.decoder import build_decoder
from stamm.models.hub import HubSpecialIds, hub_config, hub_state
from stamm.models.hub_folder import load_hub
from stamm.models.loading import open_model, with_tokenizer
from stamm.models.model_source import find_model
from stamm.models.serialization import load_decoder, stored_types
from stamm.runs.job import Workspace
from stamm.tokenizer.imported import ImportedTokenizer
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
    theirs = open_model(source, chat=True)
    ours = open_model(tmp_path / "run", chat=True)
    assert find_model(str(tmp_path / "run")).kind == "run"
    tokens = torch.arange(60)[None]
    with torch.no_grad():
        assert torch.equal(ours.decoder(tokens), theirs.decoder(tokens))
    assert ours.chat.sha256 == theirs.chat.sha256
    assert ours.chat.encode(ASKED) == theirs.chat.encode(ASKED)
    record = read_json(tmp_path / "run" / "import.json")
    assert record["chat_format"] == "llama3"
    assert (record["folder"], record["weights_sha256"]) == ("hub", theirs.sha256)
    read = {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    weights = {path.name for path in source.glob("*.safetensors*")}
    assert set(import_files(source)) == read | weights


def test_tokens_of_the_other_files_are_kept(tmp_path: Path) -> None:
    """eos_token_id of generation_config.json ends answers, also where the tokenizer names one of them."""
    source = llama_folder(tmp_path / "hub")
    ids = sorted(open_model(source, chat=True).chat.stop_ids)
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
    model = open_model(tmp_path / "run", chat=True)
    assert model.chat.stop_ids == {*ids, other}
    read = with_tokenizer(model.decoder, written)
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


def test_an_import_is_a_second_name_of_the_weights(tmp_path: Path) -> None:
    """No copy is written; the run is whole without the folder, and reports a change of the file."""
    source, run_folder = llama_folder(tmp_path / "source"), tmp_path / "run"
    imported(source, run_folder)
    linked = run_folder / "model" / "model.safetensors"
    assert linked.samefile(source / "model.safetensors")
    state = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    decoder = load_decoder(run_folder / "model")
    norm = state["model.layers.1.post_attention_layernorm.weight"].float()
    assert torch.equal(decoder.get_parameter("model.layers.1.feedforward_layernorm.weight"), norm)
    assert stored_types(run_folder / "model").keys() == dict(decoder.named_parameters()).keys()
    content = bytearray(linked.read_bytes())
    content[-1] ^= 1
    linked.write_bytes(content)
    with pytest.raises(DataError, match="The weights were changed after they were written"):
        load_decoder(run_folder / "model")


@pytest.mark.parametrize("why", ["no links", "several files", "float16"])
def test_weights_are_copied_where_they_cannot_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    source = llama_folder(tmp_path / "source", sharded=why == "several files")
    if why == "no links":
        monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EXDEV, "other device")))
    if why == "float16":
        state = load_file(source / "model.safetensors")
        save_file({n: t.half() for n, t in state.items()}, source / "model.safetensors")
    imported(source, tmp_path / "run")
    copied = tmp_path / "run" / "model" / "model.safetensors"
    assert copied.stat().st_nlink == 1
    assert "tensors" not in read_json(copied.with_name("decoder.json"))
    kind = torch.float32 if why == "float16" else torch.bfloat16
    assert {tensor.dtype for tensor in load_file(copied).values()} == {kind}
    ours, theirs = load_decoder(tmp_path / "run" / "model"), load_hub(source)
    for (name, one), (_, other) in zip(
        ours.named_parameters(), theirs.named_parameters(), strict=True
    ):
        assert torch.equal(one, other), name
