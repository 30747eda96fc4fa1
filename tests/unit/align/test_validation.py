"""Held-out rows during fine-tuning, early stopping, and the smaller last batch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from stamm.align.data.encoded import EncodedExamples
from stamm.align.losses.dpo import DPO, SimPO
from stamm.align.losses.kto import KTO
from stamm.align.losses.qrpo import QRPO
from stamm.align.training import job
from stamm.align.training.config import (
    SFT,
    BradleyTerry,
    Loss,
)
from stamm.align.training.job import VALIDATION
from stamm.align.training.log_probs import completion_log_probs
from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError
from stamm.base.files import read_json, sha256_file
from stamm.evaluate.results import read_evaluated_arms
from stamm.evaluate.task_curves import curve_figures
from stamm.losses.preference import dpo_loss
from stamm.models.serialization import load_decoder
from stamm.optim.schedules import BatchStage, ConstantRate, WarmupStableDecay
from stamm.runs.job import Workspace
from stamm.runs.run_view import open_view
from tests.unit.align import finetuned
from tests.unit.align.finetuned import chats, fine_tune, metrics, pairs, trained
from tests.unit.align.prepared import prepare

pytestmark = pytest.mark.slow

LOSS = f"{VALIDATION}loss_nats"
HELD_OUT = 0.4


class Log(NoProgress):
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def log(self, message: str) -> None:
        self.said.append(message)


def with_held_out(folder: Path, rows: list[dict[str, Any]]) -> tuple[EncodedExamples, ...]:
    """Prepare rows, and open those to train on and those held out."""
    prepare(folder, rows, context=finetuned.CONTEXT, held_out=HELD_OUT)
    train, held_out = (
        EncodedExamples.open(folder / "prepared", split) for split in ("train", "held_out")
    )
    assert len(held_out.answers) >= 2
    return train, held_out


def validations(arm: Path) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl with an evaluation of held-out rows."""
    return [line for line in metrics(arm) if any(key.startswith(VALIDATION) for key in line)]


def test_the_loss_of_held_out_conversations_is_that_of_the_stored_models(tmp_path: Path) -> None:
    train, held_out = with_held_out(tmp_path, chats())
    arm = fine_tune(tmp_path, chats(), validate_every=4)
    lines = validations(arm)
    last = metrics(arm)[-1]["step"]
    assert [line["step"] for line in lines] == sorted({0, *range(4, last, 4), last})
    tokens = sum(sum(answer.supervised[1:]) for answer in held_out.answers)
    for model, line in ((load_decoder(tmp_path / "start"), lines[0]), (trained(arm), lines[-1])):
        nats = -completion_log_probs(model, held_out.answers).sum().item() / tokens
        assert line[LOSS] == pytest.approx(nats, rel=1e-5)
    kept = sum(sum(answer.supervised[1:]) for answer in train.answers)
    assert sum(line.get("train/kept_tokens", 0) for line in metrics(arm)) == 4 * kept
    run = open_view(arm)
    figures = curve_figures(run, read_evaluated_arms(run))
    assert [figure.title for figure in figures] == ["During training: held-out rows, loss"]
    assert figures[0].data.rows[0][1] == "0"


def test_the_loss_of_held_out_pairs_is_dpo_against_the_reference(tmp_path: Path) -> None:
    _, held_out = with_held_out(tmp_path, pairs())
    arm = fine_tune(tmp_path, pairs(), DPO(), micro_batch=1)
    before, after = (load_decoder(tmp_path / "start"), trained(arm))
    ratio = completion_log_probs(after, held_out.answers)
    ratio = ratio - completion_log_probs(before, held_out.answers)
    expected = {
        "loss": dpo_loss(ratio[0::2], ratio[1::2], beta=0.1).mean().item(),
        "accuracy": (ratio[0::2] > ratio[1::2]).double().mean().item(),
        "margin": (ratio[0::2] - ratio[1::2]).mean().item(),
    }
    first, *_, last = validations(arm)
    assert {key: last[f"{VALIDATION}{key}"] for key in expected} == pytest.approx(
        expected, rel=1e-4, abs=1e-5
    )
    assert first[f"{VALIDATION}loss"] == pytest.approx(torch.tensor(2.0).log().item(), abs=1e-4)


@pytest.mark.parametrize("loss", [SFT(), QRPO(), KTO(), SimPO(), BradleyTerry()], ids=str)
def test_validation_changes_no_weight_and_has_the_same_bits_when_resumed(
    tmp_path: Path, loss: Loss
) -> None:
    rows = chats() if isinstance(loss, SFT) else pairs()
    with_held_out(tmp_path, rows)
    weights = Path("model", "model.safetensors")
    arm = fine_tune(tmp_path, rows, loss, validate_every=1)
    frequent, lines = sha256_file(arm / weights), (arm / "metrics.jsonl").read_bytes()
    for step in sorted((arm / "checkpoints").iterdir())[1:]:
        shutil.rmtree(step)
    fine_tune(tmp_path, rows, loss, validate_every=1)
    assert (arm / "metrics.jsonl").read_bytes() == lines
    shutil.rmtree(tmp_path / "arms")
    rare = fine_tune(tmp_path, rows, loss, validate_every=1000)
    assert sha256_file(rare / weights) == frequent
    assert [line["step"] for line in validations(rare)] == [0, metrics(rare)[-1]["step"]]


