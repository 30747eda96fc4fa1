"""Where a corpus stands and how its inputs are linked says nothing about what is in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.corpus.config import CorpusConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.contamination.config import ContaminationConfig, EvaluationSet
from stamm.corpus.steps import corpus_steps
from stamm.corpus.tables import read_parts
from tests.unit.small_corpus import build_corpus

ROWS = [
    {"text": f"Text {n} of a few words.", "url": f"https://a.org/{n}", "date": f"20{n:02d}-01-01"}
    for n in range(20)
]
PLAIN = CorpusConfig(
    inputs=("none",), consent=ConsentConfig(unknown_host="allow"), language=None, held_out=0.2
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def rows(folder: Path) -> list[tuple[str, str, str, str]]:
    ledger = read_parts(folder, "ledger")
    return [(r["document_id"], r["language"], r["split"], r["date"]) for r in ledger]


def test_an_input_may_be_a_link_to_a_file_of_another_name(tmp_path: Path, source: Path) -> None:
    """As in the cache of the Hugging Face Hub."""
    blob = tmp_path / "blobs" / "0123abcd"
    blob.parent.mkdir()
    source.rename(blob)
    link = tmp_path / "link.jsonl"
    link.symlink_to(blob)
    folder = build_corpus(replace(PLAIN, inputs=(str(link),)), tmp_path)
    assert len(list(read_parts(folder, "documents"))) == len(ROWS)


@pytest.mark.parametrize(
    "name", ["run[1]", "language=xx", "split=control", "shard=5", "date=2020-01-01"]
)
def test_the_name_of_a_folder_is_no_pattern_and_no_column(
    tmp_path: Path, source: Path, name: str
) -> None:
    config = replace(PLAIN, inputs=(str(source),))
    for folder in ("plain", name, "run1"):
        (tmp_path / folder).mkdir()
    expected = rows(build_corpus(config, tmp_path / "plain"))
    build_corpus(replace(config, held_out=0.9), tmp_path / "run1")
    assert rows(build_corpus(config, tmp_path / name)) == expected


def test_everything_that_a_screen_reads_is_part_of_its_identity(
    tmp_path: Path, source: Path
) -> None:
    evaluation, head = tmp_path / "set.jsonl", tmp_path / "head"
    evaluation.write_text("")
    head.mkdir()
    for file in ("classifier.json", "weights.safetensors"):
        (head / file).write_text("")
    sets = (EvaluationSet(name="set", file=str(evaluation)),)
    config = replace(
        PLAIN,
        inputs=(str(source),),
        contamination=ContaminationConfig(sets=sets),
        toxicity_classifier=str(head),
    )
    (screen,) = [step for step in corpus_steps(config) if step.name == "filter"]
    assert {str(source), str(evaluation), f"{head}/classifier.json"} < set(screen.external)
    assert f"{head}/weights.safetensors" in screen.external
