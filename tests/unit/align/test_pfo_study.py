"""`bench.pfo_study` in small, its reading at matched reward, and the tables of its page against the results."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from bench import pfo_study
from bench.pfo_study import (
    STOP,
    ZERO,
    Run,
    answers_own,
    matched,
    perform,
    planned,
    read_lines,
    rewards,
    tables,
)
from stamm.observe.plasticity import plasticity_loss
from tests.conftest import ROOT

RESULTS = ROOT / "bench" / "results" / "pfo_study.jsonl"
PAGE = ROOT / "docs" / "log" / "2026-11-27-pfo-study.md"


def test_the_page_has_the_tables_of_the_committed_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for line in tables(read_lines(RESULTS)).splitlines():
        assert line.startswith("<!--") or line in page, line


def test_every_committed_line_is_a_planned_run() -> None:
    keys = [line["key"] for line in read_lines(RESULTS)]
    assert keys[0] == "machine"
    assert len(keys) == len(set(keys)) > 5
    assert set(keys[1:]) <= {run.key for run in planned()}


def test_rewards_are_distances_to_the_sum() -> None:
    def digits(text: str) -> list[int]:
        return [int(c) + ZERO if c.isdigit() else STOP for c in text]

    answers = torch.tensor([digits(t) for t in ("19..", "21..", "9999", ".123", "7.77", "039.")])
    found = rewards(answers, torch.tensor([19, 19, 19, 19, 19, 19]))
    assert found.tolist() == [0.0, -0.1, -1.0, -1.0, -0.6, -1.0]
    assert answers_own(answers).sum(1).tolist() == [3, 3, 4, 1, 2, 4]


def test_arms_are_read_where_all_of_them_reach_the_reward() -> None:
    def line(*values: float) -> dict[str, object]:
        return {"curve": [{"reward": value} for value in values]}

    read = matched([line(-0.5, -0.3, -0.1), line(-0.5, -0.2, -0.4), line(-0.5, -0.45, -0.25)])
    # The third reaches -0.25 at most: all are read at their first evaluation with at least that.
    assert [row["reward"] for row in read] == [-0.1, -0.2, -0.25]


def test_a_file_of_results_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pfo_study, "TRAIN", 8)
    monkeypatch.setattr(pfo_study, "HELD_OUT", 4)
    monkeypatch.setattr(pfo_study, "plasticity_loss", partial(plasticity_loss, steps=1))
    pfo_study.build_world.cache_clear()
    runs = [
        Run(arm="PFO", seed=0, pfo=1.0, rounds=2, epochs=2),
        Run(arm="none, 1 epochs", seed=0, loss="ppo", activation="relu", rounds=1, epochs=1),
    ]
    out = tmp_path / "out.jsonl"
    perform(runs[:1], out, "")
    first = out.read_bytes()
    perform(runs, out, "")
    pfo_study.build_world.cache_clear()
    assert out.read_bytes().startswith(first)
    _, qrpo, ppo = read_lines(out)
    assert [row["epoch"] for row in qrpo["curve"]] == [0, 1, 2, 1, 2]
    assert [row["epoch"] for row in ppo["curve"]] == [0, 1]
    assert qrpo["curve"][0]["feature_norm"] > 0