def test_early_stopping_keeps_the_weights_of_the_lowest_loss(tmp_path: Path) -> None:
    with_held_out(tmp_path, chats())
    hasty: dict[str, Any] = {"epochs": 30.0, "schedule": ConstantRate(peak=3e-2)}
    whole = fine_tune(tmp_path / "whole", chats(), validate_every=2, **_given(tmp_path), **hasty)
    losses = {line["step"]: line[LOSS] for line in validations(whole) if line["step"]}
    best = min(losses, key=lambda step: losses[step])
    stop = next(s for s in losses if s == best + 4)
    assert stop < max(losses)
    arm = fine_tune(
        tmp_path / "early", chats(), validate_every=2, patience=2, **_given(tmp_path), **hasty
    )
    assert metrics(arm)[-1]["step"] == stop
    summary = read_json(arm / "summary.json")
    assert (summary["steps"], summary["best_step"]) == (stop, best)
    until = fine_tune(tmp_path / "until", chats(), sequences=2 * best, **_given(tmp_path), **hasty)
    assert sha256_file(arm / "model/model.safetensors") == sha256_file(
        until / "model/model.safetensors"
    )
    # Killed before the model was stored, it stops at the same step again.
    lines = (arm / "metrics.jsonl").read_bytes()
    shutil.rmtree(arm / "model")
    fine_tune(tmp_path / "early", chats(), validate_every=2, patience=2, **hasty)
    assert (arm / "metrics.jsonl").read_bytes() == lines
    assert sha256_file(arm / "model/model.safetensors") == sha256_file(
        until / "model/model.safetensors"
    )


def test_training_that_never_improves_on_the_start_model_is_reported(tmp_path: Path) -> None:
    with_held_out(tmp_path, chats())
    log, folder = Log(), tmp_path / "arm"
    folder.mkdir()
    start = finetuned.start_model(tmp_path / "start")
    inputs = {"tokenizer": tmp_path / "tokenizer", "start": start, "data": tmp_path / "prepared"}
    hot = finetuned.config(SFT(), epochs=2.0, patience=1, schedule=ConstantRate(peak=3.0))
    job.run(hot, Workspace(folder=folder, inputs=inputs, progress=log))
    before, *after = (line[LOSS] for line in validations(folder))
    assert before < min(after)
    said = [line for line in log.said if line.startswith("No step improved on the start model")]
    assert said == [
        f"No step improved on the start model: {LOSS} was {before:.4f} before training, and "
        f"{min(after):.4f} at best."
    ]


def _given(folder: Path) -> dict[str, Any]:
    """Nothing; the prepared data of `folder` is copied to the folders beside it."""
    for name in ("whole", "early", "until"):
        if not (folder / name / "prepared").exists():
            for part in ("prepared", "tokenizer"):
                shutil.copytree(folder / part, folder / name / part)
    return {}


def test_patience_without_held_out_rows_is_refused_and_their_lack_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"patience = 3, and no rows are held out"):
        fine_tune(tmp_path, chats(), patience=3)
    shutil.rmtree(tmp_path / "arms")
    log, folder = Log(), tmp_path / "arm"
    folder.mkdir()
    inputs = {name: tmp_path / name for name in ("tokenizer", "start")}
    inputs["data"] = tmp_path / "prepared"
    settings = finetuned.config(SFT(), epochs=1.0)
    job.run(settings, Workspace(folder=folder, inputs=inputs, progress=log))
    assert any(line.startswith("No rows are held out") for line in log.said)


@pytest.mark.parametrize("loss", [SFT(), DPO(), QRPO(), KTO(), BradleyTerry()], ids=str)
def test_a_smaller_last_batch_is_trained_with_the_mean_of_its_rows(
    tmp_path: Path, loss: Loss
) -> None:
    rows = chats() if isinstance(loss, SFT) else pairs()
    decaying = WarmupStableDecay(peak=3e-3, decay_share=1.0, law="linear")
    settings: dict[str, Any] = {"epochs": 1.0, "schedule": decaying}
    arm = fine_tune(tmp_path / "uneven", rows, loss, batch=(BatchStage(size=3),), **settings)
    lines, summary = metrics(arm), read_json(arm / "summary.json")
    count = summary["trained_sequences"]
    assert summary["epochs"] == 1.0
    assert len(lines) == summary["steps"] == -(-count // 3)
    shares = [1 - 3 * step / count for step in range(len(lines))]
    assert [line["optim/learning_rate"] / 3e-3 for line in lines] == pytest.approx(shares)
    # Fewer rows than a batch holds are one batch of all of them.
    few, whole = (
        metrics(fine_tune(tmp_path / str(n), rows, loss, batch=(BatchStage(size=n),), **settings))
        for n in (100, count)
    )
    assert len(few) == len(whole) == 1
    assert few[0]["optim/learning_rate"] == whole[0]["optim/learning_rate"] == 3e-3
    compared = [key for key in few[0] if key.startswith(("train/", "reward/", "optim/gradient"))]
    assert [few[0][key] for key in compared] == [whole[0][key] for key in compared]


def test_kto_trains_where_the_held_out_answers_are_to_one_prompt(tmp_path: Path) -> None:
    prepare(tmp_path, pairs(), context=finetuned.CONTEXT, held_out=0.1)
    held_out = EncodedExamples.open(tmp_path / "prepared", "held_out")
    assert len(held_out.answers) == 2, "a pair"
    arm = fine_tune(tmp_path, pairs(), KTO(), epochs=1.0)
    assert validations(arm) == []
    shutil.rmtree(arm)
    with pytest.raises(ConfigError, match=r"patience = 3, and all held-out answers are to one"):
        fine_tune(tmp_path, pairs(), KTO(), patience=3)
