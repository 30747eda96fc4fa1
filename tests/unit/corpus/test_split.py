"""Held-out documents, exact duplicates and probes: who may stand where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stamm.base.errors import ConfigError, DataError
from stamm.corpus.canaries.job import passages, plan_probes
from stamm.corpus.config import CorpusConfig, ProbesConfig
from stamm.corpus.ledger import count_held_out
from stamm.corpus.limits import ReadLimits
from stamm.corpus.pii.config import PiiConfig


@given(st.integers(2, 10**9), st.floats(0.001, 0.999))
def test_a_language_with_two_documents_has_both_splits(count: int, share: float) -> None:
    assert 1 <= count_held_out(count, share) <= count - 1


@pytest.mark.parametrize(("count", "wanted"), [(2, 1), (10, 1), (25, 2), (115, 12), (5000, 500)])
def test_share_is_exact_by_language(count: int, wanted: int) -> None:
    assert count_held_out(count, 0.1) == wanted


def test_a_large_share_leaves_one_to_train_on() -> None:
    assert count_held_out(3, 0.99) == 2


def test_one_document_is_never_held_out_and_no_share_holds_nothing_out() -> None:
    assert count_held_out(1, 0.9) == 0
    assert count_held_out(3, 0.0) == 0


def test_passages_begin_at_sentences_and_are_disjoint() -> None:
    text = "".join(f"Sentence number {i} is here, Mr. smith said so. " for i in range(200))
    found = list(passages(text, 300, 400))
    assert len(found) > 15
    for passage in found:
        assert passage.startswith("Sentence number")
        assert passage.endswith(".")
        assert 299 <= len(passage) <= 400
    assert "".join(" " + p for p in found).strip() in " ".join(text.split())


def test_a_stretch_without_sentences_gives_no_passage() -> None:
    assert list(passages("word " * 1000, 100, 200)) == []
    assert list(passages("", 100, 200)) == []


def books(tmp_path: Path, count: int = 60) -> Path:
    path = tmp_path / "books.jsonl"
    rows = [
        {
            "text": " ".join(
                f"Book {b} tells thing {i} and another {i * i}." for i in range(count)
            ),
            "url": f"https://books.example/{b}",
            "language": "eng_Latn",
        }
        for b in range(4)
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_probes_fill_every_bucket_with_distinct_passages_of_all_books(tmp_path: Path) -> None:
    path = books(tmp_path)
    config = ProbesConfig(books=str(path), passages_per_bucket=5, shortest=100, longest=200)
    probes = plan_probes(config, path, ReadLimits(), 3, PiiConfig())
    assert [p.repeat for p in probes] == [r for r in (0, 1, 4, 16, 32) for _ in range(5)]
    assert len({p.text for p in probes}) == len({p.document_id for p in probes}) == 25
    assert len({p.record.url for p in probes}) == 4
    assert probes[0].probe_id == "r0-0000"
    assert probes == plan_probes(config, path, ReadLimits(), 3, PiiConfig())
    assert probes != plan_probes(config, path, ReadLimits(), 4, PiiConfig())


def test_too_few_passages_say_how_many_there_are(tmp_path: Path) -> None:
    path = books(tmp_path, count=20)
    config = ProbesConfig(books=str(path), passages_per_bucket=50, shortest=100, longest=200)
    with pytest.raises(
        DataError, match=r"gives \d+ passages .* 250 are needed .*passages_per_bucket="
    ):
        plan_probes(config, path, ReadLimits(), 3, PiiConfig())
    with pytest.raises(DataError, match=r"250 are needed \(corpus\.probes\)\. Name more books"):
        plan_probes(config, books(tmp_path, count=0), ReadLimits(), 3, PiiConfig())


def test_probes_are_planted_without_personal_data(tmp_path: Path) -> None:
    path = tmp_path / "books.jsonl"
    text = " ".join(f"Line {i} says write to reader{i}@example.org today." for i in range(60))
    path.write_text(json.dumps({"text": text}))
    config = ProbesConfig(books=str(path), passages_per_bucket=1, shortest=100, longest=200)
    for probe in plan_probes(config, path, ReadLimits(), 3, PiiConfig()):
        assert "@" not in probe.text
        assert probe.cleaned.email == probe.text.count("<email-pii>") > 0


def test_probe_books_are_no_archive(tmp_path: Path) -> None:
    config = ProbesConfig(books="x.warc.gz")
    with pytest.raises(DataError, match=r"x\.warc\.gz is a web archive \(corpus\.probes\.books\)"):
        plan_probes(config, tmp_path / "x.warc.gz", ReadLimits(), 3, PiiConfig())


def test_config_errors_are_told_together() -> None:
    with pytest.raises(ConfigError, match=r"repeats = \(0, 0\) names a count twice; .*longest = 1"):
        ProbesConfig(books="x", repeats=(0, 0), longest=1)
    with pytest.raises(ConfigError, match=r"held_out = 1.0 must lie in \[0, 1\)"):
        CorpusConfig(inputs=("x",), held_out=1.0)
    with pytest.raises(ConfigError, match=r"inputs = .* is empty"):
        CorpusConfig(inputs=())
    with pytest.raises(ConfigError, match="names a file twice"):
        CorpusConfig(inputs=("x", "x"))
