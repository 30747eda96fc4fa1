"""A newer word over a finished corpus: what goes, where it stood, and that nothing else moves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stamm.base.errors import DataError
from stamm.corpus.config import (
    CorpusConfig,
    PackConfig,
    ReplayConfig,
    TokenizeConfig,
    TokenizerConfig,
)
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.deletions import read_deletions
from stamm.corpus.pack import PackedSplit
from stamm.corpus.packing import pack
from stamm.corpus.replay import replay
from stamm.corpus.retaking import retake
from stamm.corpus.tables import read_parts, read_rows
from stamm.corpus.tokenizer import train_tokenizer_on
from stamm.runs.execution import LocalWork
from stamm.runs.job import Workspace
from tests.unit.small_corpus import build_corpus, pack_corpus

OPEN = ConsentConfig(unknown_host="allow")
Row = dict[str, Any]


def rows() -> list[Row]:
    made = [
        {
            "text": f"Page {n} of site {n % 5} tells of {n * n} rivers and {n * 7} stones.",
            "url": f"https://site{n % 5}.example/page/{n}",
            "language": "deu_Latn" if n % 3 else "eng_Latn",
        }
        for n in range(40)
    ]
    # The same text at another address: one of the two is dropped as a duplicate.
    return [*made, {**made[7], "url": "https://mirror.example/7"}]


class Finished:
    """A corpus that is finished, and what replays it."""

    def __init__(self, root: Path, write: Callable[..., str]) -> None:
        self.root = root
        self.write = write
        self.run = root / "run"
        self.build(self.run, rows())

    def build(self, run: Path, documents: list[Row]) -> None:
        run.mkdir()
        halves = [self.write(*documents[i::2], name=f"{run.name}{i}.jsonl") for i in range(2)]
        build_corpus(CorpusConfig(inputs=tuple(halves), consent=OPEN, held_out=0.0), run)
        (run / "tokenizer").mkdir()
        texts = [row["text"] for row in rows()]
        trained = train_tokenizer_on(TokenizerConfig(vocab_size=345), texts)
        (run / "tokenizer" / "tokenizer.json").write_text(trained, encoding="utf-8")
        pack_corpus(PackConfig(shard_tokens=300), run)

    def replay(self, workers: int = 1, **words: str) -> Path:
        files: dict[str, tuple[str, ...]] = {}
        for role, text in words.items():
            (self.root / f"{role}.txt").write_text(text)
            files[role] = (str(self.root / f"{role}.txt"),)
        again = self.root / f"again{workers}"
        execution = LocalWork(workers=workers)
        there = {name: self.run / name for name in ("corpus", "tokens", "pack")}
        for name in there:
            (again / name).mkdir(parents=True, exist_ok=True)
        replay(
            ReplayConfig(**files),  # type: ignore[arg-type]
            Workspace(
                folder=again / "corpus",
                inputs={name: there[name] for name in ("corpus", "pack")},
                execution=execution,
            ),
        )
        inputs = {"corpus": again / "corpus", "tokens": there["tokens"]}
        place = Workspace(folder=again / "tokens", inputs=inputs, execution=execution)
        retake(TokenizeConfig(), place)
        inputs = {"tokens": again / "tokens"}
        place = Workspace(folder=again / "pack", inputs=inputs, execution=execution)
        pack(PackConfig(shard_tokens=300), place)
        return again


@pytest.fixture
def finished(tmp_path: Path, write_jsonl: Callable[..., str]) -> Finished:
    return Finished(tmp_path, write_jsonl)


def left(folder: Path) -> set[str]:
    return {row["url"] for row in read_parts(folder / "corpus", "documents")}


def withdrawn(folder: Path) -> dict[str, Row]:
    return {row["url"]: row for row in read_rows(folder / "corpus" / "withdrawn.parquet")}


def snapshot(domain: str, text: str, status: int = 200) -> str:
    row = {
        "domain": domain,
        "url": f"https://{domain}/robots.txt",
        "status": status,
        "fetched": "2026-11-01",
        "text": text,
    }
    return json.dumps(row) + "\n"


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
    found.verify()


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


def test_a_request_may_hold_what_is_invisible(tmp_path: Path) -> None:
    path = tmp_path / "requests.txt"
    path.write_text("https://a.example/\u200cpage\u00ad\n", encoding="utf-8")
    assert read_deletions(path).rule("https://a.example/page", "0" * 32) == "requests.txt, line 1"


def test_nothing_left_is_told(finished: Finished) -> None:
    domains = "".join(f"site{n}.example\n" for n in range(5)) + "mirror.example\n"
    with pytest.raises(DataError, match="every document was withdrawn"):
        finished.replay(domains=domains)


@pytest.mark.parametrize(
    "line", ["John Doe", "ftp", "sha256:12", "x" * 10_000, "\x1b[31m", "https:/one.slash"]
)
def test_a_line_that_is_no_request_is_told(tmp_path: Path, line: str) -> None:
    path = tmp_path / "requests.txt"
    path.write_text(f"https://good.example/\n{line}\n")
    with pytest.raises(DataError, match=r"is no request for deletion .*line 2") as error:
        read_deletions(path)
    assert "\x1b" not in str(error.value)
