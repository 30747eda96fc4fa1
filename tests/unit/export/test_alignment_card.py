"""The section "Alignment data" of the model card: counts of prepared data, escaped, and in order."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stamm.align.data.config import APERTUS_REFUSED
from stamm.base.errors import DataError
from stamm.corpus.contamination.config import ContaminationConfig, EvaluationSet
from stamm.export.alignment_card import alignment_section, alignment_summaries
from stamm.runs.arms import prepared_data_of_arm
from tests.unit.align.prepared import chat, prepare, write_rows

HOSTILE = "[x](http://a.example) <script>alert(1)</script>\n# not a heading"


def prepared(folder: Path) -> Path:
    question = "How many eggs do the ducks of the farm lay in a week of seven days?"
    sets = EvaluationSet(
        name="eggs", file=write_rows(folder / "eval.jsonl", [{"q": question}]), fields=("q",), id=""
    )
    rows = [
        chat("2+2?", "4", source=HOSTILE, licence="Apache-2.0"),
        chat("2+3?", "5", source="b", licence="CC-BY-SA-4.0"),
        chat(question, "49", source="b", licence="MIT"),
        chat("2+4?", "", source="b", licence="MIT"),
    ]
    config = ContaminationConfig(sets=(sets,))
    return prepare(folder, rows, refused_licences=APERTUS_REFUSED, decontaminate=config)


def arm(folder: Path, inputs: dict[str, Path]) -> Path:
    """An arm whose manifest records `inputs`; the folder of its model."""
    (folder / "model").mkdir(parents=True)
    recorded = {name: {"path": os.path.relpath(path, folder)} for name, path in inputs.items()}
    (folder / "manifest.json").write_text(json.dumps({"schema": 1, "inputs": recorded}))
    return folder / "model"


def test_the_section_has_sources_reasons_and_decontamination(tmp_path: Path) -> None:
    model = arm(tmp_path / "arm", {"data": prepared(tmp_path)})
    text = "\n\n".join(alignment_section(alignment_summaries(model)))
    assert text.startswith("## Alignment data\n\n### Conversations\n")
    assert "1 of 4 rows were kept: 1 to train on" in text
    assert "| b | CC-BY-SA-4.0 | 0 | 1 |" in text
    assert "Refused licences: noncommercial, share-alike, unknown." in text
    assert "| licence\\_denied | the licence is not allowed | 1 |" in text
    assert "| empty\\_answer | an answer without content | 1 |" in text
    assert "shares 8 words in a row and 50% of all words" in text
    assert "| eggs | 1 | 0 | 1 |" in text
    assert "<script" not in text
    assert "[x](" not in text
    assert "\n# not a heading" not in text


def test_what_was_not_done_is_stated(tmp_path: Path) -> None:
    out = prepare(tmp_path, [chat("2+2?", "4")])
    model = arm(tmp_path / "arm", {"data": out})
    text = "\n\n".join(alignment_section(alignment_summaries(model)))
    assert "No licence was refused." in text
    assert "The rows were not compared with evaluation texts." in text
    assert "| not stated | not stated | 1 | 0 |" in text
    assert list(alignment_section([])) == []
    (out / "summary.json").write_text(json.dumps({"schema": 1}))
    with pytest.raises(DataError, match=r"summary\.json has no 'kind'"):
        alignment_summaries(model)


def test_the_data_of_every_stage_are_found_through_manifests(tmp_path: Path) -> None:
    chats = prepare(tmp_path / "a", [chat("2+2?", "4")])
    pairs = prepare(tmp_path / "b", [{"prompt": "2+2?", "chosen": "4", "rejected": "5"}])
    run = tmp_path / "run" / "arms"
    tokenizer = tmp_path / "a" / "tokenizer"
    first = arm(run / "sft", {"data": chats, "tokenizer": tokenizer})
    second = arm(run / "dpo", {"data": pairs, "start": first, "gone": tmp_path / "gone"})
    assert prepared_data_of_arm(run / "dpo") == [chats, pairs]
    assert prepared_data_of_arm(run / "sft") == [chats]
    assert prepared_data_of_arm(tmp_path) == []
    (tmp_path / "manifest.json").write_text('{"schema": 1, "inputs": {"data": "x"}}')
    with pytest.raises(DataError, match="inputs, data holds text"):
        prepared_data_of_arm(tmp_path)
    text = "\n".join(alignment_section(alignment_summaries(second)))
    assert text.index("### 1. Conversations") < text.index("### 2. Preference pairs")
