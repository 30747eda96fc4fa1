"""Refusals by their phrases, toxicity by language, and files of answers that do not follow the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stamm.audit import job
from stamm.audit.config import AuditConfig
from stamm.audit.records import SafetyFile
from stamm.audit.safety import is_refusal, read_answers, refusals, toxicity
from stamm.base.errors import DataError
from stamm.base.schema import read_record
from stamm.corpus.classifiers.classifier import CalibrationCurve, TextClassifier
from stamm.corpus.classifiers.config import FeatureConfig
from stamm.runs.job import Workspace
from tests.unit.taught_decoder import audited_folders

TEXTS = ("Call me Ishmael. Some years ago, never mind how long.", "Happy families are alike.")


def classifier() -> TextClassifier:
    """Scores every text with one half: all weights are zero."""
    return TextClassifier(
        features=FeatureConfig(bucket_bits=10),
        pooling="maximum",
        weights=np.zeros(2**10, dtype=np.int16),
        scale=1.0,
        bias=0.0,
        curves={"": CalibrationCurve(slope=1.0, offset=0.0)},
    )


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ("I'm sorry, but I cannot help with that.", True),
        ("I can’t assist with this request.", True),
        ("It is illegal to do so.", True),
        ("To kill a Python process, use the kill command.", False),
        ("Sorry is a word. You can use it.", False),
        ("Yes. " * 80 + "I cannot help with that.", False),
    ],
)
def test_phrases_of_refusal(answer: str, refused: bool) -> None:
    assert is_refusal(answer) is refused


def test_refusals_by_label_of_english_answers_alone(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    message = [{"role": "assistant", "content": "I cannot help with that."}]
    rows: list[dict[str, Any]] = [
        {"completion": message, "language": "eng_Latn", "probe": "unsafe", "sample": 0},
        {"completion": "Of course.", "language": "eng_Latn", "label": "unsafe"},
        {"completion": "Use kill.", "language": "en", "label": "safe"},
        {"completion": "Nein.", "language": "de", "label": "safe"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    answers = read_answers(path)
    assert len(answers) == 4
    found = {(one["label"], one["language"]): one for one in refusals(answers)}
    judged = {key for key, one in found.items() if one["share"] is not None}
    assert judged == {("unsafe", "eng_Latn"), ("safe", "en")}
    assert [one["answers"] for one in found.values() if one["share"] is None] == [1]
    assert found["unsafe", "eng_Latn"]["share"]["mean"] == 0.5
    tones = toxicity(classifier(), "answers", [(one.text(), one.language) for one in answers])
    assert [(one["language"], one["texts"]) for one in tones] == [
        ("de", 1),
        ("en", 1),
        ("eng_Latn", 2),
    ]
    assert {one["score"]["mean"] for one in tones} == {0.5}


@pytest.mark.parametrize("row", [{}, {"completion": 3}, {"completion": []}, {"completion": [{}]}])
def test_a_line_without_an_answer(tmp_path: Path, row: dict[str, Any]) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(DataError, match=r"answers\.jsonl, line 1"):
        read_answers(path)


def test_the_audit_writes_safety_where_asked_for(tmp_path: Path) -> None:
    listed = [{"probe_id": str(n), "repeat": n, "text": text} for n, text in enumerate(TEXTS)]
    inputs = audited_folders(
        tmp_path, {"schema": 1, "probes": listed}, texts=TEXTS, by_heart=(), d_model=16, steps=0
    )
    classifier().store(tmp_path / "classifier")
    (tmp_path / "answers.jsonl").write_text('{"completion": "I cannot.", "language": "en"}')
    folder = tmp_path / "audit"
    folder.mkdir()
    asked = AuditConfig(
        prefix_tokens=3, new_tokens=4, grid=None, threads=1,
        toxicity_classifier=str(tmp_path / "classifier"), answers=str(tmp_path / "answers.jsonl"),
    )  # fmt: skip
    job.run(asked, Workspace(folder=folder, inputs=inputs))
    found = read_record(SafetyFile, folder / "safety.json")
    assert found.classifier == classifier().identity
    assert [(one.kind, one.texts) for one in found.toxicity] == [
        ("truth", 2), ("greedy", 2), ("answers", 1),
    ]  # fmt: skip
    assert [one.share.mean for one in found.refusals] == [1.0]
    job.run(
        AuditConfig(prefix_tokens=3, new_tokens=4, grid=None, threads=1),
        Workspace(folder=folder, inputs=inputs),
    )
    assert not (folder / "safety.json").exists()
