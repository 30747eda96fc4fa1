"""`stamm sample`: completions in proven shards, the same however often it is interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Stamm

PROMPTS: list[dict[str, Any]] = [
    {"prompt": "Name a city.", "id": "a"},
    {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]},
    {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]},
    {"text": "not a prompt"},
    {"prompt": "word " * 3000},
]
WORDS = ("prompts=prompts.jsonl", "n=2", "max_new_tokens=12", "prompts_per_shard=2")


@pytest.fixture
def arm(smoke_run: Path, tmp_path: Path) -> Path:
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, PROMPTS)))
    return next(path for path in sorted((smoke_run / "arms").iterdir()))


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "completions.jsonl").read_text().splitlines()]


def test_every_prompt_gets_its_completions(arm: Path, stamm: Stamm, tmp_path: Path) -> None:
    done = stamm("sample", str(arm), *WORDS)
    assert done.returncode == 0, done.stderr
    found = rows(tmp_path / "completions")
    assert [(row["id"], row["sample"]) for row in found] == [
        ("a", 0), ("a", 1), ("", 0), ("", 1), ("", 0), ("", 1),
    ]  # fmt: skip
    assert found[0]["prompt"] == [{"role": "user", "content": "Name a city."}]
    for row in found:
        assert row["completion"][0]["role"] == "assistant"
        assert row["stopped"] or row["num_tokens"] == 12
        assert row["log_prob"] < 0
    bad = (tmp_path / "completions" / "bad_rows.jsonl").read_text().splitlines()
    assert [json.loads(row)["row"] for row in bad] == [4, 5]
    manifest = json.loads((tmp_path / "completions" / "manifests" / "00001.json").read_text())
    assert manifest["dropped"] == {"too_long": 1}

    first = (tmp_path / "completions" / "completions.jsonl").read_bytes()
    kept = tmp_path / "completions" / "completions-00000.jsonl"
    changed = kept.stat().st_mtime_ns
    (tmp_path / "completions" / "completions-00001.jsonl").write_text("damaged")
    assert stamm("sample", str(arm), *WORDS).returncode == 0
    assert (tmp_path / "completions" / "completions.jsonl").read_bytes() == first
    assert kept.stat().st_mtime_ns == changed

    scored = stamm("score", "completions/completions.jsonl", "reward=Length", "--out", "s.jsonl")
    assert scored.returncode == 0, scored.stderr


def test_what_is_wrong_is_one_line(
    arm: Path, smoke_run: Path, stamm: Stamm, tmp_path: Path
) -> None:
    (tmp_path / "none.jsonl").write_text("")
    cases = {
        (str(arm),): "Set prompts=FILE",
        (str(arm), "prompts=gone.jsonl"): "gone.jsonl",
        (str(arm), "prompts=prompts.jsonl", "engine=vllm"): "vLLM is not installed",
        (str(arm), "prompts=none.jsonl"): "none.jsonl has no prompt",
        (str(arm), "prompts=prompts.jsonl", "n=0"): "n = 0",
        (str(arm), "prompts=prompts.jsonl", "temperature=-1"): "temperature",
        (str(smoke_run), "prompts=prompts.jsonl"): "trained models",
        (str(tmp_path), "prompts=prompts.jsonl"): "holds no trained model",
    }
    for words, message in cases.items():
        done = stamm("sample", *words)
        assert done.returncode in (1, 2), words
        assert message in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1
