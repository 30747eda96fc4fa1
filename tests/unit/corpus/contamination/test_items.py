"""Evaluation sets as JSON lines: read whole, or refused with the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stamm.base.errors import DataError
from stamm.corpus.contamination.config import EvaluationSet
from stamm.corpus.contamination.items import LONGEST_ID, Item, read_items
from stamm.corpus.limits import ReadLimits


def read(folder: Path, *lines: Any, **settings: Any) -> list[Item]:
    path = folder / "set.jsonl"
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(raw))
    evaluation = EvaluationSet(name="quiz", file="set.jsonl", **settings)
    return list(read_items(evaluation, path, ReadLimits(line_bytes=10_000)))


def test_items_carry_their_texts_and_names(tmp_path: Path) -> None:
    rows = [
        {"id": 7, "good": "a", "bad": "b", "more": 1},
        b"",
        {"id": "x\x1b[0m", "good": "", "bad": "\ud800"},
    ]
    found = read(tmp_path, *rows, fields=("good", "bad"))
    assert found == [
        Item(set_name="quiz", item_id="7", texts=("a", "b")),
        Item(set_name="quiz", item_id="x[0m", texts=("", "\ufffd")),
    ]


def test_without_a_name_the_line_number_serves(tmp_path: Path) -> None:
    found = read(tmp_path, {"text": "a"}, b" ", {"text": "b"}, id="")
    assert [one.item_id for one in found] == ["1", "3"]


def test_a_long_name_is_cut(tmp_path: Path) -> None:
    (found,) = read(tmp_path, {"text": "a", "id": "n" * 5000})
    assert found.item_id == "n" * LONGEST_ID


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{", "not JSON"),
        (b'{"text": "\xff"}', "not JSON"),
        (b"[" * 9000, "not JSON"),
        (b"[]", "is a list, not an object"),
        ({"id": 1, "txt": "a"}, "has no 'text' .line 2 of set.jsonl.*Did you mean 'txt'"),
        ({"id": 1, "text": ["a"]}, "'text' is a list, not a string"),
        ({"id": None, "text": "a"}, "'id' is a NoneType, not a string or integer"),
        ({"text": "a"}, "has no 'id'"),
        ({"id": 1, "text": "a" * 20_000}, "limit 10000"),
    ],
)
def test_a_line_that_cannot_be_used_is_refused(tmp_path: Path, line: Any, told: str) -> None:
    with pytest.raises(DataError, match=told):
        read(tmp_path, {"id": 0, "text": "fine"}, line)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl.gz"
    path.write_bytes(b"\x1f\x8b not gzip")
    with pytest.raises(DataError, match="is cut"):
        list(read_items(EvaluationSet(name="q", file="f"), path, ReadLimits()))


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_set_without_items_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "set.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"evaluation set 'q' has no item .*f"):
        list(read_items(EvaluationSet(name="q", file="f"), path, ReadLimits()))
