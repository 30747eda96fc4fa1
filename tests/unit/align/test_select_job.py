"""Selection of training examples from scored completions, against independent computations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stamm.align.data.config import SelectConfig
from stamm.align.data.dataset_reader import read_examples
from stamm.align.data.examples import PreferencePair, RatedAnswer
from stamm.align.results.select_job import run
from stamm.base.errors import DataError
from stamm.base.files import read_json
from stamm.runs.job import Workspace


def scored(rewards: list[list[float]]) -> list[dict[str, Any]]:
    """Completions of prompts 0, 1, ..., in reversed order of their samples."""
    return [
        {
            "id": f"p{prompt}",
            "licence": "MIT",
            "prompt": [{"role": "user", "content": f"question {prompt}"}],
            "completion": [{"role": "assistant", "content": f"answer {prompt}.{sample}"}],
            "sample": sample,
            "token_ids": [prompt, sample],
            "reward": reward,
        }
        for prompt, row in enumerate(rewards)
        for sample, reward in reversed(list(enumerate(row)))
    ]


def select(
    folder: Path,
    answers: list[list[float]],
    config: SelectConfig,
    references: list[list[float]] | None = None,
) -> Path:
    inputs = {}
    for name, rewards in (("answers", answers), ("references", references)):
        if rewards is not None:
            inputs[name] = folder / f"{name}.jsonl"
            lines = "".join(json.dumps(row) + "\n" for row in scored(rewards))
            inputs[name].write_text(lines)
    run(config, Workspace(folder=folder, inputs=inputs))
    return folder / "examples.jsonl"


def test_the_best_and_the_worst_candidate_are_ranked_among_the_others(tmp_path: Path) -> None:
    rewards = [[0.5, 2.0, -1.0, 9.0, -9.0], [1.0, 1.0, 1.0, 0.0, 2.0], [3.0, 2.0, 1.0, 0.0]]
    path = select(tmp_path, rewards, SelectConfig(candidates=3))
    first, second = (each for each in read_examples(path) if isinstance(each, PreferencePair))
    assert first.origin.id == "p0" and first.origin.licence == "MIT"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["chosen"][0]["content"] for line in lines] == ["answer 0.1", "answer 2.0"]
    assert [line["rejected"][0]["content"] for line in lines] == ["answer 0.2", "answer 2.2"]
    assert [line["ref_rewards"] for line in lines] == [[9.0, -9.0], [0.0]]
    assert (lines[0]["chosen_reward"], lines[0]["rejected_reward"]) == (2.0, -1.0)
    assert (lines[0]["chosen_token_ids"], lines[0]["rejected_token_ids"]) == ([0, 1], [0, 2])
    assert second.origin.id == "p2"
    summary = read_json(tmp_path / "summary.json")
    assert summary["dropped"] == {"tied": 1} and summary["references"] == [1, 2]


def test_every_candidate_may_be_a_rated_answer(tmp_path: Path) -> None:
    path = select(
        tmp_path, [[1.0, 2.0]], SelectConfig(take="all", candidates=2), references=[[0.0, 5.0, 1.0]]
    )
    found = [each for each in read_examples(path) if isinstance(each, RatedAnswer)]
    assert [(each.reward, each.ref_rewards) for each in found] == [
        (1.0, (0.0, 5.0, 1.0)),
        (2.0, (0.0, 5.0, 1.0)),
    ]


def test_prompts_without_examples_are_an_error_with_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="none of 2 prompts makes an example: tied 1, no_references 1"
    ):
        select(tmp_path, [[1.0, 1.0, 0.0], [1.0, 0.0]], SelectConfig(candidates=2))


def test_answers_without_rewards_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps({"prompt": "x", "completion": "y", "sample": 0}) + "\n")
    with pytest.raises(DataError, match="row 1 has no reward or no sample number"):
        run(SelectConfig(), Workspace(folder=tmp_path, inputs={"answers": path}))
