"""Held-out cost: every token counted once, sums that add up, and errors that say what to set."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stamm.base.config import from_plain, to_plain
from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json, write_json
from stamm.corpus.packed_dataset import PackedSplit
from stamm.evaluate import blimp, job
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.held_out import (
    bits_metric,
    by_language,
    context_and_overlap,
    document_losses,
    loss_metric,
    summarize,
    windows,
)
from stamm.evaluate.records import DocumentLoss
from stamm.models.serialization import load_decoder
from stamm.runs.job import Workspace


@given(st.integers(2, 300), st.integers(2, 60), st.data())
def test_windows_score_every_token_once(length: int, context: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(1, context - 1))
    found = windows(length, context, overlap)
    scored = [token for window in found for token in range(window.scored, window.stop)]
    assert scored == list(range(1, length))
    for window in found:
        assert window.stop - 1 - window.start <= context
    for window in found[1:]:
        assert window.scored - window.start == overlap


def test_a_short_document_is_one_window() -> None:
    (only,) = windows(9, 8, 4)
    assert (only.start, only.scored, only.stop) == (0, 1, 9)
    assert len(windows(10, 8, 4)) == 2


def test_costs_are_those_of_the_definition(inputs: dict[str, Path]) -> None:
    decoder = load_decoder(inputs["model"])
    split = PackedSplit.open(inputs["pack"], "held_out")
    config = EvaluateConfig(context=16, overlap=5, batch_tokens=70)
    found = document_losses(config, decoder, split, NoProgress())
    rows = split.documents().to_pylist()
    assert [cost.document_id for cost in found] == [row["document_id"] for row in rows]
    assert max(cost.tokens for cost in found) > 32
    for cost, row in zip(found, rows, strict=True):
        tokens = split.read(row["start"], row["stop"]).tolist()
        expected = 0.0
        for position in range(1, len(tokens)):
            # the first 16 tokens follow from all before them, later ones from 5 to 16 tokens
            behind = 0 if position <= 16 else position - 5 - (position - 17) % 12
            with torch.no_grad():
                logits = decoder(torch.tensor([tokens[behind:position]]))[0, -1].double()
            expected -= float(logits.log_softmax(-1)[tokens[position]])
        assert cost.nats == pytest.approx(expected, rel=1e-5)
        assert (cost.tokens, cost.bytes) == (len(tokens) - 1, row["bytes"])


def test_summary_adds_up() -> None:
    costs = [
        DocumentLoss(document_id="a", language="deu", tokens=10, bytes=40, nats=30.0),
        DocumentLoss(document_id="b", language="eng", tokens=30, bytes=60, nats=50.0),
    ]
    whole = summarize(costs)
    assert whole["loss_nats"] == 2.0
    assert whole["bits_per_byte"] == pytest.approx(80 / 100 / math.log(2))
    # residuals 30 - 20 and 50 - 60: sqrt(2 / 1 * 200) / 40
    assert whole["loss_nats_standard_error"] == pytest.approx(0.5)
    bits = bits_metric(costs)
    # residuals 30 - 32 and 50 - 48 nats: sqrt(2 / 1 * 8) / 100 bytes
    assert bits.value == pytest.approx(whole["bits_per_byte"])
    assert bits.standard_error == pytest.approx(4 / 100 / math.log(2))
    loss = loss_metric(costs)
    assert (loss.value, loss.standard_error) == (2.0, pytest.approx(0.5))
    # Student's t over documents: one degree of freedom, 12.706
    assert loss.interval == (pytest.approx(2 - 6.353, abs=1e-3), pytest.approx(2 + 6.353, abs=1e-3))
    parts = by_language([costs[1], costs[0]])
    assert list(parts) == ["deu", "eng"]
    assert parts["deu"]["loss_nats"] == 3.0
    assert parts["deu"]["loss_nats_standard_error"] is None


def test_context_and_overlap_follow_the_model_and_says_what_does_not_fit(
    inputs: dict[str, Path],
) -> None:
    decoder = load_decoder(inputs["model"])
    assert context_and_overlap(EvaluateConfig(), decoder) == (160, 80)
    assert context_and_overlap(EvaluateConfig(context=20, overlap=3), decoder) == (20, 3)
    with pytest.raises(ConfigError, match=r"context = 161 exceeds.*160.*evaluate\.context=160"):
        context_and_overlap(EvaluateConfig(context=161), decoder)
    with pytest.raises(ConfigError, match=r"overlap = 160 leaves nothing new.*160 tokens"):
        context_and_overlap(EvaluateConfig(overlap=160), decoder)


def test_configuration_refuses_and_survives_json() -> None:
    config = EvaluateConfig(context=128, overlap=32, blimp_pairs_per_paradigm=3)
    assert from_plain(EvaluateConfig, to_plain(config)) == config
    with pytest.raises(
        ConfigError, match=r"batch_tokens = 0 .*overlap = 9 must be below context = 8"
    ):
        EvaluateConfig(batch_tokens=0, context=8, overlap=9)
    with pytest.raises(ConfigError, match=r"blimp_pairs_per_paradigm = 16 must lie in \[1, 15\]"):
        EvaluateConfig(blimp_pairs_per_paradigm=16)


def test_job_writes_the_same_bytes_again(inputs: dict[str, Path], tmp_path: Path) -> None:
    config = EvaluateConfig(blimp_pairs_per_paradigm=1)
    workspace = Workspace(folder=tmp_path, inputs=inputs)
    job.run(config, workspace)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    names = ["blimp.json", "blimp_pairs.jsonl", "held_out.json", "held_out_documents.jsonl"]
    assert sorted(first) == names
    job.run(config, workspace)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    report = read_json(tmp_path / "held_out.json")
    lines = [json.loads(line) for line in first["held_out_documents.jsonl"].splitlines()]
    assert report["overall"]["documents"] == len(lines) == 5
    assert report["overall"]["tokens"] == sum(line["tokens"] for line in lines)
    languages = report["languages"].values()
    assert sum(entry["nats"] for entry in languages) == pytest.approx(report["overall"]["nats"])
    assert list(report["languages"]) == ["deu_Latn", "eng_Latn"]
    pairs = read_json(tmp_path / "blimp.json")
    assert (pairs["pairs"], pairs["chance"]) == (67, 0.5)


def test_job_needs_held_out_documents(inputs: dict[str, Path], tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    pack.mkdir()
    manifest = read_json(inputs["pack"] / "manifest.json")
    manifest["splits"]["held_out"] = {"tokens": 0, "documents": 0, "shards": []}
    write_json(pack / "manifest.json", manifest)
    out = tmp_path / "evaluate"
    out.mkdir()
    (out / "held_out.json").write_text("left by an earlier attempt")
    with pytest.raises(DataError, match=r"no held-out document.*corpus\.held_out above 0"):
        job.run(EvaluateConfig(), Workspace(folder=out, inputs={**inputs, "pack": pack}))
    assert [path.name for path in out.iterdir()] == ["held_out.json"]
    assert (out / "held_out.json").read_text() == "left by an earlier attempt"


def test_a_failure_at_the_pairs_changes_no_result(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(count: int) -> None:
        raise DataError(f"no {count} pairs")

    monkeypatch.setattr(blimp, "shipped_pairs", fail)
    config = EvaluateConfig(blimp_pairs_per_paradigm=1)
    with pytest.raises(DataError, match="no 1 pairs"):
        job.run(config, Workspace(folder=tmp_path, inputs=inputs))
    assert list(tmp_path.iterdir()) == []
