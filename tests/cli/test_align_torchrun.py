"""Alignment recipes in the ranks of torchrun: the same losses as in one process, and one finished run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stamm.corpus.tables import read_table
from tests.conftest import environment
from tests.forked import Parent

pytestmark = pytest.mark.slow  # each test needs whole runs

PAIRS = [
    {"prompt": f"What is {n} and {n}?", "chosen": f"It is {2 * n}.", "rejected": "No."}
    for n in range(8)
]
SETTINGS = ("train.batch.0.size=2", "train.epochs=1.5", "train.engine.threads=1")
SAMPLED = (
    "prompts=prompts.jsonl", "n=6", "select.candidates=4", "select.take=all", "reward=Length",
    "reward.smallest=10", "reward.largest=24", "sampling.max_new_tokens=12",
    "test_prompts=prompts.jsonl", "test_n=2",
)  # fmt: skip


def run(parent: Parent, folder: Path, count: int, out: str, *words: str) -> list[dict[str, Any]]:
    """Metrics of `stamm run` in so many processes, a line for each step."""
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PAIRS))
    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": row["prompt"]}) + "\n" for row in PAIRS)
    )
    words = ("stamm", "run", *words, *SETTINGS, "--out", out)
    done = parent.run(words, folder, environment(), ranks=count)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / out / "report.html").is_file()
    (arm,) = (folder / out / "arms").iterdir()
    assert (arm / "model" / "model.safetensors").is_file()
    return [json.loads(line) for line in (arm / "metrics.jsonl").read_text().splitlines()]


def close(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected) >= 6
    for key in ("train/loss", "optim/gradient_norm"):
        values = [line[key] for line in expected]
        assert [line[key] for line in found] == pytest.approx(values, rel=2e-5), key


def test_dpo_in_two_processes_is_that_of_one(
    smoke_run: Path, tmp_path: Path, parent: Parent
) -> None:
    words = ("align.dpo", f"run={smoke_run / 'arms' / 'xielu'}", "data=pairs.jsonl")
    words += ("export=none", "audit=none")
    expected = run(parent, tmp_path, 1, "one", *words)
    close(run(parent, tmp_path, 2, "data", *words), expected)
    close(run(parent, tmp_path, 2, "context", *words, "train.engine.parallel.context=2"), expected)


def test_qrpo_on_its_own_answers_in_two_processes_is_that_of_one(
    smoke_run: Path, tmp_path: Path, parent: Parent
) -> None:
    # Answers with equal rewards have targets other than 0 then, so that no loss is rounding alone.
    rules = ("train.loss.ties=le", "train.loss.partition=exact")
    words = ("align.qrpo", f"run={smoke_run / 'arms' / 'xielu'}", *SAMPLED, *rules)
    expected = run(parent, tmp_path, 1, "one", *words)
    close(run(parent, tmp_path, 2, "data", *words), expected)
    names = ("samples/round1/completions.jsonl", "data/round1/examples.parquet")
    for name in names:
        assert (tmp_path / "data" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_grpo_in_two_processes_is_that_of_one(
    smoke_run: Path, tmp_path: Path, parent: Parent
) -> None:
    words = ("align.grpo", f"run={smoke_run / 'arms' / 'xielu'}", "prompts=prompts.jsonl", "n=4",
             "reward=Length", "reward.smallest=10", "reward.largest=24", "sampling.max_new_tokens=12",
             "train.loss.steps_per_rollout=2", "train.loss.average=token", "evaluate=none",
             "export=none", "audit=none")  # fmt: skip
    expected = run(parent, tmp_path, 1, "one", *words)
    close(run(parent, tmp_path, 2, "data", *words), expected)
    tables = [
        [read_table(path).to_pylist() for path in sorted((tmp_path / out).rglob("rollouts/*"))]
        for out in ("one", "data")
    ]
    assert [len(rollout) for rollout in tables[0]] == [4 * 4] * 3
    kept = ("prompt", "sample", "draw", "step", "reward", "advantage", "text", "ids")
    found, reference = (
        [[row[name] for name in kept] for rollout in table for row in rollout] for table in tables
    )
    assert found == reference
    run_log = (tmp_path / "data" / "log" / "run.log").read_text()
    assert run_log.count("Mean reward of the answers: ") == 1
