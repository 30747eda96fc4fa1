"""A passage is traced to the documents that have runs of its tokens, exactly, and to no others."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stamm.base.errors import ConfigError, DataError, StammError
from stamm.base.files import sha256_file, write_json
from stamm.cli.main import main
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.shards import write_shard
from stamm.pretrain import trace_order, trace_passage
from stamm.pretrain.trace import trace
from stamm.pretrain.trace_passage import _longest_run, _text, find_places
from stamm.tokenizer.tokenizer import Tokenizer
from tests.unit.pretrain.test_trace import write_arm
from tests.unit.untrained_run import untrained_run


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("passages") / "run"
    root.mkdir()
    inputs = untrained_run(root)
    arm = root / "arms" / "xielu"
    arm.mkdir(parents=True)
    inputs["model"].rename(arm / "model")
    write_arm(arm, pack={"path": "../../pack", "sha256": sha256_file(root / "pack/manifest.json")})
    return arm


def tokens_of(arm: Path) -> tuple[PackedSplit, Tokenizer, list[dict[str, Any]]]:
    root = arm.parent.parent
    split = PackedSplit.open(root / "pack", "train")
    return split, Tokenizer.load(root / "tokenizer"), split.documents().to_pylist()


def packed(folder: Path, documents: list[list[int]], vocabulary: int) -> Path:
    """A packed train split of these tokens."""
    write_shard(folder / "train-00000", (np.array(tokens) for tokens in documents), 8)
    count = sum(map(len, documents))
    shards = [{"name": "train-00000", "tokens": count, "sha256": {}}]
    splits = {"train": {"documents": len(documents), "tokens": count, "shards": shards}}
    write_json(folder / "manifest.json", {"schema": 2, "vocabulary": vocabulary, "splits": splits})
    return folder


@pytest.mark.parametrize("seed", range(20))
def test_places_and_runs_are_those_of_a_search_of_every_place(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few ids, so that runs are long and overlap; pieces are shorter than runs."""
    monkeypatch.setattr(trace_passage, "_PIECE", 1 + seed)
    draw, ids = random.Random(seed), 2 + seed % 4
    stream = [draw.randrange(ids) for _ in range(400)]
    passage = [draw.randrange(ids) for _ in range(draw.randrange(12, 40))]
    shortest = draw.randrange(1, 9)
    if seed % 2:
        stream[100:100] = passage
    pack = packed(tmp_path, [stream], ids)
    grams = {tuple(passage[n : n + shortest]) for n in range(len(passage) - shortest + 1)}
    held = [n for n in range(len(stream)) if tuple(stream[n : n + shortest]) in grams]
    places = find_places(pack, tuple(passage), shortest)
    inside = [
        n
        for a, b in zip(places.begins, places.ends, strict=True)
        for n in range(a, b - shortest + 1)
    ]
    assert inside == held
    there = {tuple(stream[n : n + shortest]) for n in held}
    covered = {n + k for n in range(len(passage)) for k in range(shortest)
               if tuple(passage[n : n + shortest]) in there}  # fmt: skip
    assert places.covered == len(covered)
    split, text = PackedSplit.open(pack, "train"), _text(np.array(passage))
    for begin, end in zip(places.begins.tolist(), places.ends.tolist(), strict=True):
        wanted = max(
            length for length in range(1, len(passage) + 1) for n in range(begin, end - length + 1)
            if _text(np.array(stream[n : n + length])) in text
        )  # fmt: skip
        run = _longest_run(split, begin, end, text, shortest - 1)
        assert run is not None and run[0] == wanted
        length, first, place = run
        assert begin <= first and first + length <= end
        assert stream[first : first + length] == passage[place : place + length]
        assert _longest_run(split, begin, end, text, wanted) is None


def test_a_passage_of_the_corpus_is_found_where_it_is_and_when_it_was_read(arm: Path) -> None:
    split, tokenizer, documents = tokens_of(arm)
    row = max(documents, key=lambda row: row["stop"] - row["start"])
    begin = row["start"] + 3
    text = tokenizer.decode(split.read(begin, begin + 20).tolist())
    ids = tokenizer.encode(text)
    (traced,) = trace(arm, passage=text, limit=100).arms
    assert traced.passage is not None
    assert (traced.passage.tokens, traced.passage.covered) == (len(ids), len(ids))
    document = traced.documents[0]
    assert document.run is not None
    assert (document.run.start, document.run.stop, document.run.text) == (0, len(ids), text)
    copies = [d for d in documents if d["document_id"] == document.document_id]
    assert document.run.occurrences == len(copies)
    wanted = []
    for copy in copies:
        start = copy["start"] + document.run.document_start
        assert split.read(start, start + len(ids)).tolist() == ids
        (there,) = trace(arm, tokens=f"{start}-{start + len(ids) - 1}").arms
        wanted += [(r.position, r.step, r.learned) for r in there.documents[0].readings]
    assert [(r.position, r.step, r.learned) for r in document.readings] == sorted(wanted)
    lengths = [d.run.stop - d.run.start for d in traced.documents if d.run]
    assert lengths == sorted(lengths, reverse=True) and len(lengths) == traced.count
    first = trace(arm, passage=text, limit=1).arms[0]
    assert first.documents == traced.documents[:1] and first.count == traced.count


