"""Exported chat models: transformers' chat template gives our ids, and the end of an answer ends it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings

from stamm.align.import_config import ImportConfig
from stamm.align.import_job import run as import_model
from stamm.base.errors import ExportError
from stamm.base.files import read_json, write_json
from stamm.chat.conversation import read_conversation, to_messages
from stamm.chat.template_traits import PROBES
from stamm.export import job, transformers_target
from stamm.export.config import ExportConfig
from stamm.export.gguf_target import GgufTarget
from stamm.export.target import ExportOptions
from stamm.export.transformers_target import open_tokenizer
from stamm.models.hf_chat_format import folder_chat, load_chat_format
from stamm.models.loading import open_model
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import write_chat_record
from stamm.tokenizer.imported import ImportedTokenizer
from tests.unit.align.test_import_job import ASKED, llama_folder
from tests.unit.chat.conversations import messages
from tests.unit.chat.imported_folders import (
    TEMPLATES,
    TODAY,
    apertus_folder,
    description,
    imported_folder,
)

CONFIG = ExportConfig(parity_rows=2, parity_tokens=40, prompt_tokens=6, sample_tokens=8, threads=1)
WITHOUT_TEXT = ExportConfig(parity_rows=2, parity_tokens=40, threads=1)


@pytest.fixture(scope="module")
def chat_inputs(
    inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The untrained run as a fine-tuned one has it: with chat.json."""
    model = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(inputs["model"], model)
    write_chat_record(model, "apertus", load_chat_format(inputs["tokenizer"]).sha256)
    return {**inputs, "model": model}


@pytest.fixture(scope="module")
def exported(chat_inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    job.run(CONFIG, Workspace(folder=folder, inputs=chat_inputs))
    return folder / "transformers"


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages())
def test_its_chat_template_gives_our_ids(
    exported: Path, chat_inputs: dict[str, Path], rows: list[dict[str, Any]]
) -> None:
    tokenizer = _tokenizer(exported)
    ours = load_chat_format(chat_inputs["tokenizer"])
    conversation = read_conversation(rows)
    for prompt in (False, True):
        found = tokenizer.apply_chat_template(
            rows, tokenize=True, return_dict=False, add_generation_prompt=prompt
        )
        assert list(found) == ours.encode(conversation, prompt=prompt).ids


_LOADED: dict[Path, Any] = {}


def _tokenizer(folder: Path) -> Any:
    if folder not in _LOADED:
        _LOADED[folder] = transformers.AutoTokenizer.from_pretrained(folder)
    return _LOADED[folder]


def test_the_end_of_an_answer_ends_generation(exported: Path) -> None:
    assert read_json(exported / "generation_config.json")["eos_token_id"] == [68, 2]
    assert read_json(exported / "config.json")["eos_token_id"] == 68
    assert _tokenizer(exported).eos_token == "<|assistant_end|>"
    assert "apply_chat_template" in (exported / "README.md").read_text()


def test_it_is_a_source_again(exported: Path, chat_inputs: dict[str, Path]) -> None:
    again = open_model(exported, chat=True)
    assert again.chat.sha256 == load_chat_format(chat_inputs["tokenizer"]).sha256


