"""Answers before and after fine-tuning: held-out prompts first, the most likely tokens of both models."""

from __future__ import annotations

from pathlib import Path

from stamm.align.records import SampleAnswersFile
from stamm.align.results.config import SampleAnswersConfig
from stamm.align.results.sample_answers import run
from stamm.base.schema import read_record
from stamm.engine.config import EngineConfig
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import weights_sha256
from tests.unit.align.finetuned import GOOD, PROMPTS, chats, fine_tune
from tests.unit.align.prepared import prepare

ENGINE = EngineConfig(threads=1, compile="off", checkpoint_every=1000)


def test_the_tuned_model_answers_as_it_was_taught_and_the_start_model_does_not(
    tmp_path: Path,
) -> None:
    arm = fine_tune(tmp_path, chats(), epochs=40.0, engine=ENGINE)
    out = tmp_path / "answers"
    out.mkdir()
    names = ("start", "tokenizer")
    inputs = {name: tmp_path / name for name in names} | {"data": tmp_path / "prepared"}
    config = SampleAnswersConfig(number=3, max_new_tokens=20)
    run(config, Workspace(folder=out, inputs={**inputs, "model": arm / "model"}))
    found = read_record(SampleAnswersFile, out / "sample_answers.json")
    assert [one.question for one in found.answers] == PROMPTS[:3]
    assert [one.after for one in found.answers] == GOOD[:3]
    assert not {one.before for one in found.answers} & set(GOOD)
    assert {one.held_out for one in found.answers} == {False}
    assert found.start_sha256 == weights_sha256(tmp_path / "start")
    assert found.model_sha256 == weights_sha256(arm / "model")


def test_held_out_prompts_come_first_and_each_question_once(tmp_path: Path) -> None:
    rows = [{"prompt": f"{k}?", "completion": f"{k}, {again}"} for k in range(40) for again in "ab"]
    prepare(tmp_path, rows, held_out=0.1)
    fine_tune(tmp_path, rows, sequences=2, engine=ENGINE)
    out = tmp_path / "answers"
    out.mkdir()
    inputs = {name: tmp_path / name for name in ("start", "tokenizer")}
    arm = tmp_path / "arms" / "tuned" / "model"
    config = SampleAnswersConfig(number=8, max_new_tokens=2)
    workspace = Workspace(
        folder=out, inputs={**inputs, "data": tmp_path / "prepared", "model": arm}
    )
    run(config, workspace)
    found = read_record(SampleAnswersFile, out / "sample_answers.json").answers
    held_out = sum(one.held_out for one in found)
    assert 0 < held_out < 8
    assert [one.held_out for one in found] == [True] * held_out + [False] * (8 - held_out)
    assert len({one.question for one in found}) == 8
