"""The candidate with the highest mean reward is chosen, and its settings are used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.align.losses.dpo import DPO
from stamm.align.losses.qrpo import QRPO
from stamm.align.results import select_job
from stamm.align.results.config import ArmCandidates, ChooseConfig
from stamm.align.training.config import FineTuneConfig, FineTuneJobConfig
from stamm.align.training.job import apply_chosen
from stamm.base.errors import DataError
from stamm.base.files import read_json
from stamm.runs.job import Workspace

SETTINGS = (("loss.beta=0.1",), ("loss.beta=0.3", "schedule.peak=2e-4"), ("loss.beta=0.3",))


def choose(folder: Path, rewards: list[list[object]]) -> Path:
    inputs = {}
    for number, values in enumerate(rewards):
        inputs[f"qrpo.{number}"] = folder / f"{number}.jsonl"
        lines = "".join(json.dumps({"reward": value}) + "\n" for value in values)
        inputs[f"qrpo.{number}"].write_text(lines)
    arms = (ArmCandidates(name="qrpo", settings=SETTINGS[: len(rewards)]),)
    select_job.choose(ChooseConfig(arms=arms), Workspace(folder=folder, inputs=inputs))
    return folder / "chosen.json"


def test_the_best_mean_wins_and_the_first_of_equals(tmp_path: Path) -> None:
    path = choose(tmp_path, [[0, 1], [1.0, 0.5, 0.75], [0.75]])
    found = read_json(path)["arms"]["qrpo"]
    assert found["settings"] == list(SETTINGS[1])
    assert [each["mean_reward"] for each in found["candidates"]] == [0.5, 0.75, 0.75]
    config = apply_chosen(
        FineTuneJobConfig.of(FineTuneConfig(loss=QRPO()), chosen="qrpo", context=64),
        {"chosen": path},
    )
    assert config.rate_remark() == "", "the rate is the chosen one, not the default"
    assert config.loss == QRPO(beta=0.3)
    assert config.schedule.peak == 2e-4
    assert config.chosen == ""
    other = replace(config, loss=DPO(), chosen="dpo")
    with pytest.raises(DataError, match="has no entry 'dpo'"):
        apply_chosen(other, {"chosen": path})


@pytest.mark.parametrize("values", [[], [1.0, None], [float("nan")]])
def test_answers_without_rewards_are_refused(tmp_path: Path, values: list[object]) -> None:
    with pytest.raises(DataError, match="rows without a reward"):
        choose(tmp_path, [values])