def test_a_passage_that_no_document_has_is_not_found(
    arm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = "zq" * 30
    (tmp_path / "passage.txt").write_text(absent, encoding="utf-8")
    (traced,) = trace(arm, passage=f"@{tmp_path / 'passage.txt'}").arms
    assert traced.passage is not None and traced.passage.covered == 0
    assert not (traced.count or traced.documents or traced.contains)
    assert any("paraphrases" in remark for remark in traced.remarks)
    assert main(["trace", str(arm), f"passage={absent}"]) == 1
    assert "0 documents, none of them read" in capsys.readouterr().out


def test_the_continuation_is_looked_for_and_the_loss_is_of_the_passage_alone(arm: Path) -> None:
    split, tokenizer, documents = tokens_of(arm)
    row = documents[0]
    text = tokenizer.decode(split.read(row["start"] + 1, row["stop"] - 1).tolist())
    whole = trace(arm, document=row["document_id"], loss=True).arms[0].documents[0]
    (traced,) = trace(arm, passage=text, new_tokens=7, loss=True).arms
    passage = traced.passage
    assert passage is not None and passage.nats is not None and whole.nats is not None
    assert passage.tokens == len(tokenizer.encode(text)) and passage.continued == 7
    assert passage.continuation
    assert passage.tokens == row["stop"] - row["start"] - 2
    assert 0 < whole.nats - passage.nats < 20  # the loss of its </s>


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "the passage is empty"),
        (b" \n\t", "the passage is empty"),
        (b"\xff\xfe\xfa", "is not UTF-8"),
        (b"a" * (2**20 + 1), "is over 1 MiB"),
        ("é".encode() * 2**20, "is over 1 MiB"),
        (b"a", "fewer than shortest = 8"),
        (b"ab1 " * 2**17, "more than 16,384"),
    ],
)
def test_a_hostile_passage_is_one_line(
    arm: Path, tmp_path: Path, content: bytes, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.txt").write_bytes(content)
    assert main(["trace", str(arm), f"passage=@{tmp_path / 'p.txt'}"]) in (1, 2)
    said = capsys.readouterr()
    assert what in said.err and said.err.count("\n") == 1 and not said.out


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (("passage=",), "one of them must be given"),
        (("passage=@none.txt",), "cannot be read"),
        (("passage=some words of a text", "step=1"), "one of them must be given"),
        (("step=1", "new_tokens=3"), "new_tokens is set"),
        (("step=1", "forgotten=x"), "forgotten is set"),
        (("passage=some words of a longer text", "new_tokens=200"), "max_context"),
        (("passage=some words of a longer text", "shortest=0"), "shortest"),
        (("passage=some words of a longer text", "forgotten=nowhere"), "not a folder"),
        (("passage=\udcff some words of a longer text",), "not UTF-8"),
    ],
)
def test_what_cannot_be_asked_is_told(arm: Path, changes: tuple[str, ...], what: str) -> None:
    with pytest.raises(StammError, match=what):
        trace(arm, *changes)


def test_a_run_is_not_a_branch_of_itself(arm: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run that forgot documents"):
        trace(arm, passage="some words of a longer text", forgotten=(str(arm),))


def test_a_passage_that_is_everywhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_passage, "_MOST_PLACES", 50)
    pack = packed(tmp_path, [[3] * 100], 5)
    with pytest.raises(DataError, match="more than 50 places"):
        find_places(pack, (3,) * 10, 4)


def test_a_release_shows_no_overlap_and_no_text_of_its_corpus(arm: Path, tmp_path: Path) -> None:
    split, tokenizer, documents = tokens_of(arm)
    begin = documents[0]["start"] + 2
    text = tokenizer.decode(split.read(begin, begin + 20).tolist())
    release = tmp_path / "release" / "run"
    shutil.copytree(
        arm.parent.parent, release, ignore=shutil.ignore_patterns("train-*", "documents-*")
    )
    write_json(tmp_path / "release" / "release.json", {})
    (traced,) = trace(tmp_path / "release", passage=text, loss=True).arms
    assert traced.passage is not None and traced.passage.nats is not None
    assert traced.passage.covered is None and traced.documents == ()
    assert any("overlaps" in remark for remark in traced.remarks)


def test_a_corpus_that_was_packed_again_is_read_again(tmp_path: Path) -> None:
    passage = (1, 2, 3, 4)
    assert find_places(packed(tmp_path, [[0, *passage, 0]], 6), passage, 4).begins.tolist() == [1]
    again = packed(tmp_path, [[5, 5, 5, *passage, 0, 0]], 6)
    assert find_places(again, passage, 4).begins.tolist() == [3]


def test_an_order_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / trace_order.ORDER
    for sizes in ([4, 6], [7, 9, 1]):
        columns = {name: pa.nulls(len(sizes), pa.string()) for name in trace_order.COLUMNS}
        pq.write_table(pa.table(columns | {"tokens": pa.array(sizes)}), path)
        assert trace_order._documents(path)[1].tolist() == [0, *np.cumsum(sizes)]
