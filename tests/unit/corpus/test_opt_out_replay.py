"""A newer word over a finished corpus: what goes, where it stood, and that nothing else moves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from finished_corpus import Finished, left, rows, snapshot, withdrawn

from stamm.base.errors import DataError
from stamm.corpus.ledger import LATER_COLUMNS
from stamm.corpus.lookup import look_up
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.shuffle import verify
from stamm.corpus.tables import read_parts, read_rows


@pytest.fixture
def finished(tmp_path: Path, write_jsonl: Callable[..., str]) -> Finished:
    return Finished(tmp_path, write_jsonl)


def test_newer_robots_take_out_what_they_refuse_and_nothing_else(finished: Finished) -> None:
    robots = snapshot("site1.example", "User-agent: GPTBot\nDisallow: /page/1\n")
    robots += snapshot("site2.example", "", status=503) + snapshot("site3.example", "", 404)
    folder = finished.replay(robots=robots)
    gone = withdrawn(folder)
    assert set(gone) == {
        row["url"] for row in rows() if row["url"].startswith("https://site1.example/page/1")
    }
    for row in gone.values():
        assert row["reason"] == "robots_disallow"
        assert row["rule"].startswith("Disallow: /page/1 (group gptbot)")
        assert (row["agent"], row["read"]) == ("GPTBot", "2026-11-01")
    assert left(folder) == left(finished.run) - set(gone)
    summary = json.loads((folder / "corpus" / "summary.json").read_text())
    assert summary["withdrawn_by_reason"] == {"robots_disallow": len(gone)}
    assert summary["n_in"] == len(rows()) == summary["n_kept"] + summary["n_dropped"]
    languages = summary["withdrawn_by_language"]
    assert sum(entry["withdrawn"] for entry in languages.values()) == len(gone)
    for name, entry in languages.items():
        lost = sum(row["bytes"] for row in gone.values() if row["language"] == name)
        assert entry["withdrawn_bytes"] == lost
        assert entry["share"] == round(lost / entry["bytes"], 6)


def test_a_corpus_of_an_earlier_version_is_replayed_and_looked_up(finished: Finished) -> None:
    for path in (finished.run / "corpus").glob("ledger-*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns(list(LATER_COLUMNS)), path)
    (row,) = look_up(finished.run, {"url": "https://site1.example/page/1"}, 5).rows
    assert row["letters_lost"] == -1
    folder = finished.replay(domains="site4.example\n")
    ledger = list(read_parts(folder / "corpus", "ledger"))
    assert {row["letters_lost"] for row in ledger} == {-1}
    assert sum(row["decision"] == "kept" for row in ledger) == len(left(folder))


def test_token_ranges_hold_the_withdrawn_texts_and_nothing_else(finished: Finished) -> None:
    folder = finished.replay(domains="site4.example\n")
    gone = {row["document_id"] for row in withdrawn(folder).values()}
    assert len(gone) == 8
    ranges = list(read_rows(folder / "corpus" / "token_ranges.parquet"))
    assert {row["document_id"] for row in ranges} == gone
    before = PackedSplit.open(finished.run / "pack", "train")
    stands = {
        (row["document_id"], row["occurrence"]): (row["start"], row["stop"])
        for row in before.documents().to_pylist()
    }
    for row in ranges:
        assert stands[row["document_id"], row["occurrence"]] == (row["start"], row["stop"])
    summary = json.loads((folder / "corpus" / "summary.json").read_text())
    assert summary["withdrawn_tokens"] == {"train": sum(r["stop"] - r["start"] for r in ranges)}


def test_what_is_left_is_packed_as_if_it_had_never_been_there(finished: Finished) -> None:
    folder = finished.replay(domains="site4.example\n")
    fresh = finished.root / "fresh"
    finished.build(fresh, [row for row in rows() if "site4" not in row["url"]])
    found, expected = (PackedSplit.open(f / "pack", "train") for f in (folder, fresh))
    assert found.read(0, found.num_tokens).tolist() == (
        expected.read(0, expected.num_tokens).tolist()
    )
    assert found.documents().to_pylist() == expected.documents().to_pylist()
    verify(found)


def test_requests_name_addresses_identifiers_and_hashes(finished: Finished) -> None:
    documents = {row["url"]: row for row in read_parts(finished.run / "corpus", "documents")}
    urls = [f"https://site{n % 5}.example/page/{n}" for n in (1, 2, 3)]
    hashed = hashlib.sha256(urls[2].encode()).hexdigest()
    lines = ["# requests", "", urls[0], documents[urls[1]]["document_id"], f"SHA256:{hashed}"]
    gone = withdrawn(finished.replay(deletions="\n".join(lines)))
    assert set(gone) == set(urls)
    assert [gone[url]["rule"] for url in urls] == [
        f"deletions.txt, line {number}" for number in (3, 4, 5)
    ]


def test_a_request_reaches_the_same_text_at_another_address(finished: Finished) -> None:
    pair = {"https://site2.example/page/7", "https://mirror.example/7"}
    (dropped,) = pair - left(finished.run)
    (kept,) = pair & left(finished.run)
    gone = withdrawn(finished.replay(deletions=dropped))
    assert set(gone) == {kept}
    assert gone[kept]["rule"] == "deletions.txt, line 1, of which this is the same text"


def test_two_workers_leave_the_same_bytes_and_the_old_run_is_untouched(finished: Finished) -> None:
    def files(folder: Path) -> dict[str, bytes]:
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in found}

    before = files(finished.run)
    one = files(finished.replay(domains="site4.example"))
    two = files(finished.replay(workers=2, domains="site4.example"))
    assert one == two
    assert files(finished.run) == before


def test_a_list_that_grew_is_read_again_by_the_same_process(finished: Finished) -> None:
    urls = [f"https://site{n % 5}.example/page/{n}" for n in (1, 2)]
    assert set(withdrawn(finished.replay(deletions=urls[0]))) == {urls[0]}
    assert set(withdrawn(finished.replay(deletions="\n".join(urls)))) == set(urls)


def test_nothing_left_is_told(finished: Finished) -> None:
    domains = "".join(f"site{n}.example\n" for n in range(5)) + "mirror.example\n"
    with pytest.raises(DataError, match="every document was withdrawn"):
        finished.replay(domains=domains)
