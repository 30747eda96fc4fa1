"""The page of a corpus run and of a replay: what it must say, and that it obeys nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stamm.base.errors import DataError
from stamm.corpus.page import record
from stamm.corpus.page.record import read_corpus, tally
from stamm.corpus.page.result import corpus_result
from stamm.corpus.section import sections
from stamm.pages.config import ReportConfig
from stamm.reports.job import write_report
from stamm.runs.run_view import open_view
from tests.unit.reports.run_folder import (
    HOSTILE,
    LEDGER_TEXTS,
    ledger_row,
    ledger_rows,
    parallel,
    write,
    write_corpus_run,
    write_ledger,
    write_pack,
    write_replay,
    write_shard_manifest,
    write_study,
    write_summary,
)
from tests.unit.reports.test_page import ALLOWED, Page


def section_of(root: Path) -> Page:
    """The section of a run's page."""
    (section,) = sections(open_view(root), ReportConfig())
    return Page(section.html)


def test_a_corpus_run_has_no_empty_parts_about_training(tmp_path: Path) -> None:
    out = write_report(write_corpus_run(tmp_path / "corpus.demo"), tmp_path / "page.html")
    page = Page(out.read_text(encoding="utf-8"))
    assert page.problems == []
    assert {tag for tag, _ in page.tags} <= ALLOWED
    for words in ("No model was trained", "not run", "Memorization", "Verdict"):
        assert words not in page.text, words
    assert [a["id"] for tag, a in page.tags if tag == "section"] == ["corpus", "again"]


def test_what_a_corpus_run_says(tmp_path: Path) -> None:
    page = section_of(write_corpus_run(tmp_path / "corpus.demo"))
    for words in (
        "90 of 107 documents stayed",
        "17 were left out",
        "robots allows 2019-08-01 2019-08-01 60 56.1 %",
        "exact duplicate 4 3.7 %",
        "source 0 CC-BY-4.0 30",
        "broad 60 200,000 81.6 % fine 30 45,000 18.4 %",
        "train 91",
        "eng_Latn 40,000",
        "00000 108 91 17 d0c5d0c5d0c5 1ed61ed61ed6",
        "all 1 108 91 17",
    ):
        assert words in page.text, words


def test_what_the_vocabulary_costs_each_language(tmp_path: Path) -> None:
    page = section_of(write_corpus_run(tmp_path / "corpus.demo"))
    for words in (
        "The same 30 lines of text (A Declaration) in 3 languages",
        "eng_Latn the fewest, tha_Thai 1.80 times as many. Gini coefficient 0.132",
        "deu_Latn 125.0 1.25 3.25 2.40 8.0 %",
        "tha_Thai 180.0 1.80 3.25 8.0 %",
    ):
        assert words in page.text, words


