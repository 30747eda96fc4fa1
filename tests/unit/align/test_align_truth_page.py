"""The tables of the log page are those of the committed results; what `bench.align_truth` enumerates."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from bench.align_truth import SYMBOLS, EnumeratedPolicy, exact_quantiles, frontier
from bench.align_truth_page import interval, page
from stamm.losses.quantile import optimum_kl, optimum_mean_quantile

ROOT = Path(__file__).parents[3]


def test_the_log_shows_the_committed_results() -> None:
    results = (ROOT / "bench" / "results" / "align_truth.jsonl").read_text().splitlines()
    shown = (ROOT / "docs" / "log" / "2026-11-23-alignment-truth.md").read_text()
    tables = page([json.loads(line) for line in results]).split("\n\n")
    assert len(tables) == 3
    for table in tables:
        assert table in shown


def test_log_probabilities_of_all_answers_are_those_of_single_passes() -> None:
    policy = EnumeratedPolicy(seed=0, prompts=3, digits=2, length=3, sharpness=10.0)
    with torch.no_grad():
        every = policy.log_probs()
    assert every.shape == (3, SYMBOLS**3)
    assert torch.allclose(every.exp().sum(dim=1), torch.ones(3, dtype=torch.float64))
    prompt, answer = 2, (5, 0, 15)
    tokens = torch.tensor([[SYMBOLS + prompt % SYMBOLS, SYMBOLS, *answer]])
    with torch.no_grad():
        logits = policy.decoder(tokens)[0, 1:4, :SYMBOLS].double().log_softmax(dim=-1)
    alone = sum(float(logits[place, symbol]) for place, symbol in enumerate(answer))
    index = answer[0] * SYMBOLS**2 + answer[1] * SYMBOLS + answer[2]
    assert float(every[prompt, index]) == pytest.approx(alone, abs=1e-5)


def test_quantiles_are_the_mass_below_and_half_of_the_own() -> None:
    policy = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64)
    reward = torch.tensor([[3.0, 1.0, 2.0]], dtype=torch.float64)
    assert exact_quantiles(policy, reward)[0].tolist() == pytest.approx([0.9, 0.25, 0.65])


def test_the_frontier_is_the_curve_of_all_betas() -> None:
    for beta in (0.05, 0.3, 2.0):
        assert frontier(optimum_kl(beta)) == pytest.approx(optimum_mean_quantile(beta), rel=1e-6)


def test_the_interval_is_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2 and half == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
