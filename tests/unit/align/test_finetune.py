"""Fine-tuning: every loss learns, exactly what it should; resumed runs have the same bits; bad input is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from stamm.align.data.encoded import EncodedExamples
from stamm.align.losses.dpo import DPO, REBEL, SimPO
from stamm.align.losses.qrpo import QRPO
from stamm.align.training import job, reference_job
from stamm.align.training.config import (
    SFT,
    Loss,
    ReferenceConfig,
)
from stamm.align.training.log_probs import completion_log_probs
from stamm.align.training.reference_job import read_reference
from stamm.base.errors import DataError
from stamm.base.files import sha256_file
from stamm.models.serialization import load_decoder
from stamm.optim.schedules import BatchStage, ConstantRate
from stamm.runs.job import Workspace
from tests.unit.align import finetuned
from tests.unit.align.finetuned import chats, fine_tune, metrics, pairs, rated, trained

PAIRWISE = [DPO(), DPO(form="ipo"), DPO(form="normalized", beta=1.0), SimPO(), REBEL(beta=1.0)]
POINTWISE = [
    QRPO(beta=1.0),
    QRPO(beta=1.0, partition="empirical", ties="mid"),
    QRPO(beta=5.0, normalize="beta", largest_beta=0.5),
    QRPO(beta=1.0, partition="grid", transform="log"),
]


def test_sft_learns_the_answers_and_nothing_else(tmp_path: Path) -> None:
    arm = fine_tune(tmp_path, chats(), epochs=12.0)
    lines = metrics(arm)
    assert lines[-1]["train/loss_nats"] < lines[0]["train/loss_nats"] / 2
    data = EncodedExamples.open(tmp_path / "prepared")
    supervised = sum(sum(answer.supervised[1:]) for answer in data.answers)
    per_epoch = [line["train/kept_tokens"] for line in lines]
    assert sum(per_epoch) == 12 * supervised
    before, after = load_decoder(tmp_path / "start"), trained(arm)
    gain = completion_log_probs(after, data.answers) - completion_log_probs(before, data.answers)
    assert (gain > 1).all()


@pytest.mark.parametrize("loss", PAIRWISE + POINTWISE, ids=str)
def test_preferred_answers_become_more_likely_than_others(tmp_path: Path, loss: Loss) -> None:
    gentle = ConstantRate(peak=3e-4)
    whole = (BatchStage(size=8),)
    arm = fine_tune(tmp_path, pairs(), loss, epochs=20.0, batch=whole, schedule=gentle)
    lines = metrics(arm)
    assert lines[-1]["train/loss"] < lines[0]["train/loss"]
    data = EncodedExamples.open(tmp_path / "prepared")
    before, after = load_decoder(tmp_path / "start"), trained(arm)
    gain = completion_log_probs(after, data.answers) - completion_log_probs(before, data.answers)
    assert (gain[0::2] > gain[1::2]).all()
    if isinstance(loss, QRPO):
        assert abs(lines[0]["reward/log_ratio"]) < 1e-4
    elif not isinstance(loss, SimPO):
        assert abs(lines[0]["reward/chosen_log_ratio"]) < 1e-4
        assert lines[-1]["reward/accuracy"] == 1.0


def test_reference_log_probabilities_are_those_of_the_packed_training_pass(tmp_path: Path) -> None:
    fine_tune(tmp_path, pairs(), QRPO())
    data = EncodedExamples.open(tmp_path / "prepared")
    found = read_reference(tmp_path / "reference", data, tmp_path / "start")
    alone = completion_log_probs(load_decoder(tmp_path / "start"), data.answers, batch_tokens=1)
    assert torch.allclose(torch.from_numpy(found.copy()), alone, atol=1e-5)


def test_pairs_and_single_answers_have_the_same_qrpo_loss(tmp_path: Path) -> None:
    together = fine_tune(tmp_path / "pairs", pairs(), QRPO(), batch=(BatchStage(size=8),))
    apart = fine_tune(tmp_path / "rated", rated(), QRPO(), batch=(BatchStage(size=16),))
    first, second = metrics(together), metrics(apart)
    assert len(first) == len(second) == 4
    for name in ("train/loss", "reward/quantile", "reward/target", "optim/gradient_norm"):
        for one, other in zip(first, second, strict=True):
            assert one[name] == pytest.approx(other[name], rel=2e-4), name


@pytest.mark.parametrize("loss", [SFT(), QRPO()], ids=str)
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, loss: Loss) -> None:
    rows = chats() if isinstance(loss, SFT) else pairs()
    arm = fine_tune(tmp_path, rows, loss)
    whole = {name: sha256_file(arm / name) for name in ("metrics.jsonl", "model/model.safetensors")}
    for path in (arm / "model", arm / "summary.json"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = sorted((arm / "checkpoints").iterdir())
    assert len(found) == 2
    shutil.rmtree(found[-1])
    lines = (arm / "metrics.jsonl").read_text().splitlines(keepends=True)
    (arm / "metrics.jsonl").write_text("".join(lines[: len(lines) - 1]))
    resumed = fine_tune(tmp_path, rows, loss)
    assert {name: sha256_file(resumed / name) for name in whole} == whole


def test_a_reference_of_another_model_is_refused(tmp_path: Path) -> None:
    fine_tune(tmp_path, pairs(), DPO())
    shutil.rmtree(tmp_path / "start")
    shutil.rmtree(tmp_path / "arms")
    finetuned.start_model(tmp_path / "start", seed=6)
    inputs = {name: tmp_path / name for name in ("start", "tokenizer", "reference")}
    inputs["data"] = tmp_path / "prepared"
    with pytest.raises(DataError, match=r"belong to another model: SHA-256 [0-9a-f]{64} there"):
        job.run(finetuned.config(DPO()), Workspace(folder=tmp_path / "arm", inputs=inputs))


def test_damaged_reference_log_probabilities_are_refused(tmp_path: Path) -> None:
    fine_tune(tmp_path, pairs(), DPO())
    shutil.copy(
        tmp_path / "prepared" / "examples.parquet", tmp_path / "reference" / "log_probs.parquet"
    )
    data = EncodedExamples.open(tmp_path / "prepared")
    with pytest.raises(DataError, match=r"belong to another file log_probs\.parquet"):
        read_reference(tmp_path / "reference", data, tmp_path / "start")


def test_data_of_another_chat_format_is_refused(tmp_path: Path) -> None:
    fine_tune(tmp_path, pairs(), DPO())
    description = json.loads((tmp_path / "tokenizer" / "tokenizer.json").read_text())
    last = max(description["model"]["vocab"], key=description["model"]["vocab"].get)
    description["model"]["merges"].pop()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(json.dumps(description))
    assert last
    inputs = {name: tmp_path / name for name in ("start", "tokenizer")}
    inputs["data"] = tmp_path / "prepared"
    folder = tmp_path / "again"
    folder.mkdir()
    with pytest.raises(DataError, match=r"encoded with another chat format: SHA-256 [0-9a-f]{64}"):
        reference_job.run(ReferenceConfig(), Workspace(folder=folder, inputs=inputs))


def test_sft_trains_on_an_objective_of_the_users_own(tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text(
        "from stamm.engine.objective import StepLoss\n"
        "from stamm.pretrain.next_token import NextToken\n\n\n"
        "class Nothing(NextToken):\n"
        "    def step_loss(self, batch, num_loss_tokens):\n"
        "        found = super().step_loss(batch, num_loss_tokens)\n"
        "        return StepLoss(0 * found.loss, found.metrics)\n"
    )
    arm = fine_tune(tmp_path, chats(), SFT(objective=f"{code}:Nothing"), epochs=1.0)
    assert finetuned.manifest(arm)["inputs"]["objective"]["sha256"] == sha256_file(code)
    start = load_decoder(tmp_path / "start").state_dict()
    assert all(torch.equal(start[name], value) for name, value in trained(arm).state_dict().items())
    lines = metrics(fine_tune(tmp_path / "z", chats(), SFT(z_loss=0.1), epochs=1.0))
    assert all(line["train/z_loss_nats"] > 0 for line in lines)
