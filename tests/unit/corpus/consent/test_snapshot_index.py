"""Index of snapshots by host: equal answers, built once, never partial, never out of date."""

from __future__ import annotations

import json
import sqlite3
import tracemalloc
from pathlib import Path

import pytest

from stamm.base.errors import DataError, RunError
from stamm.corpus.consent import snapshot as index_module
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.consent.hosts import www_variant
from stamm.corpus.consent.policies import load_policies
from stamm.corpus.consent.snapshot import (
    INDEX,
    cache_by_host,
    index_snapshots,
    latest_entry,
    open_snapshot,
)
from stamm.corpus.limits import ReadLimits

LIMITS = ReadLimits()
NO = "User-agent: *\nDisallow: /"


def row(host: str, text: str = NO, **facts: object) -> dict[str, object]:
    site = {"url": f"https://{host}/robots.txt", "status": 200, "fetched": "2026-01-01"}
    return {**site, "text": text, **facts}


def snapshot(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


@pytest.fixture(autouse=True)
def _every_snapshot_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_SMALL_BYTES", 0)


def test_an_answer_comes_back_as_it_was_written(tmp_path: Path) -> None:
    odd = "User-agent: \udcff*\0\nDisallow: /ü\U0001f600\ud800"
    path = snapshot(
        tmp_path / "a.jsonl",
        row("a.org", odd),
        row("b.org", "[]", kind="tdmrep", status=404, error="", domain="b.org"),
        row("b.org", "", status=0, error="time_out"),
    )
    found = open_snapshot(path, LIMITS)
    answer = found.answer("robots", "a.org")
    assert answer is not None
    assert (answer.text, answer.url, answer.fetched) == (
        odd, "https://a.org/robots.txt", "2026-01-01",
    )  # fmt: skip
    refused = found.answer("robots", "b.org")
    assert refused is not None and refused.state == "time_out"
    other = found.answer("tdmrep", "b.org")
    assert other is not None and other.state == "absent"
    assert found.answer("ai_txt", "b.org") is None
    assert found.answer("robots", "c.org") is None
    assert found.answer("robots", "' OR 1=1 --") is None


@pytest.mark.parametrize("small", [0, 2**20])
def test_of_several_answers_the_last_that_is_no_redirect_counts(
    tmp_path: Path, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_SMALL_BYTES", small)
    said = [
        row("a.org", "old", fetched="2019-07"),
        row("a.org", "new", fetched="2024-01-02"),
        row("a.org", "moved", fetched="2024-01-02", status=301),
        row("a.org", "older", fetched="2018"),
        row("b.org", "first"),
        row("b.org", "second"),
    ]
    together = [open_snapshot(snapshot(tmp_path / "all.jsonl", *said), LIMITS)]
    apart = [
        open_snapshot(snapshot(tmp_path / f"{n}.jsonl", each), LIMITS)
        for n, each in enumerate(said)
    ]
    for shelves in (together, apart):
        find = latest_entry(shelves, "robots")
        assert [a.text for host in ("a.org", "b.org") if (a := find(host))] == ["new", "second"]


def test_an_index_is_made_once_and_again_when_the_content_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = snapshot(tmp_path / "a.jsonl", row("a.org", "one"))
    open_snapshot(path, LIMITS)
    index = tmp_path / ("a.jsonl" + INDEX)
    made = index.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(index_module, "_build", lambda *_: pytest.fail("made again"))
        assert open_snapshot(path, LIMITS).answer("robots", "a.org") is not None
    snapshot(path, row("a.org", "two"))
    old = index_module.SnapshotIndex(index_module._read_only(index), "old")
    answer = open_snapshot(path, LIMITS).answer("robots", "a.org")
    assert answer is not None and answer.text == "two"
    # Who had opened the old one still reads the old one.
    assert (before := old.answer("robots", "a.org")) is not None and before.text == "one"
    monkeypatch.setattr(index_module, "code_hash", lambda _: "another")
    open_snapshot(path, LIMITS)
    assert index.read_bytes() != made
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.jsonl", "a.jsonl" + INDEX]


@pytest.mark.parametrize(
    "content",
    [b"", b"no database", b"SQLite format 3\0" + bytes(4096), "cut", "view", "trigger"],
)
def test_what_is_no_index_of_this_snapshot_is_made_again(
    tmp_path: Path, content: bytes | str
) -> None:
    path = snapshot(tmp_path / "a.jsonl", row("a.org", "one"))
    open_snapshot(path, LIMITS)
    index = tmp_path / ("a.jsonl" + INDEX)
    if content == "cut":
        index.write_bytes(index.read_bytes()[:5000])
    elif isinstance(content, bytes):
        index.write_bytes(content)
    else:
        with sqlite3.connect(index) as database:
            database.execute(
                "CREATE VIEW another AS SELECT 1"
                if content == "view"
                else "CREATE TRIGGER t AFTER DELETE ON origin BEGIN SELECT 1; END"
            )
    answer = open_snapshot(path, LIMITS).answer("robots", "a.org")
    assert answer is not None and answer.text == "one"
    with sqlite3.connect(index) as database:
        kinds = database.execute("SELECT DISTINCT type FROM sqlite_master ORDER BY type").fetchall()
    assert kinds == [("index",), ("table",)]


def test_indexes_are_made_before_the_workers_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = snapshot(tmp_path / "a.jsonl", row("a.org", "one"))
    index_snapshots([path], LIMITS)
    monkeypatch.setattr(index_module, "_build", lambda *_: pytest.fail("made again"))
    assert open_snapshot(path, LIMITS).answer("robots", "a.org") is not None


def test_a_broken_snapshot_leaves_no_index(tmp_path: Path) -> None:
    path = snapshot(tmp_path / "a.jsonl", row("a.org"))
    path.write_text(path.read_text() + "{\n")
    with pytest.raises(DataError, match=r"a\.jsonl is not a snapshot of sites.*line 2"):
        open_snapshot(path, LIMITS)
    with pytest.raises(DataError, match="cannot read"):
        open_snapshot(tmp_path / "none.jsonl", LIMITS)
    assert [each.name for each in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_damaged_page_is_reported(tmp_path: Path) -> None:
    path = snapshot(tmp_path / "a.jsonl", *(row(f"h{n}.org", NO * 20) for n in range(500)))
    open_snapshot(path, LIMITS)
    index = tmp_path / ("a.jsonl" + INDEX)
    data = bytearray(index.read_bytes())
    data[8192:-4096] = b"\xff" * (len(data) - 12288)
    index.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.jsonl\.index cannot be read.*Delete it"):
        for n in range(500):
            open_snapshot(path, LIMITS).answer("robots", f"h{n}.org")


def test_a_folder_that_cannot_be_written_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(index_module, "_build", refuse)
    path = snapshot(tmp_path / "a.jsonl", row("a.org", "one"))
    answer = open_snapshot(path, LIMITS).answer("robots", "a.org")
    assert answer is not None and answer.text == "one"
    assert [each.name for each in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_full_disk_is_reported_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(index_module, "_fill", fill)
    path = snapshot(tmp_path / "a.jsonl", row("a.org", "one"))
    with pytest.raises(RunError, match=r"no space left to write .*a\.jsonl\.index"):
        open_snapshot(path, LIMITS)
    assert [each.name for each in tmp_path.iterdir()] == ["a.jsonl"]


def test_names_that_mean_something_in_an_address_of_a_database(tmp_path: Path) -> None:
    folder = tmp_path / "a?mode=memory&b#c %41 ü"
    folder.mkdir()
    path = snapshot(folder / "x?y#z.jsonl", row("a.org"))
    assert open_snapshot(path, LIMITS).answer("robots", "a.org") is not None
    assert len(list(folder.iterdir())) == 2


def test_memory_does_not_grow_with_hosts(tmp_path: Path) -> None:
    def peak(hosts: int) -> int:
        path = tmp_path / f"{hosts}.jsonl"
        with path.open("w") as out:
            for n in range(hosts):
                out.write(json.dumps(row(f"h{n}.org", f"{NO}{n}\n" * 100)) + "\n")
        tracemalloc.start()
        words = load_policies(ConsentConfig(), [path], {}, LIMITS)
        for n in range(0, hosts, hosts // 4):
            assert not words.decide(f"https://h{n}.org/{n}").allowed
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(100)
    assert peak(2000) < peak(400) + 1_000_000  # the texts of 1,600 hosts are 4 MB


def test_the_cache_is_bounded_and_forgets_the_least_recently_used() -> None:
    loaded: list[str] = []

    def load(host: str) -> tuple[str, int]:
        loaded.append(host)
        return host.upper(), len(host)

    find = cache_by_host(load, 2 * (2 + 256))
    assert [find(host)[0] for host in ("aa", "bb", "aa", "cc", "aa", "bb")] == [
        "AA", "BB", "AA", "CC", "AA", "BB",
    ]  # fmt: skip
    assert loaded == ["aa", "bb", "cc", "bb"]
    assert find("x" * 1000)[0] == "X" * 1000
    assert find("aa")[0] == "AA"
    assert loaded[-1] == "x" * 1000


def test_www_variant() -> None:
    assert (www_variant("a.org"), www_variant("www.a.org")) == ("www.a.org", "a.org")
