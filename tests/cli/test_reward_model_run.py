"""`stamm run align.reward`, then `stamm score` with its result, through the real command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stamm.align.records import RewardAccuracyFile, ScoreManifest
from stamm.base.schema import read_record
from tests.conftest import Stamm

pytestmark = pytest.mark.slow  # trains a model


def write(path: Path, first: int, count: int) -> None:
    """Pairs whose chosen answer says yes."""
    rows = [
        {"prompt": f"Question {number}?", "chosen": f"Yes, {number}.", "rejected": f"No, {number}."}
        for number in range(first, first + count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_trained_reward_model_scores_answers(
    smoke_run: Path, stamm: Stamm, tmp_path: Path
) -> None:
    arm = sorted((smoke_run / "arms").iterdir())[0]
    write(tmp_path / "pairs.jsonl", 0, 60)
    words = ("run", "align.reward", "data=pairs.jsonl", "train.schedule.peak=3e-3")
    words += ("train.epochs=4", "prepare.held_out=0.25", "train.engine.threads=1")
    done = stamm(*words, f"run={arm}")
    assert done.returncode == 0, done.stderr
    assert "Held-out accuracy" in done.stdout + done.stderr
    run = tmp_path / "runs" / "align.reward"
    found = read_record(RewardAccuracyFile, run / "arms" / "reward" / "accuracy" / "accuracy.json")
    assert found.pairs >= 5
    assert found.accuracy.share is not None and found.accuracy.share > 0.9
    sentence = f"of {found.pairs:,} held-out pairs"
    page = (run / "report.html").read_text()
    assert sentence in page
    assert "Rewards during the training of the reward model" in page
    assert "Gradient norm before clipping" in page and "Training: not run" not in page
    shown = stamm("report", "runs/align.reward")
    assert shown.returncode == 0, shown.stderr
    again = stamm(*words, f"run={arm}")
    assert again.returncode == 0, again.stderr

    write(tmp_path / "new.jsonl", 1000, 20)
    scored = stamm("score", "new.jsonl", "reward=ModelReward", "reward.run=runs/align.reward")
    assert scored.returncode == 0, scored.stderr
    manifest = read_record(ScoreManifest, tmp_path / "new.scored.jsonl.manifest.json")
    assert manifest.agreement is not None and manifest.agreement > 0.9
    head = next(file for path, file in manifest.reads.items() if path.endswith("head.safetensors"))
    assert head.sha256 == found.head_sha256
    rows = [json.loads(line) for line in (tmp_path / "new.scored.jsonl").read_text().splitlines()]
    assert sum(row["chosen_reward"] > row["rejected_reward"] for row in rows) >= 18


def test_what_cannot_be_trained_is_an_error(smoke_run: Path, stamm: Stamm, tmp_path: Path) -> None:
    arm = sorted((smoke_run / "arms").iterdir())[0]
    for words, problem in (
        (("data=x.jsonl",), "run is empty"),
        ((f"run={arm}",), "data is empty"),
        ((f"run={arm}", "data=x.jsonl", "train.loss=DPO"), "is DPO: use align.dpo"),
    ):
        done = stamm("run", "align.reward", *words)
        assert done.returncode == 2, words
        assert problem in done.stderr
        assert "Traceback" not in done.stderr
    done = stamm("run", "align.dpo", f"run={arm}", "data=x.jsonl", "train.loss=BradleyTerry")
    assert done.returncode == 2
    assert "is BradleyTerry: use align.reward" in done.stderr
