"""Encoded answers: written and read back, and refused when a file is not the one that was written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from stamm.align.data.encoded import ENCODED_SCHEMA, EncodedAnswer, EncodedExamples, SplitWriter
from stamm.align.training.chat_dataset import ChatWindows
from stamm.base.errors import DataError
from stamm.base.files import sha256_file
from stamm.corpus.tables import RowGroups
from tests.unit.align.prepared import chat, prepare

ROWS = [chat(f"{k}+1?", f"{k + 1}", id=str(k)) for k in range(5)]


def test_answers_are_a_sequence(tmp_path: Path) -> None:
    answers = EncodedExamples.open(prepare(tmp_path, ROWS)).answers
    assert len(answers) == 5
    assert [answer.id for answer in answers] == list("01234")
    assert answers[-1] == answers[4] == answers[3:][1]
    assert all(type(each) is int for each in answers[0].ids)
    assert all(type(each) is bool for each in answers[0].supervised)
    with pytest.raises(IndexError):
        answers[5]


def test_an_empty_split_can_be_read(tmp_path: Path) -> None:
    held_out = EncodedExamples.open(prepare(tmp_path, ROWS), "held_out")
    assert len(held_out.answers) == 0
    assert list(held_out.answers) == []


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stamm.corpus.tables._GROUP_LETTERS", 32_000)
    long = EncodedAnswer(
        example=0, role="chat", ids=[70_000] * 1000, supervised=[True] * 1000, prompt_tokens=1
    )
    path = tmp_path / "examples.parquet"
    with SplitWriter(path) as writer:
        for number in range(16):
            writer.add([long], "f", number)
    assert pq.ParquetFile(path).num_row_groups == 3  # 7 + 7 + 2 rows of 5,000 bytes


def test_a_changed_file_is_refused_with_both_hashes(tmp_path: Path) -> None:
    out = prepare(tmp_path, ROWS)
    stated = EncodedExamples.open(out).sha256
    path = out / "examples.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(DataError, match=f"{sha256_file(path)}.*{stated}"):
        EncodedExamples.open(out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["ids"]), "no column 'ids'"),
        (lambda t: t.set_column(2, "ids", pa.array([["a"]] * 5)), "other types"),
        (
            lambda t: t.set_column(3, "supervised", pa.array([[True]] * 5, pa.list_(pa.bool_()))),
            "unequal numbers",
        ),
        (
            lambda t: t.set_column(2, "ids", pa.array([None] * 5, pa.list_(pa.int32()))),
            "without ids",
        ),
    ],
)
def test_a_forged_file_is_refused(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    out = prepare(tmp_path, ROWS)
    path, summary = out / "examples.parquet", out / "summary.json"
    pq.write_table(change(pq.read_table(path)), path)
    stated = json.loads(summary.read_text())
    stated["splits"]["train"]["sha256"] = sha256_file(path)
    summary.write_text(json.dumps(stated))
    with pytest.raises(DataError, match=message):
        EncodedExamples.open(out)


def test_a_missing_folder_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="summary"):
        EncodedExamples.open(tmp_path)
    out = prepare(tmp_path, ROWS)
    (out / "held_out.parquet").unlink()
    with pytest.raises(DataError, match=r"held_out.parquet does not exist"):
        EncodedExamples.open(out, "held_out")


def test_the_file_has_the_columns_of_the_schema(tmp_path: Path) -> None:
    assert pq.read_schema(prepare(tmp_path, ROWS) / "examples.parquet").equals(ENCODED_SCHEMA)


def test_few_row_groups_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training sequences of many conversations: memory is that of 64 row groups, whatever the file."""
    monkeypatch.setattr("stamm.align.data.encoded._GROUP_ROWS", 2)
    out = prepare(tmp_path, [chat(f"{k} plus 1?", f"{k + 1}") for k in range(400)], context=64)
    read: list[int] = []
    real = RowGroups._read
    monkeypatch.setattr(RowGroups, "_read", lambda self, n: read.append(n) or real(self, n))
    data = EncodedExamples.open(out)
    assert read == list(range(200))
    sequences = ChatWindows(data.answers, 64, seed=1, pad=0)
    held = ChatWindows(list(data.answers), 64, seed=1, pad=0)
    read.clear()
    whole, same = (each.batch(0, each.per_epoch) for each in (sequences, held))
    assert sequences.num_tokens(0, 9) == held.num_tokens(0, 9)
    for name in ("tokens_BT", "target_BT", "document_BT", "keep_BT"):
        assert torch.equal(getattr(whole, name), getattr(same, name))
    assert len(read) >= 200
    assert len(data.answers._rows._groups) == 64
