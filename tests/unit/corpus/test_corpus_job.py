"""The corpus step as a whole: numbers that add up, the same bytes twice, reasons for every drop."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpus_inputs import page, warc_response

from stamm.base.config import from_plain, override, to_plain
from stamm.base.errors import DataError
from stamm.base.files import sha256_file
from stamm.corpus.config import CorpusConfig, PackConfig, ProbesConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.inputs import DEMO_INPUTS, DEMO_PROBE_BOOKS, DEMO_ROBOTS, shipped_files
from stamm.corpus.ledger import REASONS
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.tables import read_parts
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.job import train_tokenizer
from stamm.runs.executors import LocalExecutor
from stamm.runs.job import Workspace
from tests.unit.small_corpus import build_corpus, pack_corpus

pytestmark = pytest.mark.slow  # builds the demo corpus

DEMO = CorpusConfig(
    inputs=DEMO_INPUTS,
    consent=ConsentConfig(robots=DEMO_ROBOTS, unknown_host="allow"),
    probes=ProbesConfig(books=DEMO_PROBE_BOOKS, passages_per_bucket=2),
)
OPEN = ConsentConfig(unknown_host="allow")
Built = tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demo")
    run_demo(root)
    return root


def run_demo(root: Path, execution: LocalExecutor | None = None) -> None:
    corpus = build_corpus(DEMO, root, execution)
    (root / "tokenizer").mkdir(exist_ok=True)
    train_tokenizer(
        TokenizerConfig(vocab_size=2048),
        Workspace(folder=root / "tokenizer", inputs={"corpus": corpus}),
    )
    pack_corpus(PackConfig(shard_tokens=400_000), root, execution)


def test_demo_counts_add_up(demo: Path) -> None:
    summary = json.loads((demo / "corpus" / "summary.json").read_text())
    ledger = list(read_parts(demo / "corpus", "ledger"))
    documents = list(read_parts(demo / "corpus", "documents"))
    inputs = [row for row in ledger if row["probe_id"] is None]
    assert summary["n_in"] == len(inputs) == summary["n_kept"] + summary["n_dropped"]
    assert summary["n_kept"] == sum(row["decision"] == "kept" for row in inputs)
    assert len(documents) == summary["n_kept"] + summary["n_probes"]
    assert summary["n_probes"] == 10
    dropped = Counter(row["reason"] for row in inputs if row["decision"] == "dropped")
    told = {name: entry["documents"] for name, entry in summary["dropped_by_reason"].items()}
    assert told == dict(dropped)
    assert set(dropped) <= set(REASONS)
    kept = [row for row in inputs if row["decision"] == "kept"]
    assert summary["bytes_kept"] == sum(row["bytes_out"] for row in kept)
    assert sum(entry["documents"] for entry in summary["by_split"].values()) == len(documents)


def test_demo_shows_every_kind_of_decision(demo: Path) -> None:
    summary = json.loads((demo / "corpus" / "summary.json").read_text())
    assert set(summary["dropped_by_reason"]) == {
        "robots_disallow",
        "robots_content_usage",
        "exact_duplicate",
        "near_duplicate",
        "header_noai",
        "tdm_reservation",
        "content_usage",
        "meta_noai",
    }
    assert summary["pii_replaced"]["email"] > 20
    assert summary["pii_replaced"]["ip"] > 0
    english = summary["kept_by_language"]["eng_Latn"]["bytes"]
    assert english / summary["bytes_kept"] < 0.35
    assert len(summary["kept_by_language"]) >= 24


def test_demo_ledger_tells_who_refused(demo: Path) -> None:
    rows = list(read_parts(demo / "corpus", "ledger"))
    refused = [r for r in rows if r["reason"] == "robots_disallow"]
    crawled = [r for r in refused if r["input_file"] != "package:pages.warc.gz"]
    assert {r["host"] for r in crawled} == {"github.com", "www.gutenberg.org"}
    assert len(refused) > len(crawled)  # by the robots.txt inside the archive
    for row in crawled:
        assert row["rule"].startswith("Disallow: /")
        assert row["agent"]
        assert row["robots_read"] == "2019-07"
        assert row["bytes_out"] == 0
    unknown = [r for r in rows if r["consent"] == "unknown_host"]
    assert all(r["robots_read"] == "" for r in unknown)
    duplicates = [r for r in rows if r["reason"] == "exact_duplicate"]
    kept = {r["document_id"] for r in rows if r["decision"] == "kept"}
    assert all(r["duplicate_of"] in kept for r in duplicates)


def test_demo_keeps_numbers_of_swiss_law(demo: Path) -> None:
    documents = list(read_parts(demo / "corpus", "documents"))
    assert any("172.220.111.3" in row["text"] for row in documents)
    assert not any("52.85.89." in row["text"] for row in documents)
    assert not any("inquiries18F@gsa.gov" in row["text"] for row in documents)


def test_demo_splits(demo: Path) -> None:
    documents = list(read_parts(demo / "corpus", "documents"))
    languages: dict[str, list[str]] = {}
    for row in documents:
        if row["probe_id"] is None:
            languages.setdefault(row["language"], []).append(row["split"])
    for splits in languages.values():
        assert ("held_out" in splits) == (len(splits) > 1)
        assert "train" in splits
    probes = [row for row in documents if row["probe_id"] is not None]
    assert {(r["repeat"], r["split"]) for r in probes} == {
        (0, "control"),
        (1, "train"),
        (4, "train"),
        (16, "train"),
        (32, "train"),
    }
    file = json.loads((demo / "corpus" / "probes.json").read_text())
    assert [(p["probe_id"], p["text"]) for p in file["probes"]] == [
        (r["probe_id"], r["text"]) for r in probes
    ]
    train = PackedSplit.open(demo / "pack", "train").documents().to_pylist()
    counts = Counter(row["probe_id"] for row in train if row["probe_id"])
    assert counts == {r["probe_id"]: r["repeat"] for r in probes if r["repeat"]}


def test_demo_twice_gives_the_same_bytes(demo: Path, tmp_path: Path) -> None:
    """With two workers as with one."""
    first = files(demo)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / ".ledger.part").write_bytes(b"half a ledger of a killed run")
    (tmp_path / "corpus" / ".ledger-00000.parquet.99.part").write_bytes(b"half")
    run_demo(tmp_path, LocalExecutor(workers=2))
    assert files(tmp_path) == first


def test_shipped_files_have_their_hashes_and_licences() -> None:
    folder = Path(__file__).parents[3] / "src" / "stamm" / "corpus" / "demo_data"
    listing = json.loads((folder / "SOURCES.json").read_text())
    assert sorted(entry["file"] for entry in listing["files"]) == list(shipped_files())
    for entry in listing["files"]:
        assert sha256_file(folder / entry["file"]) == entry["sha256"]
    notes = (folder / "LICENSES.md").read_text()
    assert "artificial" in notes
    assert all(source["title"] in notes for source in listing["sources"].values())
    assert sum(p.stat().st_size for p in folder.iterdir()) < 2_000_000


def test_a_file_with_only_texts_is_enough(
    write_jsonl: Callable[..., str], build: Callable[[CorpusConfig], Built]
) -> None:
    rows = [{"text": f"Text number {i} of mine."} for i in range(5)]
    documents, ledger, summary = build(CorpusConfig(inputs=(write_jsonl(*rows),)))
    assert [d["text"] for d in documents] == [r["text"] for r in rows]
    assert {d["language"] for d in documents} == {"eng_Latn"}
    assert {row["consent"] for row in ledger} == {"no_url"}
    assert summary["by_split"]["held_out"]["documents"] == 1


def test_bad_lines_are_in_the_ledger_and_the_rest_is_kept(
    write_jsonl: Callable[..., str], build: Callable[[CorpusConfig], Built]
) -> None:
    name = write_jsonl(
        {"text": "good"}, b"{broken", b'{"text": "\xff"}', {"text": ""}, {"text": "also"}
    )
    documents, ledger, summary = build(CorpusConfig(inputs=(name,)))
    assert [row["reason"] for row in ledger] == [
        "",
        "invalid_json",
        "invalid_utf8",
        "too_short",
        "",
    ]
    assert [row["input_position"] for row in ledger] == [1, 2, 3, 4, 5]
    assert summary["n_in"] == 5
    assert len(documents) == 2


def test_duplicates_name_the_first_and_never_straddle(
    write_jsonl: Callable[..., str], build: Callable[[CorpusConfig], Built]
) -> None:
    rows = [{"text": f"Same  TEXT {i // 3}", "url": f"https://a.org/{i}"} for i in range(300)]
    rows += [{"text": f"same text {i}\n", "url": f"https://b.org/{i}"} for i in range(100)]
    rows += [{"text": f"Mail {name}@example.org now"} for name in ("ann", "bob")]
    config = CorpusConfig(inputs=(write_jsonl(*rows),), consent=OPEN, held_out=0.3)
    documents, ledger, _ = build(config)
    assert len(documents) == 101
    first = {row["document_id"]: row for row in ledger if row["decision"] == "kept"}
    for row in ledger:
        if row["reason"] == "exact_duplicate":
            assert row["duplicate_of"] in first
    texts = [" ".join(d["text"].split()).casefold() for d in documents]
    assert len(set(texts)) == len(texts)


def test_an_archives_robots_speak_for_its_own_pages_only(
    tmp_path: Path, write_jsonl: Callable[..., str], build: Callable[[CorpusConfig], Built]
) -> None:
    archive = tmp_path / "a.warc"
    archive.write_bytes(
        warc_response("https://a.org/open", page("An open page with words."))
        + warc_response("https://a.org/shut/1", page("A page that is shut."))
        + warc_response(
            "https://a.org/meta", page("Reserved.", '<meta name="robots" content="noai">')
        )
        + warc_response("https://a.org/robots.txt", b"User-agent: *\nDisallow: /shut/\n")
    )
    name = write_jsonl({"text": "Elsewhere this was open.", "url": "https://a.org/shut/1"})
    documents, ledger, _ = build(CorpusConfig(inputs=(str(archive), name), consent=OPEN))
    assert [d["text"] for d in documents] == [
        "An open page with words.",
        "Elsewhere this was open.",
    ]
    assert [(r["consent"], r["reason"]) for r in ledger] == [
        ("robots_allows", ""),
        ("robots_disallow", "robots_disallow"),
        ("robots_allows", "meta_noai"),
        ("unknown_host", ""),
    ]
    assert ledger[0]["robots_read"] == "2024-05-06"
    assert ledger[0]["language"] == "eng_Latn"


def test_page_signals_can_be_left_to_a_later_stage(
    tmp_path: Path, build: Callable[[CorpusConfig], Built]
) -> None:
    archive = tmp_path / "a.warc"
    headers = {"Content-Type": "text/html", "X-Robots-Tag": "noai"}
    archive.write_bytes(warc_response("https://a.org/1", page("Words of a page."), headers))
    consent = ConsentConfig(unknown_host="allow", signals=None)
    documents, _, _ = build(CorpusConfig(inputs=(str(archive),), consent=consent))
    assert len(documents) == 1


def test_an_empty_corpus_names_the_biggest_reasons(
    tmp_path: Path, write_jsonl: Callable[..., str], build: Callable[[CorpusConfig], Built]
) -> None:
    rows = [{"text": f"text {i}", "url": f"https://a.org/{i}"} for i in range(4)]
    with pytest.raises(
        DataError,
        match=r"no document was kept of 5: unknown_host 4 \(no robots.*\), "
        r"invalid_json 1 .*corpus.consent.unknown_host=allow",
    ):
        build(CorpusConfig(inputs=(write_jsonl(*rows, b"{"),)))
    with pytest.raises(DataError, match="the inputs contain no documents"):
        build(CorpusConfig(inputs=(write_jsonl(),)))
    assert not (tmp_path / "corpus" / "summary.json").exists()


def test_a_missing_input_stops_before_anything_is_written(
    tmp_path: Path, write_jsonl: Callable[..., str], build: Callable[[CorpusConfig], Built]
) -> None:
    with pytest.raises(DataError, match=r"none.jsonl does not exist \(corpus.inputs\)"):
        build(CorpusConfig(inputs=(write_jsonl({"text": "a"}), str(tmp_path / "none.jsonl"))))
    assert list((tmp_path / "filtered").iterdir()) == []


def test_tokenizer_needs_enough_text(
    tmp_path: Path, write_jsonl: Callable[..., str], build: Callable[[CorpusConfig], Built]
) -> None:
    build(CorpusConfig(inputs=(write_jsonl({"text": "A few words."}),)))
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    workspace = Workspace(folder=folder, inputs={"corpus": tmp_path / "corpus"})
    with pytest.raises(DataError, match=r"fewer than 5000 \(tokenizer.vocab_size\)"):
        train_tokenizer(TokenizerConfig(vocab_size=5000), workspace)
    assert list(folder.iterdir()) == []


def test_configuration_travels_as_plain_values() -> None:
    assert from_plain(CorpusConfig, to_plain(DEMO)) == DEMO
    changed = override(
        DEMO, ["inputs=a.jsonl,b.warc.gz", "consent.unknown_host=drop", "probes=none"]
    )
    assert changed.inputs == ("a.jsonl", "b.warc.gz")
    assert changed.probes is None