ENGLISH = parallel()["languages"]["eng_Latn"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"languages": {HOSTILE: parallel()["languages"]["eng_Latn"]}, "text": HOSTILE}, ""),
        ({"languages": {}}, ""),
        (
            {"languages": {"x": {**ENGLISH, "tokens_per_line": 0.0}}},
            "tokens_per_line = 0.0 is not a positive",
        ),
        (
            {"languages": {"x": {**ENGLISH, "tokens_per_line": None}}},
            "tokens_per_line = None is not a number",
        ),
    ],
)
def test_a_vocabulary_that_lies(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    root = write_corpus_run(tmp_path / "corpus.demo")
    path = root / "tokenizer" / "summary.json"
    write(path, {**json.loads(path.read_text()), "parallel": {**parallel(), **change}})
    if told:
        with pytest.raises(DataError, match=told):
            section_of(root)
        return
    page = section_of(root)
    assert page.problems == []
    assert {tag for tag, _ in page.tags} <= ALLOWED
    assert ("fairness" in [a.get("id") for tag, a in page.tags if tag == "figure"]) == bool(
        change["languages"]
    )


def test_a_vocabulary_of_before_parallel_texts(tmp_path: Path) -> None:
    root = write_corpus_run(tmp_path / "corpus.demo")
    path = root / "tokenizer" / "summary.json"
    summary = json.loads(path.read_text())
    del summary["parallel"]
    write(path, summary)
    assert "Gini" not in section_of(root).text


def test_evaluation_texts_that_no_screen_can_find_are_told(tmp_path: Path) -> None:
    root = write_corpus_run(tmp_path / "corpus.demo")
    assert "Evaluation texts" not in section_of(root).text
    one = {"items": 1200, "blind": 7, "runs": 900, "short": 250, "unseen": 57}
    coverage = {"schema": 2, "sets": {HOSTILE: one, "quiz": one}}
    write(root / "filtered" / "contamination" / "coverage.json", coverage)
    page = section_of(root)
    assert page.problems == []
    assert {tag for tag, _ in page.tags} <= ALLOWED
    assert "quiz 1,200 900 250 57 7" in page.text


def test_what_a_replay_says(tmp_path: Path) -> None:
    page = section_of(write_replay(tmp_path / "corpus.replay"))
    assert page.problems == []
    for words in (
        "A newer opt-out withdrew 7 of the 90 documents of a finished corpus: "
        "3 ranges of its token stream, 1,234 tokens in all.",
        "83 of 107 documents stayed",
        "deletion request 7",
        "What came in are the documents that the finished corpus had kept.",
        "2 planted passages withdrawn, too",
        "3 documents, dropped before as duplicates of a withdrawn one, stay out",
        "Of 15 requests for deletion 2 withdrew documents, 1 match only dropped ones and 12 match "
        "nothing that came in: ",
        "asked.txt line 13, and 2 more.",
        f"asked.txt 14 {14:064x}",
        "1 more are in corpus/requests.parquet.",
    ):
        assert words in page.text, words
    assert {tag for tag, _ in page.tags} <= ALLOWED


def test_a_replay_of_before_requests_were_counted(tmp_path: Path) -> None:
    root = write_replay(tmp_path / "corpus.replay")
    path = root / "corpus" / "summary.json"
    summary = json.loads(path.read_text())
    for key in ("withdrawn_probes", "duplicates_not_brought_back", "deletion_requests"):
        del summary[key]
    write(path, summary)
    text = section_of(root).text
    assert "83 of 107 documents stayed" in text
    assert "requests for deletion" not in text


def test_a_replay_that_withdrew_nothing(tmp_path: Path) -> None:
    root = write_replay(tmp_path / "corpus.replay")
    path = root / "corpus" / "summary.json"
    none = {"withdrawn_by_reason": {}, "withdrawn_tokens": {}}
    write(path, {**json.loads(path.read_text()), **none})
    assert "Nothing: every document may stay." in section_of(root).text


def test_a_replay_without_its_ranges_is_refused(tmp_path: Path) -> None:
    root = write_replay(tmp_path / "corpus.replay")
    (root / "corpus" / "token_ranges.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"token_ranges.parquet cannot be read"):
        read_corpus(root)


def test_websites_beyond_the_hundred_largest_are_summed(tmp_path: Path) -> None:
    root = write_corpus_run(tmp_path / "corpus.demo")
    rows = [
        ledger_row(
            host=f"site{i:03d}.example", decision="dropped" if i % 7 == 0 else "kept",
            reason="too_short" if i % 7 == 0 else "", consent="unknown_host", language="eng_Latn",
        )
        for i in range(250)
        for _ in range(1 + (i < 100))
    ]  # fmt: skip
    write_ledger(root / "corpus", rows)
    write_summary(root / "corpus", rows)
    path = root / "corpus" / "summary.json"
    summary = json.loads(path.read_text())
    summary["by_host"] = dict(list(summary["by_host"].items())[:100])  # what the step writes
    write(path, summary)
    dropped = sum(i % 7 == 0 for i in range(100, 250))
    assert f"150 more websites, together {150 - dropped} {dropped}" in section_of(root).text


def test_a_website_called_none_is_not_what_has_no_address(tmp_path: Path) -> None:
    root = write_corpus_run(tmp_path / "corpus.demo")
    path = root / "corpus" / "summary.json"
    summary = json.loads(path.read_text())
    summary["by_host"] = {"none": {"kept": 71, "dropped": 0}, "": {"kept": 2, "dropped": 53}}
    write(path, summary)
    page = section_of(root)
    assert "none none not read 71 0" in page.text
    assert "(no address) none not read 2 53" in page.text


def test_script_in_every_field_is_text(tmp_path: Path) -> None:
    root = write_corpus_run(tmp_path / "corpus.demo")
    texts = {name: f"{HOSTILE}{name}" for name in LEDGER_TEXTS}
    rows = [
        ledger_row(**{**texts, "decision": decision, "reason": reason})
        for decision, reason in (("kept", ""), ("dropped", f"{HOSTILE}duplicate"))
    ]
    write_ledger(root / "corpus", rows)
    write_summary(root / "corpus", rows)
    write_shard_manifest(root / "corpus", rows)
    (root / "corpus" / "manifests" / "00000.json").rename(
        root / "corpus" / "manifests" / "<script>0.json"
    )
    pack = json.loads((root / "pack" / "manifest.json").read_text())
    train = pack["splits"].pop("train")
    train["stages"][0]["name"] = HOSTILE
    train["tokens_by_language"] = {HOSTILE: 245_000}
    write(root / "pack" / "manifest.json", {**pack, "splits": {"train": train, HOSTILE: train}})
    summary = json.loads((root / "corpus" / "summary.json").read_text())
    gone = {"documents": 9, "withdrawn": 9, "bytes": 9, "withdrawn_bytes": 9}
    summary |= {
        "pii_replaced": {HOSTILE: 3},
        "withdrawn_by_reason": {HOSTILE: 9},
        "withdrawn_by_language": {HOSTILE: gone},
        "withdrawn_tokens": {HOSTILE: 9},
    }
    write(root / "corpus" / "summary.json", summary)
    pq.write_table(pa.table({"start": [0]}), root / "corpus" / "token_ranges.parquet")
    (section,) = sections(open_view(root), ReportConfig())
    html = section.html
    page = Page(html)
    assert page.problems == []
    assert {tag for tag, _ in page.tags} <= ALLOWED
    assert "<script" not in html.lower()
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    # cut to their cells, but there
    assert page.text.count('<script>alert("x")') > 12


def test_the_closing_lines_on_a_terminal(tmp_path: Path) -> None:
    root = write_corpus_run(tmp_path / "corpus.demo")
    (root / "corpus" / "ledger-00000.parquet").unlink()  # they need no row of it
    lines = corpus_result(root).splitlines()
    assert [line.split()[:-2] for line in lines[1:3]] == [
        ["kept", "90"],
        ["robots", "disallow", "7"],
    ]
    assert "90 of 107 documents stayed" in lines[-2]
    assert lines[-1] == "train: 245,000 tokens in 90 documents, repeats counted."
    assert all(len(line) <= 120 for line in lines)


def test_the_closing_lines_name_what_was_planted_and_whose_consent_was_not_asked(
    tmp_path: Path,
) -> None:
    root = write_corpus_run(tmp_path / "corpus.demo")
    summary = json.loads((root / "corpus" / "summary.json").read_text())
    summary["dropped_by_reason"]["unknown_host"] = {"documents": 3, "bytes": 9}
    summary["kept_by_consent"] = {
        "no_url": {"documents": 40, "bytes": 9},
        "unknown_host": {"documents": 1, "bytes": 9},
    }
    write(root / "corpus" / "summary.json", summary)
    pack = json.loads((root / "pack" / "manifest.json").read_text())
    pack["splits"]["train"] |= {"planted_documents": 30, "planted_tokens": 61_250}
    write(root / "pack" / "manifest.json", pack)
    assert corpus_result(root).splitlines()[-4:] == [
        "40 documents without an address stayed, as your own text.",
        "3 documents of hosts whose robots.txt is not known were left out (unknown_host).",
        "1 document of hosts whose robots.txt is not known stayed (corpus.consent.unknown_host = allow).",
        "train: 245,000 tokens in 90 documents, repeats counted: 60 of the corpus and 30 copies of "
        "planted passages, which are 25.0 % of the tokens.",
    ]


def test_the_closing_lines_hide_nothing_and_obey_nobody(tmp_path: Path) -> None:
    root = write_corpus_run(tmp_path / "corpus.demo")
    path = root / "corpus" / "summary.json"
    summary = json.loads(path.read_text())
    summary["dropped_by_reason"] = {
        f"\x1b[2J\u202e{i}": {"documents": 1, "bytes": 1} for i in range(20)
    }
    write(path, summary)
    told = corpus_result(root)
    assert "\x1b" not in told
    assert "\u202e" not in told
    assert "and 8 more reasons" in told


def test_a_run_without_a_corpus_has_no_closing_lines(tmp_path: Path) -> None:
    assert corpus_result(tmp_path) == ""


def test_a_corpus_step_that_is_not_done_is_no_corpus(tmp_path: Path) -> None:
    root = write_study(tmp_path / "demo")
    (root / "corpus" / "summary.json").unlink()
    assert read_corpus(root) is None
    assert "Corpus: not run." in section_of(root).text


def test_the_ledger_adds_up(tmp_path: Path) -> None:
    corpus = read_corpus(write_corpus_run(tmp_path))
    assert corpus is not None
    assert corpus.summary.n_in == 107
    assert corpus.summary.n_kept == 90
    assert corpus.summary.n_probes == 1
    assert sum(reason.documents for reason in corpus.reasons) == corpus.documents_dropped == 17
    assert corpus.reasons[0].name == "robots_disallow"
    assert corpus.reasons[0].examples[0].agent == "GPTBot, CCBot"
    assert sum(one.documents for one in corpus.consents) == 107
    assert {one.state: (one.first_read, one.last_read) for one in corpus.consents} == {
        "robots_allows": ("2019-08-01", "2019-08-01"),
        "unknown_host": ("", ""),
        "robots_disallow": ("2019-08-01", "2019-08-01"),
    }
    assert sum(one.documents for one in corpus.sources) == 90
    assert [one.kept for _, one in corpus.shards] == [91]
    assert sum(host.kept + host.dropped for host in corpus.hosts) == 107
    assert corpus.summary.pii_replaced == {
        "email": sum(i % 4 for i in range(90)),
        "ip": sum(i % 10 // 9 for i in range(90)),
        "iban": 0,
    }


def test_a_ledger_that_contradicts_its_summary_is_refused(tmp_path: Path) -> None:
    root = write_corpus_run(tmp_path)
    path = root / "corpus" / "summary.json"
    write(path, {**json.loads(path.read_text()), "n_in": 1000})
    with pytest.raises(DataError, match=r"counts 1000 documents .* its ledger 107"):
        read_corpus(root)


def test_a_ledger_without_a_column_is_refused(tmp_path: Path) -> None:
    root = write_corpus_run(tmp_path)
    path = root / "corpus" / "ledger-00000.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["consent"]), path)
    with pytest.raises(DataError, match=r"ledger-00000.parquet has no column 'consent'"):
        read_corpus(root)


def test_a_cut_ledger_is_refused(tmp_path: Path) -> None:
    root = write_corpus_run(tmp_path)
    path = root / "corpus" / "ledger-00000.parquet"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match=r"ledger-00000.parquet cannot be read"):
        read_corpus(root)


def test_ledger_shards_are_read_together(tmp_path: Path) -> None:
    root = write_corpus_run(tmp_path)
    rows = ledger_rows()
    path = root / "corpus" / "ledger-00000.parquet"
    write_ledger(root / "corpus", rows[40:])
    path.rename(root / "corpus" / "ledger-00001.parquet")
    write_ledger(root / "corpus", rows[:40])
    corpus = read_corpus(root)
    assert corpus is not None
    assert corpus.summary.n_in == 107


def by_hand(rows: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        if row["decision"] == "kept" and row["consent"] != "planted":
            key = row["source"], row["licence"]
            documents, size = found.get(key, (0, 0))
            found[key] = documents + 1, size + row["bytes_out"]
    return found


def test_batches_are_counted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_ROWS", 7)
    rows = ledger_rows()
    write_ledger(tmp_path, rows)
    told = tally([tmp_path / "ledger-00000.parquet"], ["site1.example", "refusing.example"])
    assert (told.documents, told.kept) == (107, 90)
    assert {(s.name, s.licence): (s.documents, s.bytes) for s in told.sources} == by_hand(rows)
    assert len(told.examples["robots_disallow"]) == 7
    refusing = told.host("refusing.example", 0, 7)
    assert (refusing.consent, refusing.agents) == ("robots_disallow", "GPTBot, CCBot")
    assert told.host("site2.example", 1, 0).consent == ""


def test_sources_without_end_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_MOST_SOURCES", 4)
    rows = [ledger_row(decision="kept", source=f"s{i % 10}", consent="x") for i in range(100)]
    write_ledger(tmp_path, rows)
    told = tally([tmp_path / "ledger-00000.parquet"], [])
    assert [(one.name, one.documents) for one in told.sources] == [(f"s{i}", 10) for i in range(4)]
    assert told.unnamed_sources == 60


def test_a_stage_without_a_name_and_a_pack_of_one_stage(tmp_path: Path) -> None:
    root = write_corpus_run(tmp_path / "corpus.demo")
    write_pack(root / "pack")
    path = root / "pack" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["splits"]["train"]["stages"] = [{"documents": 90, "tokens": 245_000}]
    write(path, manifest)
    corpus = read_corpus(root)
    assert corpus is not None and corpus.pack is not None
    assert [(one.name, one.documents) for one in corpus.pack.splits["train"].stages] == [("", 90)]
    assert "stage 1" not in section_of(root).text
