"""The list of domains against a count in pure Python."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ledgers import dropped, kept, planted, write_corpus

from stamm.corpus.query import opened
from stamm.corpus.tables import parts
from stamm.corpus.transparency.config import EvidenceConfig, SourceKind
from stamm.corpus.transparency.facts import DomainCounts, required_domains, write_domains


def domains(
    root: Path, rows: list[dict[str, Any]], config: EvidenceConfig | None = None
) -> tuple[DomainCounts, list[dict[str, Any]]]:
    corpus = write_corpus(root / "corpus", rows)
    path = root / "domains.jsonl"
    with opened(root, 0.25, 2) as query:
        query.view("ledger", parts(corpus, "ledger"))
        found = write_domains(query, config or EvidenceConfig(), path)
    return found, [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("host", "domain"),
    [
        ("example.com", "example.com"),
        ("www.example.com", "example.com"),
        ("a.b.c.example.com:8080", "example.com"),
        ("news.bbc.co.uk", "bbc.co.uk"),
        ("health.gov.au", "health.gov.au"),
        ("co.uk", "co.uk"),
        ("www.co.example", "co.example"),
        ("example.ch", "example.ch"),
        ("localhost", "localhost"),
        ("192.168.2.7:80", "192.168.2.7"),
        ("2001:db8::1", "2001:db8::1"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("=cmd()'; drop table ledger; --.example", "=cmd()'; drop table ledger; --.example"),
        (".", "."),
    ],
)
def test_the_domain_of_a_host(tmp_path: Path, host: str, domain: str) -> None:
    _, listed = domains(tmp_path, [kept(host=host)])
    assert [one["domain"] for one in listed] == [domain]


def test_the_largest_tenth_by_bytes(tmp_path: Path) -> None:
    drawn = random.Random(7)
    rows = [
        kept(host=f"h{drawn.randrange(3)}.site{drawn.randrange(40):02d}.example", bytes_out=size)
        for size in drawn.choices(range(1, 1000), k=600)
    ]
    rows += [dropped("too_short", host="large.example", bytes_in=10**9), planted(bytes_out=10**9)]
    rows += [kept(host="", bytes_out=5)]
    found, listed = domains(tmp_path, rows)
    sizes: Counter[str] = Counter()
    documents: Counter[str] = Counter()
    for row in rows:
        if row["decision"] == "kept" and row["consent"] != "planted" and row["host"]:
            sizes[row["host"].partition(".")[2]] += row["bytes_out"]
            documents[row["host"].partition(".")[2]] += 1
    expected = sorted(sizes, key=lambda name: (-sizes[name], name))[:4]
    assert [one["domain"] for one in listed] == expected
    assert [(one["bytes"], one["documents"]) for one in listed] == [
        (sizes[name], documents[name]) for name in expected
    ]
    assert (found.count, found.bytes, found.without_host) == (40, sizes.total(), 1)
    assert found.listed_bytes == sum(sizes[name] for name in expected)
    assert listed[0]["share"] == round(sizes[expected[0]] / sizes.total(), 6)


@pytest.mark.parametrize(
    ("count", "all_providers", "sme"),
    [
        (0, 0, 0),
        (1, 1, 1),
        (10, 1, 1),
        (11, 2, 1),
        (21, 3, 2),
        (20_000, 2000, 1000),
        (10**6, 10**5, 1000),
    ],
)
def test_how_many_have_to_be_named(count: int, all_providers: int, sme: int) -> None:
    assert required_domains(count, sme=False) == all_providers
    assert required_domains(count, sme=True) == sme


def test_only_crawled_sources_count_where_some_are_assigned(tmp_path: Path) -> None:
    config = EvidenceConfig(
        sources=(
            SourceKind(source="crawl-old", kind="public"),
            SourceKind(source="crawl*", kind="crawled"),
        )
    )
    rows = [
        kept(source="crawl-new", host="crawled.example"),
        kept(source="crawl-old", host="older.example", bytes_out=999),
        kept(source="books", host="books.example", bytes_out=999),
    ]
    found, listed = domains(tmp_path, rows, config)
    assert found.crawled
    assert [one["domain"] for one in listed] == ["crawled.example"]


def test_a_corpus_without_websites_has_an_empty_list(tmp_path: Path) -> None:
    found, listed = domains(tmp_path, [kept(host="")])
    assert (found.count, found.listed, found.without_host, listed) == (0, 0, 1, [])
