"""The store of replies: resumed, verified, copied from earlier runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from stamm.align.judge.judge import AnswerStore, JudgeReply, replies_of
from stamm.base.errors import DataError

SEVEN = JudgeReply({"7": 0.75, "8": 0.25}, "7", 120, 1)
PROSE = JudgeReply({}, "I think \u201cseven\u201d\n", 120, 4)


def test_replies_come_back_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with AnswerStore(path) as store:
        assert store.get("a") is None
        store.add("b", PROSE)
        store.add("a", SEVEN)
        store.add("a", PROSE)  # the first reply stays
    with AnswerStore(path) as store:
        assert (store.get("a"), store.get("b")) == (SEVEN, PROSE)
        assert store.replies == (SEVEN, PROSE)
    assert replies_of(path) == [PROSE, SEVEN]
    assert SEVEN.mean() == 7.25


def test_a_partial_last_line_is_cut_and_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with AnswerStore(path) as store:
        store.add("a", SEVEN)
        store.add("b", PROSE)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with AnswerStore(path) as store:
        assert store.get("a") == SEVEN
        assert store.get("b") is None
        store.add("b", PROSE)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("old", "new"), [(b"0.75", b"0.95"), (b'"a"', b'"c"'), (b"{", b"["), (b'"check"', b'"chick"')]
)
def test_a_changed_line_is_refused_with_its_number(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "requests.jsonl"
    with AnswerStore(path) as store:
        store.add("b", PROSE)
        store.add("a", SEVEN)
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second.replace(old, new, 1))
    with pytest.raises(DataError, match="line 2"):
        AnswerStore(path)


def test_replies_of_an_earlier_run_are_copied(tmp_path: Path) -> None:
    with AnswerStore(tmp_path / "old.jsonl") as store:
        store.add("a", SEVEN)
        store.add("unused", PROSE)
    with AnswerStore(tmp_path / "new.jsonl", (tmp_path / "old.jsonl",)) as store:
        assert store.get("a") == SEVEN
    assert replies_of(tmp_path / "new.jsonl") == [SEVEN]


def test_sorted_files_do_not_depend_on_the_order_of_replies(tmp_path: Path) -> None:
    contents = set()
    for name, order in (("one", "abc"), ("two", "cab")):
        with AnswerStore(tmp_path / name) as store:
            for key in order:
                store.add(key, JudgeReply({"1": 0.5}, key))
            store.sort()
        contents.add((tmp_path / name).read_bytes())
    assert len(contents) == 1
