"""How long a run will be: read from what is packed, guessed from what is not."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.base.config import override, to_plain
from stamm.base.errors import DataError
from stamm.corpus.config import CorpusConfig
from stamm.recipes.demo import demo
from stamm.recipes.length import BYTES_PER_TOKEN, corpus_length, estimated_length, packed_length
from stamm.recipes.study import Study

DEMO_TOKENS = 1_190_456  # what the demo's corpus packs to


def _packed(run: Path, study: Study, tokens: int) -> None:
    (run / "pack").mkdir(parents=True)
    manifest = {"splits": {"train": {"tokens": tokens}}}
    (run / "pack" / "manifest.json").write_text(json.dumps(manifest))
    (run / "config.json").write_text(json.dumps({"config": to_plain(study)}))


def test_the_guess_for_the_demo_is_within_a_tenth_and_says_what_it_assumes() -> None:
    length = estimated_length(demo())
    assert abs(length.tokens - DEMO_TOKENS) < 0.1 * DEMO_TOKENS
    for word in ("about 1.2", "estimated from the sizes of 6 inputs", "2.7 bytes per token"):
        assert word in length.source


def test_a_guess_follows_the_sizes_of_the_users_files(tmp_path: Path) -> None:
    sources = [tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz", tmp_path / "c.warc.gz"]
    sizes = (100_000, 20_000, 30_000)
    for source, size in zip(sources, sizes, strict=True):
        source.write_bytes(b"x" * size)
    corpus = CorpusConfig(inputs=tuple(map(str, sources)), held_out=0.25)
    study = replace(demo(), corpus=corpus, audit=None)
    text = (100_000 * 0.88 + 20_000 * 2.69 + 30_000 * 0.94) * 0.75
    assert estimated_length(study).tokens == round(text / BYTES_PER_TOKEN)


def test_planted_passages_count_as_often_as_they_stand() -> None:
    once = override(demo(), ["corpus.probes.repeats=0,1"])
    often = override(demo(), ["corpus.probes.repeats=0,11"])
    more = estimated_length(often).tokens - estimated_length(once).tokens
    assert more == pytest.approx(10 * 4 * 1050 / BYTES_PER_TOKEN, abs=1)


def test_a_packed_corpus_is_counted_and_not_guessed(tmp_path: Path) -> None:
    _packed(tmp_path / "run", demo(), 10_001)
    length = corpus_length(demo(), tmp_path / "run")
    assert length.tokens == 10_001
    assert length.source.startswith("10,001 tokens packed in ")
    assert length.sequences(1000) == 10
    assert length.sequences(10_000) == 1
    assert length.sequences(10_001) == 0
    again = override(demo(), ["pretrain.seed=3"])
    assert corpus_length(again, tmp_path / "run").tokens == 10_001


@pytest.mark.parametrize(
    "changes",
    [
        ["corpus.seed=1"],
        ["tokenizer.vocab_size=5000", "pretrain.model.vocab_size=5000"],
        ["pack.seed=1"],
    ],
)
def test_a_run_with_another_corpus_is_not_counted(tmp_path: Path, changes: list[str]) -> None:
    _packed(tmp_path / "run", demo(), 10_001)
    other = override(demo(), changes)
    assert corpus_length(other, tmp_path / "run") == estimated_length(other)


def test_a_file_that_is_not_there_or_not_known_is_named(tmp_path: Path) -> None:
    absent = replace(demo(), corpus=replace(demo().corpus, inputs=("absent.jsonl",)))
    with pytest.raises(DataError, match=r"absent\.jsonl does not exist"):
        estimated_length(absent)
    (tmp_path / "page.pdf").write_bytes(gzip.compress(b""))
    page = str(tmp_path / "page.pdf")
    with pytest.raises(DataError, match="has an unknown file format"):
        estimated_length(replace(demo(), corpus=replace(demo().corpus, inputs=(page,))))


@pytest.mark.parametrize("text", ["{}", "[]", '{"splits": {"train": {"tokens": "many"}}}'])
def test_a_manifest_that_says_nothing_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match="has no number of tokens"):
        packed_length(tmp_path)
