"""`stamm run align.grpo` from the command line: the mean reward of a small trained model rises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stamm.runs.metrics import read_metrics
from tests.conftest import Stamm

pytestmark = pytest.mark.slow  # needs whole runs

SETTINGS = (
    "prompts=prompts.jsonl", "reward=Length", "reward.smallest=16", "reward.largest=40", "n=8",
    "sampling.max_new_tokens=24", "train.batch.0.size=8", "train.epochs=5",
    "train.schedule.peak=3e-3", "train.schedule.warmup_sequences=0", "train.engine.threads=1",
    "audit=none", "export=none", "evaluate=none",
)  # fmt: skip
RISE = 0.12
"""From the first two steps to the last two; 0.21 to 0.30 with the seeds 28, 29 and 30."""


def test_the_mean_reward_rises_on_a_trained_model(
    smoke_run: Path, stamm: Stamm, tmp_path: Path
) -> None:
    rows = [
        {"prompt": f"What is {a} and {b}?", "answer": a + b} for a in range(8) for b in range(4)
    ]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("align.grpo", f"run={smoke_run / 'arms' / 'xielu'}", *SETTINGS, "--out", "run")
    done = stamm("run", *words)
    assert done.returncode == 0, done.stderr[-2000:]
    steps = [
        line["reward/mean"] for line in read_metrics(tmp_path / "run" / "arms/grpo/metrics.jsonl")
    ]
    assert len(steps) == 20
    first, last = sum(steps[:2]) / 2, sum(steps[-2:]) / 2
    assert last > first + RISE
    assert (
        f"Mean reward of the answers: {first:.4f} in the first 2 steps, {last:.4f}" in done.stderr
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert "GRPO: rewards during training" in page
    for name in ("mean", "equal groups", "kl per token", "clip share", "length", "cut", "unrated"):
        assert f">{name}</th>" in page
