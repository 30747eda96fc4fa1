"""Completions of two models are paired by prompt; measures equal their definitions by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stamm.align.results.answer_metrics import (
    distinct_4,
    example_pairs,
    length_bins,
    length_slope,
    of_answers,
    quantiles,
    reward_distribution,
    win_shares,
)
from stamm.align.results.completions import (
    CompletionLine,
    answer_text,
    encode_completion,
    prompt_text,
    read_completions,
    read_paired,
)
from stamm.base.errors import DataError
from stamm.models.hf_chat_format import load_chat_format
from stamm.statistics.bootstrap import Bootstrap
from stamm.tokenizer.tokenizer import FILE
from tests.unit.chat.conversations import DESCRIPTION


def line(prompt: str, sample: int, reward: object, tokens: int = 5, **more: Any) -> dict[str, Any]:
    return {
        "id": prompt,
        "prompt": [{"role": "user", "content": f"Say {prompt}"}],
        "completion": [{"role": "assistant", "content": f"{prompt} {sample}"}],
        "sample": sample,
        "num_tokens": tokens,
        "stopped": True,
        "reward": reward,
        **more,
    }


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def pair(tmp_path: Path, start: list[dict[str, Any]], *aligned: list[dict[str, Any]]) -> Any:
    paths = [write(tmp_path / f"aligned-{i}.jsonl", rows) for i, rows in enumerate(aligned)]
    return read_paired(write(tmp_path / "start.jsonl", start), paths, "reward")


def test_prompts_are_paired_and_the_second_half_are_references(tmp_path: Path) -> None:
    start = [line("a", i, i) for i in (3, 1, 0, 2)] + [line("b", 0, 0), line("b", 1, 1)]
    start += [line("alone", 0, 0), line("alone", 1, 0), line("single", 0, 0)]
    other = [line("b", 0, 5), line("a", 0, 7), line("new", 0, 1), line("single", 0, 1)]
    found = pair(tmp_path, start, other)
    assert [p.id for p in found.prompts] == ["a", "b"]
    first = found.prompts[0]
    assert [a.rewards[0] for a in first.before] == [0, 1]
    assert first.reference_rewards(0) == [2, 3]
    assert [a.rewards[0] for a in first.after[0]] == [7]
    assert found.left_out == {
        "prompts that only the start model answered": 1,
        "prompts with too few start answers": 1,
        "prompts that only the aligned model answered": 1,
        # 4, 2, 2 and 1 of 4 start answers
        "answers without a reward": 7,
    }


def test_a_second_reward_is_of_the_same_completion(tmp_path: Path) -> None:
    start = [line("a", i, i) for i in range(4)]
    gold = [line("a", i, 10 * i) for i in (3, 1, 0)]
    paths = [write(tmp_path / f"{i}.jsonl", rows) for i, rows in enumerate((start, gold))]
    found = read_completions(paths[0], "reward", paths[1])
    assert [one.rewards for one in next(iter(found.values()))] == [(0, 0), (1, 10), (3, 30)]
    paired = read_paired(paths[0], [paths[0]], "reward", (paths[1], [paths[1]]))
    assert [one.rewards for one in paired.prompts[0].references] == [(1, 10), (3, 30)]


def test_a_turn_that_ended_at_once_is_its_stop_token(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(DESCRIPTION)
    chat = load_chat_format(tmp_path)
    messages = {
        "prompt": [{"role": "user", "content": "2+2?"}],
        "completion": [{"role": "assistant", "content": ""}],
    }
    found = encode_completion(chat, CompletionLine(**messages, num_tokens=1, stopped=True))
    assert found is not None
    assert set(found.completion) == chat.stop_ids & set(found.ids)
    assert (sum(found.supervised), len(found.completion), found.recoded) == (1, 1, False)
    assert encode_completion(chat, CompletionLine(**messages, num_tokens=0, stopped=False)) is None


def test_the_same_identifier_with_another_text_is_another_prompt(tmp_path: Path) -> None:
    changed = {**line("a", 0, 1), "prompt": [{"role": "user", "content": "other"}]}
    with pytest.raises(DataError, match="no prompt has two answers"):
        pair(tmp_path, [line("a", 0, 0), line("a", 1, 0)], [changed])


@pytest.mark.parametrize(
    ("reward", "message"),
    [(None, "line 1 has no 'reward'"), (float("nan"), "reward is nan"), ("3", "not a number")],
)
def test_a_completion_without_a_finite_reward_is_refused(
    tmp_path: Path, reward: object, message: str
) -> None:
    path = write(tmp_path / "completions.jsonl", [line("a", 0, reward)])
    with pytest.raises(DataError, match=message):
        read_completions(path, "reward")


def test_quantiles_and_wins_equal_counting(tmp_path: Path) -> None:
    start = [line("a", i, r) for i, r in enumerate([1, 4, 0, 2, 2, 4])]
    # answers: 1, 4, 0; references: 2, 2, 4
    found = pair(tmp_path, start, [line("a", 0, 2), line("a", 1, 9)], [line("a", 0, 4)])
    rewards = of_answers(found.prompts, lambda one: one.rewards[0])
    ranks = quantiles(found.prompts, 0, "mid")
    assert ranks.before[0] == pytest.approx([0, 2.5 / 3, 0])
    assert ranks.after[0][0] == pytest.approx([1 / 3, 1])
    assert ranks.after[1][0] == pytest.approx([2.5 / 3])
    assert quantiles(found.prompts, 0, "le").after[0][0] == pytest.approx([2 / 3, 1])
    wins, ties = win_shares(rewards)
    # 2 against 1, 4, 0: two wins; 9: three; and 4: two wins and a tie
    assert wins[:, 0] == pytest.approx([5 / 6, 2.5 / 3])
    assert ties[:, 0] == pytest.approx([0, 1 / 3])


def test_the_length_slope_is_that_of_a_line_within_prompts(tmp_path: Path) -> None:
    """Lengths 10 + 30 q in one prompt and 200 + 30 q in another: the slope is 30, not the pooled one."""
    references = [line(p, 4 + i, i + 0.5) for p in "ab" for i in range(4)]
    start = [
        line(p, i, i, tokens=round(base + 30 * i / 4))
        for p, base in (("a", 10), ("b", 200))
        for i in range(4)
    ]
    flat = [line(p, i, i, tokens=20) for p in "ab" for i in range(5)]
    found = pair(tmp_path, start + references, flat)
    tokens = of_answers(found.prompts, lambda one: one.line.num_tokens)
    ranks = quantiles(found.prompts, 0, "mid")
    bootstrap = Bootstrap(2, 1, 200, 0, 0.95)
    slope = length_slope(bootstrap, tokens, ranks)
    assert slope is not None
    assert slope["before"]["mean"] == pytest.approx(30, abs=1.0)
    assert slope["after"]["mean"] == pytest.approx(0, abs=1e-9)
    bins = length_bins(bootstrap, tokens, ranks)
    assert bins[0]["before"]["mean"] == pytest.approx((10 + 200) / 2)
    assert all(one["after"]["mean"] == 20 for one in bins if one["after"])
    # No start answer has a quantile in [0.8, 1]: the highest is 3 / 4.
    assert bins[4]["before"] is None and bins[4]["after"] is not None


def test_no_slope_where_all_answers_are_alike(tmp_path: Path) -> None:
    rows = [line("a", i, 1) for i in range(4)]
    found = pair(tmp_path, rows, rows)
    tokens = of_answers(found.prompts, lambda one: one.line.num_tokens)
    ranks = quantiles(found.prompts, 0, "mid")
    assert length_slope(Bootstrap(1, 1, 100, 0, 0.95), tokens, ranks) is None
    assert reward_distribution(of_answers(found.prompts, lambda one: one.rewards[0])) == [
        {"low": 1.0, "high": 1.0, "before": 1.0, "after": 1.0}
    ]


def test_distributions_sum_to_one(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    start = [line("a", i, float(random.normal())) for i in range(40)]
    found = pair(tmp_path, start, [line("a", i, float(random.normal())) for i in range(30)])
    bins = reward_distribution(of_answers(found.prompts, lambda one: one.rewards[0]))
    assert len(bins) == 24
    for side in ("before", "after"):
        assert sum(one[side] for one in bins) == pytest.approx(1)


def test_distinct_4_grams() -> None:
    assert distinct_4([1, 2, 3]) == 1.0
    assert distinct_4([7] * 10) == pytest.approx(1 / 7)
    assert distinct_4([1, 2, 3, 4, 5]) == 1.0


def test_examples_are_spread_from_the_lowest_to_the_highest_quantile(tmp_path: Path) -> None:
    names = [f"p{i:02d}" for i in range(41)]
    start = [line(p, i, i * 10.0) for p in names for i in range(42)]
    aligned = [line(p, 0, 205.0 + 5 * ((7 * i) % 41)) for i, p in enumerate(names)]
    found = pair(tmp_path, start, aligned)
    ranks = quantiles(found.prompts, 0, "mid")
    shown = example_pairs(found.prompts, ranks, 5)
    ordered = [one["quantile_after"] for one in shown]
    every = sorted(float(ranks.after[0][i][0]) for i in range(41))
    assert ordered == [every[0], every[10], every[20], every[30], every[40]]
    assert example_pairs(found.prompts, ranks, 5) == shown
    assert len(example_pairs(found.prompts, ranks, 100)) == 41
    assert example_pairs(found.prompts, ranks, 0) == []


def test_texts_of_messages() -> None:
    blocks = {"blocks": [{"type": "thoughts", "text": "hm"}, {"type": "response", "text": "yes"}]}
    assert (
        answer_text([{"role": "assistant", "content": blocks}]) == "[thoughts] {'text': 'hm'}\nyes"
    )
    assert prompt_text([{"role": "user", "content": "why?"}]) == "why?"
    two = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"}]
    assert prompt_text(two) == "system: be brief\nuser: why?"
    assert prompt_text("plain") == "plain"
    assert answer_text(None) == ""
