"""What a loss needs of prepared data is checked, and rewards with ties get their rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stamm.align.data.encoded import EncodedExamples
from stamm.align.losses.dpo import DPO, REBEL
from stamm.align.losses.kto import KTO
from stamm.align.losses.qrpo import QRPO
from stamm.align.training.config import SFT, Loss
from stamm.align.training.job import check_data
from stamm.base.errors import DataError
from stamm.base.files import read_json
from tests.unit.align import finetuned
from tests.unit.align.finetuned import chats, fine_tune, pairs, rated
from tests.unit.align.prepared import prepare


def without(rows: list[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != column} for row in rows]


@pytest.mark.parametrize(
    ("rows", "loss", "problem"),
    [
        (chats(), DPO(), "DPO is trained on preference rows, and the data has chat rows"),
        (rated(), REBEL(), "REBEL is trained on preference rows, and the data has rated rows"),
        (pairs(), SFT(), "SFT is trained on chat rows, and the data has preference rows"),
        (without(without(pairs(), "chosen_reward"), "rejected_reward"), REBEL(), "0 has no reward"),
        (without(rated(), "ref_rewards"), QRPO(), "example 0 has no ref_rewards"),
    ],
)
def test_data_that_does_not_fit_the_loss_is_refused(
    tmp_path: Path, rows: list[dict[str, Any]], loss: Loss, problem: str
) -> None:
    prepare(tmp_path, rows, context=finetuned.CONTEXT)
    with pytest.raises(DataError, match=problem):
        check_data(loss, EncodedExamples.open(tmp_path / "prepared"))


def test_rewards_with_ties_get_their_rules_unless_they_are_set(tmp_path: Path) -> None:
    rows = [{**row, "ref_rewards": [0.0, 0.0, 1.0, 1.0]} for row in rated()]
    prepare(tmp_path, rows, context=finetuned.CONTEXT)
    data = EncodedExamples.open(tmp_path / "prepared")
    loss, (remark,) = QRPO(beta=0.2).fitted(data)
    assert loss == QRPO(beta=0.2, ties="mid", partition="empirical")
    assert remark.startswith("33% of the pairs of reference rewards are equal")
    chosen = QRPO(ties="le", partition="exact")
    kept, (remark,) = chosen.fitted(data)
    assert (
        kept == chosen and "train.loss.ties=mid train.loss.partition=empirical is exact" in remark
    )
    assert QRPO(ties="le").fitted(data)[0] == QRPO(ties="le", partition="empirical")
    prepare(tmp_path / "apart", rated(), context=finetuned.CONTEXT)
    apart = EncodedExamples.open(tmp_path / "apart" / "prepared")
    assert QRPO().fitted(apart) == (QRPO(ties="le", partition="exact"), ())
    arm = fine_tune(tmp_path, rows, QRPO())
    stored = read_json(arm / "config.json")["config"]["loss"]
    assert (stored["ties"], stored["partition"]) == ("mid", "empirical")


def test_desirable_answers_are_labelled_chosen_or_above_the_threshold(tmp_path: Path) -> None:
    prepare(tmp_path / "pairs", pairs(), context=finetuned.CONTEXT)
    data = EncodedExamples.open(tmp_path / "pairs" / "prepared")
    assert KTO().labels(data) == [1.0, 0.0] * 8
    prepare(tmp_path / "rated", rated(), context=finetuned.CONTEXT)
    data = EncodedExamples.open(tmp_path / "rated" / "prepared")
    assert KTO(threshold=1.35).labels(data) == [0.0] * 8 + [1.0, 0.0] * 4
    for loss, problem in (
        (KTO(), "the reward of example 1 is -1.0, and KTO reads 1 or 0"),
        (KTO(threshold=-1.0), "all 16 answers are desirable"),
        (KTO(threshold=9.0), "all 16 answers are undesirable"),
    ):
        with pytest.raises(DataError, match=problem):
            check_data(loss, data)


def test_answers_of_one_kind_that_outweigh_the_others_are_reported(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"{number}?", "completion": "a", "label": number < 2} for number in range(10)
    ]
    prepare(tmp_path, rows, context=finetuned.CONTEXT)
    data = EncodedExamples.open(tmp_path / "prepared")
    (remark,) = KTO().fitted(data)[1]
    assert remark == (
        "2 answers are desirable and 8 are not: with these weights the former count 0.25 times as much. "
        "train.loss.desirable_weight=4 balances them."
    )
    assert KTO(desirable_weight=4.0).fitted(data)[1] == ()
    assert KTO(undesirable_weight=0.25).fitted(data)[1] == ()
    assert "undesirable_weight=2 balances" in KTO(desirable_weight=8.0).fitted(data)[1][0]
    prepare(tmp_path / "pairs", pairs(), context=finetuned.CONTEXT)
    assert KTO().fitted(EncodedExamples.open(tmp_path / "pairs" / "prepared"))[1] == ()