def test_a_model_without_chat_record_has_no_template(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    job.run(CONFIG, Workspace(folder=tmp_path, inputs=inputs))
    assert not (tmp_path / "transformers" / "chat_template.jinja").exists()


def test_another_chat_format_or_template_is_refused(
    chat_inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = transformers_target.chat_template().replace("Deliberation: ", "Deliberation:")
    with monkeypatch.context() as patch:
        patch.setattr(transformers_target, "chat_template", lambda: template)
        with pytest.raises(ExportError, match="the exported chat template gives other ids"):
            job.run(CONFIG, Workspace(folder=tmp_path, inputs=chat_inputs))
    model = tmp_path / "model"
    shutil.copytree(chat_inputs["model"], model)
    write_chat_record(model, "apertus", "0" * 64)
    with pytest.raises(ExportError, match="trained with the chat format 000000000000, and its"):
        job.run(CONFIG, Workspace(folder=tmp_path, inputs={**chat_inputs, "model": model}))
    assert not (tmp_path / "transformers").exists()


def test_an_imported_model_keeps_its_template(tmp_path: Path) -> None:
    source = llama_folder(tmp_path / "hub")
    run = tmp_path / "run"
    run.mkdir()
    import_model(ImportConfig(), Workspace(folder=run, inputs={"source": source}))
    chat = load_chat_format(run / "tokenizer")
    write_chat_record(run / "model", chat.name, chat.sha256)
    given = {"model": run / "model", "tokenizer": run / "tokenizer"}
    job.run(WITHOUT_TEXT, Workspace(folder=tmp_path / "out", inputs=given))
    folder = tmp_path / "out" / "transformers"
    again = open_model(folder, chat=True)
    assert (again.chat.name, again.chat.sha256) == ("llama3", chat.sha256)
    ours = open_model(source, chat=True)
    tokens = torch.tensor([again.chat.encode(ASKED, prompt=True).ids])
    with torch.no_grad():
        assert torch.equal(again.decoder(tokens), ours.decoder(tokens))
    assert set(read_json(folder / "generation_config.json")["eos_token_id"]) == chat.stop_ids
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    shown = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    found = tokenizer.apply_chat_template(
        shown, tokenize=True, return_dict=False, add_generation_prompt=True
    )
    assert list(found) == tokens[0].tolist()


def test_a_token_that_only_the_template_writes_is_encoded_as_the_engine_does(
    tmp_path: Path,
) -> None:
    folder = imported_folder(tmp_path / "tokenizer", TEMPLATES["thinking"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "a <think> b"
    theirs = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert open_tokenizer(folder / "tokenizer.json").encode(text) == theirs
    assert folder_chat(folder)[0].encode(text) != theirs  # to `open_model` it is a control token


@pytest.mark.parametrize("llama", [False, True])
def test_a_fine_tuned_base_model_without_a_template_is_served_with_that_of_its_format(
    tmp_path: Path, llama: bool
) -> None:
    source = imported_folder(tmp_path / "tokenizer", None)
    (source / "tokenizer.json").write_text(description(llama), encoding="utf-8")
    end = "<|end_of_text|>" if llama else "<|endoftext|>"
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
    config["split_special_tokens"] = True  # as stamm writes it for a model without chat
    write_json(source / "tokenizer_config.json", config)
    chat = load_chat_format(source)
    folder = tmp_path / "export"
    folder.mkdir()
    write_json(folder / "config.json", {})
    transformers_target.write_chat_files(folder, source / "tokenizer.json", 128, chat.name)
    shutil.copy(source / "tokenizer.json", folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for asked in PROBES:
        for prompt in (False, True):
            found = tokenizer.apply_chat_template(
                to_messages(asked.system, asked.turns),
                tokenize=True,
                return_dict=False,
                add_generation_prompt=prompt,
            )
            assert list(found) == chat.encode(asked, prompt=prompt).ids
    target = GgufTarget()
    target.configure(ExportOptions(chat_format=chat.name))
    size = ImportedTokenizer.load(source).size
    stored = target._tokenizer(source / "tokenizer.json", size)
    assert stored.template == (folder / "chat_template.jinja").read_text(encoding="utf-8")
    assert load_chat_format(folder).encode(ASKED, prompt=True) == chat.encode(ASKED, prompt=True)


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
@pytest.mark.parametrize("tuned", ["llama3", ""])
def test_a_fine_tuned_model_is_served_with_the_date_of_its_training(
    tmp_path: Path, place: str, tuned: str
) -> None:
    source = imported_folder(tmp_path / "tokenizer", TODAY)
    if place == "tokenizer_config.json":
        config = read_json(source / place)
        write_json(source / place, {**config, "chat_template": TODAY})
        (source / "chat_template.jinja").unlink()
    ours = load_chat_format(source).encode(ASKED, prompt=True).ids
    folder = tmp_path / "export"
    folder.mkdir()
    write_json(folder / "config.json", {})
    transformers_target.write_chat_files(folder, source / "tokenizer.json", 128, tuned)
    shutil.copy(source / "tokenizer.json", folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = tokenizer.apply_chat_template(
        to_messages(ASKED.system, ASKED.turns),
        tokenize=True,
        return_dict=False,
        add_generation_prompt=True,
    )
    assert (list(found) == ours) is bool(tuned)  # as imported, transformers writes today's date


@pytest.mark.parametrize("place", ["", "chat_template.jinja", "tokenizer_config.json"])
def test_a_fine_tuned_imported_apertus_has_the_template_of_its_training(
    inputs: dict[str, Path], tmp_path: Path, place: str
) -> None:
    text = (inputs["tokenizer"] / "tokenizer.json").read_text(encoding="utf-8")
    source = apertus_folder(tmp_path / "tokenizer", text, place)
    model = tmp_path / "model"
    shutil.copytree(inputs["model"], model)
    ours = load_chat_format(source)
    write_chat_record(model, ours.name, ours.sha256)
    given = {"model": model, "tokenizer": source}
    job.run(WITHOUT_TEXT, Workspace(folder=tmp_path / "out", inputs=given))
    folder = tmp_path / "out" / "transformers"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for asked in PROBES:
        for prompt in (False, True):
            found = tokenizer.apply_chat_template(
                to_messages(asked.system, asked.turns),
                tokenize=True,
                return_dict=False,
                add_generation_prompt=prompt,
            )
            assert list(found) == ours.encode(asked, prompt=prompt).ids
    generation = read_json(folder / "generation_config.json")
    assert set(generation["eos_token_id"]) == ours.stop_ids
    assert generation["pad_token_id"] == ours.pad_id
    assert load_chat_format(folder).sha256 == ours.sha256


def test_the_padding_of_an_imported_model_is_that_of_training(tmp_path: Path) -> None:
    for name in ("llama3", "chatml"):
        folder = imported_folder(tmp_path / name, TEMPLATES[name])
        config = read_json(folder / "tokenizer_config.json")
        for changes in ({}, {"pad_token": None}):
            write_json(folder / "tokenizer_config.json", {**config, **changes})
            special, ends = transformers_target.imported_special_ids(folder)
            chat = load_chat_format(folder)
            assert (special.pad, set(ends)) == (chat.pad_id, chat.stop_ids)
