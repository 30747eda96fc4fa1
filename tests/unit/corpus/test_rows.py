"""Rows of published corpora: what is read from each, what opts out, what is counted as unknown.

The keys are those of the data cards of the named corpora; the values are invented.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stamm.base.errors import DataError, RunError
from stamm.corpus.config import CorpusConfig
from stamm.corpus.consent.config import ConsentConfig, SignalsConfig
from stamm.corpus.documents import InputRecord, UnreadableRecord
from stamm.corpus.limits import FieldNames, ReadLimits
from stamm.corpus.readers.open import read_input
from stamm.corpus.readers.rows import LOOKS_LIKE_URL, FieldUse, field_lines, summed_fields

Row = dict[str, Any]
Writer = Callable[..., str]
Build = Callable[[CorpusConfig], tuple[list[Row], list[Row], Row]]

TEXT, URL = "A text of the corpus.", "https://refused.test/page"
CC = {
    "WARC-Type": "response", "WARC-Date": "2025-01-02T03:04:05Z", "WARC-Target-URI": URL,
    "WARC-Record-ID": "<urn:uuid:1>", "WARC-Concurrent-To": "<urn:uuid:2>",
    "WARC-Warcinfo-ID": "<urn:uuid:3>", "WARC-Refers-To": "<urn:uuid:4>", "WARC-IP-Address": "1.2.3.4",
    "WARC-Block-Digest": "sha1:A", "WARC-Payload-Digest": "sha1:B", "Content-Length": "12",
    "WARC-Identified-Payload-Type": "text/html", "Content-Type": "application/http",
    "WARC-Identified-Content-Language": "eng",
}  # fmt: skip
PUBLISHED: dict[str, Row] = {
    "dolma": {
        "id": "a", "text": TEXT, "source": "cc", "version": "v1", "added": "2026-01-01T00:00:00.000Z",
        "created": "2025-12-01T00:00:00.000Z", "attributes": {"toxic": [[0, 4, 0.1]]},
        "metadata": {"url": URL, "language": "en", "license": "MIT", "domain": "refused.test"},
    },
    "datatrove": {
        "text": TEXT, "id": "a", "media": [{"type": 0, "url": "https://a.test/i.png"}],
        "metadata": {"url": URL, "date": "2025-12-01", "file_path": "s3://x", "dump": "CC-MAIN-2025-1",
                     "language": "en", "language_score": 0.9, "token_count": 5},
    },
    "fineweb": {
        "text": TEXT, "id": "a", "dump": "CC-MAIN-2025-1", "url": URL, "date": "2025-12-01",
        "file_path": "s3://x", "language": "en", "language_score": 0.9, "token_count": 5, "score": 3.1,
        "int_score": 3,
    },
    "fineweb-2": {
        "text": TEXT, "id": "a", "dump": "CC-MAIN-2025-1", "url": URL, "date": "2025-12-01",
        "file_path": "s3://x", "language": "deu", "language_score": 0.9, "language_script": "Latn",
        "minhash_cluster_size": 3, "top_langs": "{}",
    },
    "finepdfs": {
        "text": TEXT, "id": "a", "dump": "CC-MAIN-2025-1", "url": URL, "date": "2025-12-01",
        "file_path": "s3://x", "offset": 3, "language": "deu_Latn", "token_count": 3,
        "page_average_lid": "deu_Latn", "page_average_lid_score": 1.0, "full_doc_lid": "deu_Latn",
        "full_doc_lid_score": 1.0, "per_page_languages": ["deu_Latn"], "is_truncated": False,
        "extractor": "docling", "page_ends": [3], "processor": "x", "duplicate_count": 1,
    },
    "c4": {"text": TEXT, "timestamp": "2019-04-25T12:57:54Z", "url": URL},
    "redpajama": {
        "text": TEXT, "red_pajama_subset": "common_crawl",
        "meta": json.dumps({"url": URL, "language": "en", "source": "cc", "timestamp": "2023"}),
    },
    "redpajama-2": {
        "raw_content": TEXT, "url": URL, "date_download": "2023-02-04T00:00:00Z", "digest": "sha1:A",
        "length": 5, "nlines": 1, "source_domain": "refused.test", "title": "T", "cc_segment": "x",
        "original_nlines": 2, "original_length": 9, "line_ids": [1], "language": "en", "perplexity": 3.0,
        "language_score": 0.9, "bucket": "head", "quality_signals": "{}",
    },
    "dclm": {
        "text": TEXT, "url": URL, "metadata": CC, "previous_word_count": 3, "warcinfo": "x",
        "bff_contained_ngram_count_before_dedupe": 1, "language_id_whole_page_fasttext": {"en": 0.9},
        "fasttext_openhermes_reddit_eli5_vs_rw_v2_bigram_200k_train_prob": 0.1,
    },
    "oscar": {
        "content": TEXT,
        "warc_headers": {key.lower(): value for key, value in CC.items()},
        "metadata": {"identification": {"label": "en", "prob": 0.9}, "harmful_pp": 3.0, "tlsh": "x",
                     "quality_warnings": None, "categories": None, "sentence_identifications": []},
    },
    "hplt": {
        "f": "./path", "o": 1, "s": 2, "rs": 3, "u": URL, "c": "text/html", "ts": "2025-01-02T03:04:05Z",
        "crawl_id": "CC", "collection": "cc40", "lang": ["eng_Latn"], "prob": [0.9], "text": TEXT,
        "seg_langs": ["eng_Latn"], "robotstxt": "allowed", "id": "a", "filter": "keep", "pii": [[0, 3]],
        "doc_scores": [3.0], "cluster_size": 1,
    },
    "common-pile": {
        "id": "a", "text": TEXT, "source": "wiki", "added": "2025-01-01", "created": "2025-01-01",
        "metadata": {"license": "CC-BY-SA-4.0", "url": URL, "authors": ["A"], "title": "T"},
    },
    "wikipedia": {"id": "1", "url": URL, "title": "T", "text": TEXT},
    "the-stack": {
        "hexsha": "a", "size": 3, "ext": "py", "lang": "Python", "content": TEXT,
        "max_stars_repo_path": "a.py", "max_stars_repo_name": "a/b", "max_stars_repo_head_hexsha": "x",
        "max_stars_repo_licenses": ["MIT", "GPL-3.0"], "max_stars_count": 3, "avg_line_length": 3.0,
        "max_line_length": 4, "alphanum_fraction": 0.5,
    },
    "github-code": {
        "code": TEXT, "repo_name": "a/b", "path": "a.py", "language": "Python", "license": "mit",
        "size": 3,
    },
}  # fmt: skip
# Keys that stamm knows to have no meaning for it, but that are too general to be listed.
UNKNOWN = {"redpajama-2": {"date_download", "nlines"}}
NO_URL = ("the-stack", "github-code")


def read(
    name: str, names: FieldNames | None = None, use: FieldUse | None = None
) -> list[InputRecord | UnreadableRecord]:
    return list(read_input(name, Path(name), ReadLimits(), names, use=use))


@pytest.mark.parametrize("corpus", sorted(PUBLISHED))
@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow"])
def test_published_corpora_are_read(corpus: str, suffix: str, tmp_path: Path) -> None:
    row = PUBLISHED[corpus]
    path = tmp_path / f"in.{suffix}"
    if suffix == "jsonl":
        path.write_text(json.dumps(row) + "\n")
    else:
        table = pa.Table.from_pylist([row])
        if suffix == "parquet":
            pq.write_table(table, path)
        else:
            with (
                pa.OSFile(str(path), "wb") as sink,
                pa.ipc.new_stream(sink, table.schema) as writer,
            ):
                writer.write_table(table)
    use = FieldUse()
    (record,) = read(str(path), use=use)
    assert isinstance(record, InputRecord), record
    assert record.content.decode() == TEXT
    assert record.url == ("" if corpus in NO_URL else URL)
    facts = use.facts()
    assert set(facts.get("unknown_keys", {})) == UNKNOWN.get(corpus, set())
    assert set(facts["fields"]) >= {"text"} | ({"url"} if record.url else set())


def test_what_each_field_is_read_from(write_jsonl: Writer) -> None:
    names = ("dolma", "redpajama", "oscar", "hplt", "common-pile", "the-stack", "github-code")
    records = read(write_jsonl(*(PUBLISHED[name] for name in names)))
    read_fields = [
        (record.source, record.licence, record.language, record.date)
        for record in records
        if isinstance(record, InputRecord)
    ]
    assert read_fields == [
        ("cc", "MIT", "en", "2025-12-01T00:00:00.000Z"),
        ("cc", "", "en", "2023"),
        ("", "", "", "2025-01-02T03:04:05Z"),
        ("", "", "eng_Latn", "2025-01-02T03:04:05Z"),
        ("wiki", "CC-BY-SA-4.0", "", "2025-01-01"),
        ("", "GPL-3.0-only AND MIT", "Python", ""),
        ("", "mit", "Python", ""),
    ]


def test_an_identifier_is_not_an_address(write_jsonl: Writer) -> None:
    rows = [
        {"text": "a", "uri": "urn:isbn:1"},
        {"text": "a", "uri": URL},
        {"text": "a", "u": 5, "source_url": URL},
        {"text": "a", "url": f"{URL}/", "metadata": {"url": URL}},
    ]
    assert [record.url for record in read(write_jsonl(*rows))] == ["", URL, URL, f"{URL}/"]


@pytest.mark.parametrize(
    "row",
    [
        {"metadata": [{"url": URL}]},
        {"metadata": json.dumps([{"url": URL}])},
        {"metadata": [{"mood": 1}, {"url": URL}]},
        {"metadata": {"meta": {"metadata": {"meta": {"url": URL}}}}},
        {"headers": {"WARC-Target-URI": URL}},
        {"sourceURL": URL},
        {"source_url": URL.removeprefix("https://")},
    ],
)
def test_an_address_is_found(row: Row, write_jsonl: Writer) -> None:
    (record,) = read(write_jsonl({"text": "a", **row}))
    assert record.url == URL


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"id": URL}, "id"),
        ({"source": URL}, "source"),
        ({"domain": "refused.test"}, "domain"),
        ({"attributes": {"url": URL}}, "attributes.url"),
        ({"metadata": {"warc": {"url": URL}}}, "metadata.warc.url"),
        ({"crawl": json.dumps({"page": [{"at": URL}]})}, "crawl.page.at"),
        ({"license": "https://a.test/", "metadata": {"license_link": "https://a.test/"}}, ""),
        ({"domain": "news", "id": "a.b.c d"}, ""),
    ],
)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_what_looks_like_an_address_is_named(
    row: Row, field: str, suffix: str, tmp_path: Path
) -> None:
    path, use = tmp_path / f"in.{suffix}", FieldUse()
    row = {"text": "a", **row}
    if suffix == "jsonl":
        path.write_text(json.dumps(row) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist([row]), path)
    (record,) = read(str(path), use=use)
    assert record.url == ""
    assert use.facts()["fields"].get(LOOKS_LIKE_URL, {}) == ({field: 1} if field else {})
    lines = "\n".join(field_lines([use.facts()]))
    assert (f"{field} (1); set corpus.fields.url={field}" in lines) is bool(field)
    if field:
        (record,) = read(str(path), FieldNames(url=field)) if "page" not in field else (record,)
        assert record.url.startswith("https://refused.test") or "page" in field


def test_opt_outs_inside_columns_of_a_table_are_read(tmp_path: Path) -> None:
    for number, row in enumerate(REFUSED):
        if isinstance(row.get("attributes"), str):
            continue  # a column of text is not searched
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist([{"text": "a", **row}]), path)
        (record,) = read(str(path))
        assert isinstance(record, InputRecord)
        assert record.signals.headers, row


def test_licences_written_as_a_list_in_json_are_read(write_jsonl: Writer) -> None:
    (record,) = read(write_jsonl({"text": "a", "license": '["MIT", "ISC"]'}))
    assert isinstance(record, InputRecord)
    assert record.licence == "ISC AND MIT"


def test_dates_of_tables_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    dates = [datetime(2025, 1, 2, tzinfo=UTC), None]
    pq.write_table(pa.table({"text": ["a", "b"], "date": pa.array(dates)}), path)
    found = [record.date for record in read(str(path)) if isinstance(record, InputRecord)]
    assert found == ["2025-01-02T00:00:00+00:00", ""]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_configured_path_leads_inside(suffix: str, tmp_path: Path) -> None:
    rows = [{"text": "a", "url": "https://a.test/", "doc": {"at": {"link": URL}}}, {"text": "b"}]
    path = tmp_path / f"in.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    use = FieldUse()
    records = read(str(path), FieldNames(url="doc.at.link"), use)
    assert [record.url for record in records] == [URL, ""]
    assert use.facts()["fields"]["url"] == {"doc.at.link": 1}
    message = r"no row of .* has the field 'doc\.at\.url' \(corpus\.fields\.url\)\. Name one of its fields: text"
    with pytest.raises(DataError, match=message):
        read(str(path), FieldNames(url="doc.at.url"))


def test_unknown_keys_are_counted_and_shown_once(write_jsonl: Writer) -> None:
    use = FieldUse()
    rows = [{"text": "a", "mood": 1, "metadata": {"Score2": 3, "id": 1}}, {"text": "b", "mood": 2}]
    read(write_jsonl(*rows, {"text": "c", "mood": None}), use=use)
    facts = use.facts()
    assert facts["unknown_keys"] == {"mood": 2, "metadata.Score2": 1}
    lines = list(field_lines([facts, {}, {**facts, "fields": {"url": {"meta.url": 5}}}]))
    assert lines == [
        "Fields read: url from meta.url (5)",
        "Unknown keys in the inputs, not used: mood (4), metadata.Score2 (2).",
    ]
    assert summed_fields([facts, facts])["fields"]["text"] == {"text": 6}


REFUSED: list[Row] = [
    {"noai": True},
    {"noai": "true"},
    {"metadata": {"opt-out": 1}},
    {"robotstxt": "disallowed"},
    {"consent": False},
    {"x_robots_tag": "noai"},
    {"metadata": {"X-Robots-Tag": ["index", "noai"]}},
    {"tdm_reservation": 1},
    {"meta": {"tdm-reservation": True}},
    {"content_usage": "train-ai=n"},
    {"headers": {"X-Robots-Tag": "noai"}},
    {"headers": json.dumps({"x-robots-tag": "noai"})},
    {"http_headers": [["X-Robots-Tag", "noai"], ["Server", "x"]]},
    {"response_headers": [{"name": "TDM-Reservation", "value": "1"}]},
    {"metadata": {"headers": "HTTP/1.1 200 OK\r\nX-Robots-Tag: noai\r\n"}},
    {"content_usage": {"train-ai": "n"}},
    {"content_usage": '{"train-ai": false}'},
    {"content_signal": {"ai-train": False}},
    {"x_robots_tag": {"noai": True}},
    {"robots_disallowed": True},
    {"robotstxt_allowed": False},
    {"is_allowed": "no"},
    {"optedOut": True},
    {"noAI": 1},
    {"opt_out_ai": "yes"},
    {"tdm_reserved": 1},
    {"train-ai": "n"},
    {"do_not_train_ai": True},
    {"attributes": {"opt_out": True}},
    {"attributes": json.dumps([{"optedOut": "true"}])},
    {"metadata": {"meta": {"metadata": {"noai": True}}}},
    {"metadata": [{"noai": True}]},
    {"response": {"headers": {"X-Robots-Tag": "noai"}}},
    {"crawl": {"content_usage": {"train-ai": "n"}}},
]
ALLOWED: list[Row] = [
    {"noai": False},
    {"noai": None},
    {"opt_out": "no"},
    {"robotstxt": "allowed"},
    {"consent": True},
    {"x_robots_tag": "noindex"},
    {"tdm_reservation": 0},
    {"tdm_reservation": False},
    {"headers": {"Server": "x"}},
    {"headers": None},
    {"robots_disallowed": False},
    {"robotstxt_allowed": "y"},
    {"opt_out_ai": "n"},
    {"opt_out_checked": "2026-01-01"},
    {"opt_out_policy": "https://a.test/policy"},
    {"content_usage": {"train-ai": True}},
    {"x_robots_tag": {"noai": False}},
    {"attributes": {"opt_out": 0, "headers": ["Introduction"], "toxic": [[0, 4, 0.1]]}},
    {"allowed_languages": ["de"]},
]


def config(*inputs: str, **consent: Any) -> CorpusConfig:
    policy = ConsentConfig(**{"unknown_host": "allow", **consent})
    return CorpusConfig(inputs=inputs, consent=policy, language=None, dedup=None, held_out=0.0)


def test_opt_outs_of_rows_are_honoured(write_jsonl: Writer, build: Build) -> None:
    rows = [{"text": f"text {i}", **row} for i, row in enumerate([*REFUSED, *ALLOWED])]
    _, ledger, summary = build(config(write_jsonl(*rows)))
    reasons = [row["reason"] for row in ledger]
    assert all(reasons[: len(REFUSED)]), list(zip(reasons, REFUSED, strict=False))
    assert not any(reasons[len(REFUSED) :])
    assert set(reasons) == {"", "row_opt_out", "header_noai", "tdm_reservation", "content_usage"}
    assert ledger[0]["rule"] == "noai = True reserves the document"
    assert summary["dropped_by_reason"]["row_opt_out"]["documents"] == 18
    others = {"allowed_languages", "crawl", "opt_out_checked", "opt_out_policy", "response"}
    assert set(summary["unknown_keys"]) == others


def test_opt_outs_of_rows_have_a_switch(write_jsonl: Writer, build: Build) -> None:
    own = config(write_jsonl({"text": "a", "noai": 1}), signals=SignalsConfig(row_opt_out=False))
    assert [row["reason"] for row in build(own)[1]] == [""]


def robots(tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "robots.jsonl"
    row = {
        "url": "https://refused.test/robots.txt",
        "status": 200,
        "fetched": "2026-11-01",
        "text": "User-agent: *\nDisallow: /\n",
    }
    path.write_text(json.dumps(row) + "\n")
    return (str(path),)


def test_consent_is_checked_wherever_the_address_stands(
    tmp_path: Path, write_jsonl: Writer, build: Build
) -> None:
    names = sorted(set(PUBLISHED) - set(NO_URL))
    other = {"text": "Another.", "url": "https://other.test/"}
    given = write_jsonl(other, *(PUBLISHED[name] for name in names))
    _, ledger, summary = build(config(given, robots=robots(tmp_path)))
    assert [row["reason"] for row in ledger] == ["", *["robots_disallow"] * len(names)]
    assert sum(summary["fields"]["url"].values()) == 1 + len(names)


def test_a_file_without_addresses_is_an_error_where_consent_is_checked(
    tmp_path: Path, write_jsonl: Writer, build: Build
) -> None:
    own, mixed = (
        {"text": "own", "place": "https://refused.test/"},
        {"text": "b", "url": "https://b.test/"},
    )
    name = write_jsonl(own)
    given = config(name, robots=robots(tmp_path))
    with pytest.raises(RunError) as caught:
        build(given)
    assert (
        f"no document of {name} has an address, so its consent cannot be checked (fields: text, place) "
        "(corpus.consent.robots and corpus.consent.domains). Set corpus.fields.url=place, which "
        "looks like an address, or corpus.consent.no_url=allow for texts of your own"
    ) in caught.value.line()
    # Of a file with addresses a row without one is dropped.
    given = replace(given, inputs=(write_jsonl(own, mixed),))
    assert [row["reason"] for row in build(given)[1]] == ["no_url", ""]


@pytest.mark.parametrize(
    ("consent", "reason"),
    [({}, ""), ({"no_url": "allow"}, ""), ({"no_url": "drop"}, "no_url")],
)
def test_text_of_ones_own_needs_no_address(
    consent: dict[str, Any], reason: str, tmp_path: Path, write_jsonl: Writer, build: Build
) -> None:
    rows = {"text": "own"}, {"text": "a", "url": "https://b.test/"}
    given = {**consent, "robots": robots(tmp_path)} if consent else {}
    assert [row["reason"] for row in build(config(write_jsonl(*rows), **given))[1]] == [reason, ""]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"weblink": "https://a.example/x"}, "weblink"),
        ({"Quelle": "www.a.example/x"}, "Quelle"),
        ({"origin": {"place": "//a.example/x"}}, "origin.place"),
        ({"links": ["HTTP://a.example/x"]}, "links"),
        ({"meta": {"where": "https://a.example/x"}}, "meta.where"),
        ({"place": ""}, "place"),
        ({"place": None}, "place"),
        ({"note": "see https://a.example/x", "path": "//a comment"}, ""),
        ({"media": "https://a.example/i.png", "licence": "https://a.example/x"}, ""),
    ],
)
def test_an_address_under_another_name_is_found_in_every_format(
    row: Row, field: str, kind: str, tmp_path: Path
) -> None:
    file = tmp_path / f"rows.{kind}"
    table = pa.Table.from_pylist([{"text": TEXT, **row}])
    if kind == "jsonl":
        file.write_text(json.dumps({"text": TEXT, **row}))
    elif kind == "parquet":
        pq.write_table(table, file)
    else:
        with pa.ipc.new_stream(str(file), table.schema) as writer:
            writer.write_table(table)
    names = FieldNames(url="place" if "place" in row else "")
    (record,) = read_input(file.name, file, ReadLimits(), names)
    assert isinstance(record, InputRecord)
    assert (record.url, record.address_field) == ("", field)
