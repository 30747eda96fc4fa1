"""Sampling jobs: columns of completions, prompts that are left out, interruption, other models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stamm.align.data.dataset_reader import BadRow
from stamm.align.sampling import sample_job
from stamm.align.sampling.config import SampleConfig
from stamm.align.sampling.prompts import read_prompts
from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError, DataError
from stamm.chat.conversation import AssistantTurn, to_messages
from stamm.models.generate import greedy
from stamm.models.loading import open_model
from stamm.models.model_source import ModelSource
from stamm.runs.executors import LocalExecutor
from stamm.runs.job import Workspace
from stamm.tokenizer.tokenizer import FILE
from tests.unit.align.finetuned import start_model
from tests.unit.align.prepared import write_rows
from tests.unit.align.test_import_job import llama_folder
from tests.unit.chat.conversations import DESCRIPTION

ROWS: list[dict[str, Any]] = [
    {"prompt": f"{number}+2?", "id": str(number), "answer": number + 2} for number in range(7)
]


def workspace(folder: Path, model: Path | None = None) -> Workspace:
    """A workspace with a small decoder, in this process."""
    tokenizer = folder / "tokenizer"
    if model is None:
        tokenizer.mkdir(parents=True, exist_ok=True)
        (tokenizer / FILE).write_text(DESCRIPTION)
        model = folder / "model"
        if not model.is_dir():
            start_model(model)
    else:
        tokenizer = model
    out = folder / "out"
    out.mkdir(parents=True, exist_ok=True)
    inputs = {"model": model, "tokenizer": tokenizer}
    return Workspace(folder=out, inputs=inputs, execution=LocalExecutor(workers=1))


def config(folder: Path, rows: list[dict[str, Any]], **options: Any) -> SampleConfig:
    given = {"n": 2, "max_new_tokens": 5, "prompts_per_shard": 3, **options}
    return SampleConfig(prompts=write_rows(folder / "prompts.jsonl", rows), **given)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def made(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("completions-*.jsonl")}


def test_completions_have_the_documented_columns_and_those_of_their_prompt(tmp_path: Path) -> None:
    rows = [
        {
            "prompt": "2+2?",
            "id": "a",
            "answer": 4,
            "language": "en",
            "exact": True,
            "level": 0.5,
            "long": "x" * 5000,
            "nested": {"a": [1, None]},
            "none": None,
            "reward": 3.0,
            "log_prob": 1.0,
            "token_ids": 7,
            "infinite": float("inf"),
            "infinities": [float("inf")],
        }
    ]
    place = workspace(tmp_path)
    sample_job.run(config(tmp_path, rows, temperature=0.7), place)
    first, second = lines(place.folder / "completions.jsonl")
    assert list(first) == [
        *("id", "prompt", "tools", "deliberation", "completion", "sample", "log_prob"),
        *("sampled_log_prob", "num_tokens", "stopped", "token_ids"),
        *("answer", "language", "exact", "level", "long", "nested"),
    ]
    assert len(first["token_ids"]) == first["num_tokens"]
    assert (first["sample"], second["sample"]) == (0, 1)
    assert first["answer"] == 4 and first["exact"] is True and first["level"] == 0.5
    assert first["long"] == rows[0]["long"] and first["nested"] == rows[0]["nested"]
    assert first["log_prob"] < 0 and first["sampled_log_prob"] < 0
    assert first["sampled_log_prob"] != first["log_prob"]


def test_at_temperature_1_both_log_probabilities_are_the_models(tmp_path: Path) -> None:
    place = workspace(tmp_path)
    sample_job.run(config(tmp_path, ROWS), place)
    for row in lines(place.folder / "completions.jsonl"):
        assert row["log_prob"] == row["sampled_log_prob"]


def test_what_has_no_completion_is_named_with_its_cause(tmp_path: Path) -> None:
    rows = [*ROWS[:4], {"prompt": "word " * 300}, {"text": "no prompt"}, {"prompt": "y " * 400}]
    rows[0] = {**rows[0], "prompt": [{"role": "user", "content": "0+2?", "mood": "glad"}]}
    said: list[str] = []

    class Told(NoProgress):
        def log(self, message: str) -> None:
            said.append(message)

    place = replace(workspace(tmp_path), progress=Told())
    sample_job.run(config(tmp_path, rows), place)
    assert said[:2] == [
        "1 rows are not answered, the first is prompts.jsonl, row 6: no known combination of columns: "
        "text. Use messages; prompt and completion; or chosen and rejected. bad_rows.jsonl names each.",
        "Unknown keys in prompts, not used: messages: mood (1).",
    ]
    bad = lines(place.folder / "bad_rows.jsonl")
    assert [(row["row"], row["cause"]) for row in bad] == [
        (6, "bad_row"),
        (5, "too_long"),
        (7, "too_long"),
    ]
    assert "context 96" in bad[1]["reason"] and bad[1]["file"] == "prompts.jsonl"
    manifest = json.loads((place.folder / "manifests" / "00001.json").read_text())
    assert (manifest["in"], manifest["kept"], manifest["dropped"]) == (3, 1, {"too_long": 2})
    assert len(lines(place.folder / "completions.jsonl")) == 8


def test_an_interrupted_job_goes_on_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, place = workspace(tmp_path / "whole"), workspace(tmp_path / "killed")
    sample_job.run(config(tmp_path, ROWS), whole)
    calls = []

    def dying(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return sample(*arguments)

    sample = sample_job.sample
    with monkeypatch.context() as patched:
        patched.setattr(sample_job, "sample", dying)
        with pytest.raises(KeyboardInterrupt):
            sample_job.run(config(tmp_path, ROWS), place)
    before = made(place.folder)
    assert list(before) == ["completions-00000.jsonl"]
    assert not (place.folder / "completions.jsonl").exists()
    sample_job.run(config(tmp_path, ROWS), place)
    after = made(place.folder)
    assert len(after) == 3 and before.items() <= after.items()
    for name in ("completions.jsonl", "bad_rows.jsonl", "manifests/00002.json"):
        assert (place.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_only_changes_that_matter_sample_again(tmp_path: Path) -> None:
    place = workspace(tmp_path)
    sample_job.run(config(tmp_path, ROWS), place)
    first, text = made(place.folder), (place.folder / "completions.jsonl").read_bytes()
    sample_job.run(config(tmp_path, ROWS), place)
    assert made(place.folder) == first
    sample_job.run(config(tmp_path, [*ROWS[:6], {"prompt": "Another?"}]), place)
    again = made(place.folder)
    changed = {name for name, when in again.items() if first[name] != when}
    assert changed == {"completions-00002.jsonl"}
    start_model(tmp_path / "model", seed=6)
    sample_job.run(config(tmp_path, ROWS), place)
    assert not made(place.folder).items() & again.items()
    assert (place.folder / "completions.jsonl").read_bytes() != text


def test_a_hugging_face_folder_is_sampled_in_its_own_chat_format(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    place = workspace(tmp_path, model=llama_folder(folder))
    sample_job.run(config(tmp_path, ROWS[:2], temperature=0), place)
    rows = lines(place.folder / "completions.jsonl")
    assert [row["answer"] for row in rows] == [2, 2, 3, 3]
    model = open_model(ModelSource(model=folder, tokenizer=folder), chat=True)
    (prompt, _) = read_prompts(tmp_path / "prompts.jsonl")
    assert not isinstance(prompt, BadRow)
    ids = list(model.chat.encode(prompt.conversation, prompt=True).ids)
    (expected,) = greedy(model.decoder, [ids], 5)
    assert model.chat.name == "llama3" and not model.chat.stop_ids & set(expected)
    answer = AssistantTurn(model.chat.parse(expected))
    assert rows[0]["completion"] == rows[1]["completion"] == to_messages(None, [answer])


def test_a_file_without_a_prompt_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no prompt.*row 1"):
        sample_job.run(config(tmp_path, [{"text": "a"}]), workspace(tmp_path))


def test_vllm_needs_its_package(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vLLM is not installed.*stamm\[vllm\]"):
        sample_job.run(config(tmp_path, ROWS, engine="vllm"), workspace(tmp_path))
