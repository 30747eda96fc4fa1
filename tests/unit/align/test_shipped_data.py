"""The conversations and prompts shipped with stamm: their hashes, licences, and disjoint questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stamm.align.data.config import APERTUS_REFUSED, locate_file, shipped_data
from stamm.align.data.dataset_reader import read_rows
from stamm.align.data.encoded import EncodedExamples
from stamm.align.data.examples import ChatExample, PromptExample
from stamm.align.sampling.prompts import kept_columns
from stamm.base.files import sha256_file
from stamm.corpus.contamination.config import ContaminationConfig, EvaluationSet
from tests.unit.align.prepared import prepare

FOLDER = locate_file("package:align_chats.jsonl.zst", "data").parent
CHATS, TRAIN, TEST, VALIDATION = (
    "align_chats.jsonl.zst",
    "align_prompts.jsonl.zst",
    "align_test_prompts.jsonl.zst",
    "align_validation_prompts.jsonl.zst",
)


def rows(name: str, kind: type[Any]) -> list[dict[str, Any]]:
    """The rows of a shipped file, each readable as `kind`."""
    found = list(read_rows(FOLDER / name))
    assert all(isinstance(example, kind) for _, example in found)
    return [dict(row) for row, _ in found]


def test_files_have_their_hashes_and_licences() -> None:
    listing = json.loads((FOLDER / "SOURCES.json").read_text())
    assert tuple(sorted(entry["file"] for entry in listing["files"])) == shipped_data()
    for entry in listing["files"]:
        assert sha256_file(FOLDER / entry["file"]) == entry["sha256"]
    notes = (FOLDER / "LICENSES.md").read_text()
    for source in listing["sources"]:
        assert source["origin"] in notes
        assert source["licence"] in notes
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 400_000


def test_no_question_is_in_two_files_and_every_row_has_its_source() -> None:
    chats, train, test, validation = (
        rows(CHATS, ChatExample),
        rows(TRAIN, PromptExample),
        rows(TEST, PromptExample),
        rows(VALIDATION, PromptExample),
    )
    assert (len(train), len(test), len(validation)) == (300, 200, 100)
    assert len(chats) > 2500
    asked = [row["messages"][0]["content"].casefold() for row in chats]
    prompts = [row["prompt"].casefold() for row in (*train, *test, *validation)]
    assert len(set(prompts)) == len(prompts)
    assert not set(prompts) & set(asked)
    sources = {entry["source"]: entry["licence"] for entry in listing_sources()}
    assert all(sources[row["source"]] == row["licence"] for row in (*chats, *train, *test))
    assert len({row["language"] for row in chats}) == 15


def test_probes_of_refusals_have_labels() -> None:
    found = rows("xstest_prompts.jsonl.zst", PromptExample)
    labels = [kept_columns(row)["probe"] for row in found]
    assert (labels.count("safe"), labels.count("unsafe")) == (250, 200)


def listing_sources() -> list[dict[str, str]]:
    """The sources of SOURCES.json."""
    found: list[dict[str, str]] = json.loads((FOLDER / "SOURCES.json").read_text())["sources"]
    return found


@pytest.mark.slow
def test_they_are_prepared_and_nothing_is_dropped_for_its_licence(tmp_path: Path) -> None:
    sets = EvaluationSet(name="test prompts", file=f"package:{TEST}", fields=("prompt",))
    out = prepare(
        tmp_path,
        [],
        data=(f"package:{CHATS}",),
        context=1024,
        refused_licences=APERTUS_REFUSED,
        without_source="refuse",
        decontaminate=ContaminationConfig(sets=(sets,)),
        held_out=0.05,
    )
    found = EncodedExamples.open(out)
    assert set(found.summary.dropped) <= {"contaminated"}
    assert found.summary.dropped.get("contaminated", 0) < 30
    assert found.summary.licences.keys() == {"BSD-3-Clause", "Apache-2.0"}
    assert 50 < found.summary.splits["held_out"].examples < 300
