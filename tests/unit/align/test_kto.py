"""KTO as a training run: TRL's loss with one KL for the whole step, on pairs and on labelled answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stamm.align.data.encoded import EncodedExamples
from stamm.align.losses.kto import KTO
from stamm.align.training.answer_dataset import MismatchedAnswers
from stamm.align.training.log_probs import completion_log_probs
from stamm.align.training.reference_job import read_mismatched
from stamm.losses.preference import kto_loss
from stamm.models.serialization import load_decoder
from stamm.optim.schedules import BatchStage
from tests.unit.align.finetuned import fine_tune, metrics, pairs, trained

WHOLE = (BatchStage(size=16),)


@pytest.mark.slow
def test_good_answers_become_more_likely_and_the_loss_is_the_formula(tmp_path: Path) -> None:
    arm = fine_tune(tmp_path, pairs(), KTO(beta=0.2), batch=WHOLE, epochs=12.0)
    lines = metrics(arm)
    assert lines[0]["train/loss"] == pytest.approx(0.5, abs=1e-4)
    assert lines[0]["reward/accuracy"] == 0.5, "rounding errors are no order"
    assert lines[-1]["train/loss"] < 0.4 and lines[-1]["reward/accuracy"] > 0.9
    data = EncodedExamples.open(tmp_path / "prepared")
    before, after = load_decoder(tmp_path / "start"), trained(arm)
    gain = completion_log_probs(after, data.answers) - completion_log_probs(before, data.answers)
    assert (gain[0::2] > gain[1::2]).all()
    others = [one for one in MismatchedAnswers(data.answers, data.summary.context) if one]
    assert len(others) == 16
    reference = read_mismatched(tmp_path / "reference")
    assert torch.allclose(
        completion_log_probs(before, others), torch.from_numpy(reference.copy()), atol=1e-5
    )
    # The formula on the trained model, against a run that goes on from it for one step.
    kl = float((completion_log_probs(after, others) - torch.from_numpy(reference.copy())).mean())
    desirable = torch.tensor([True, False] * 8)
    expected = float(kto_loss(gain, desirable, kl, beta=0.2).mean())
    longer = fine_tune(tmp_path / "again", pairs(), KTO(beta=0.2), batch=WHOLE, epochs=13.0)
    last = metrics(longer)[-1]
    assert last["train/loss"] == pytest.approx(expected, rel=1e-3)
    assert last["reward/kl"] == pytest.approx(max(kl, 0.0), rel=1e-3, abs=1e-4)


@pytest.mark.slow
def test_labels_are_pairs_apart_and_micro_batches_change_nothing(tmp_path: Path) -> None:
    rows = [
        {"prompt": row["prompt"], "completion": row[name], "label": name == "chosen"}
        for row in pairs()
        for name in ("chosen", "rejected")
    ]
    one = fine_tune(tmp_path / "pairs", pairs(), KTO(), batch=WHOLE)
    settings = {"micro_batch": 4}
    other = fine_tune(tmp_path / "labels", rows, KTO(), batch=WHOLE, **settings)
    for first, second in zip(metrics(one), metrics(other), strict=True):
        for name in ("train/loss", "reward/kl", "optim/gradient_norm"):
            assert first[name] == pytest.approx(second[name], rel=2e-4, abs=1e-5), name
