"""Counts by host and source: what has none is no host, and no source, of another name."""

from __future__ import annotations

import json
from pathlib import Path

from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.consent.decision import ConsentResolver
from stamm.corpus.consent.policies import robots_source
from stamm.corpus.consent.robots import RobotsAnswer
from stamm.corpus.page.record import read_corpus
from stamm.corpus.page.result import corpus_sentences
from stamm.corpus.records import AbsoluteRules
from tests.unit.corpus.transparency.ledgers import dropped, kept, write_corpus


def test_documents_under_rules_written_as_absolute_urls_are_counted(tmp_path: Path) -> None:
    consent = ConsentConfig(agents=("*",))
    text = "User-agent: *\nDisallow: https://{0}/a\nDisallow: /b"
    answers = [
        RobotsAnswer(
            url=f"https://{host}/robots.txt", status=200, read="2024", text=text.format(host)
        )
        for host in ("x.org", "y.org")
    ]
    answers.append(RobotsAnswer(url="https://z.org/robots.txt", status=200, read="2024", text=""))
    asked = ConsentResolver(consent, [robots_source(answers)])
    rows = []
    for url in ("https://x.org/a", "https://x.org/c", "https://y.org/a", "https://z.org/a"):
        decision = asked.decide(url)
        told = {"url": url, "host": decision.host, "consent": decision.consent}
        rows.append(kept(**told, rule=decision.rule))
    refused = asked.decide("https://y.org/b")
    rows.append(dropped("robots_disallow", host="y.org", rule=refused.rule))
    folder = write_corpus(tmp_path / "corpus", rows)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["absolute_rules"] == {"documents": 3, "hosts": 2}
    corpus = read_corpus(tmp_path)
    assert corpus is not None and corpus.summary.absolute_rules == AbsoluteRules(
        documents=3, hosts=2
    )
    assert (
        "The robots.txt of 2 websites (3 documents) has rules written as absolute URLs of the same "
        "site. No parser follows them; the ledger names the first."
    ) in corpus_sentences(corpus)


def test_a_page_counts_the_documents_whose_terms_of_use_were_not_read(tmp_path: Path) -> None:
    named = "License: https://x.org/rsl.xml"
    rows = [
        *[kept(host="x.org", unread_terms=named)] * 2,
        dropped("unread_terms", host="y.org", unread_terms=named),
        kept(host="z.org"),
    ]
    write_corpus(tmp_path / "corpus", rows)
    corpus = read_corpus(tmp_path)
    assert corpus is not None
    (_, said) = corpus_sentences(corpus)
    assert said.startswith("2 websites (3 documents) name terms of use that were not read")


def test_documents_without_a_host_are_not_those_of_a_host_called_none(tmp_path: Path) -> None:
    rows = [
        *[kept(host="none", source="(unnamed)", robots_read="2024-01-01")] * 3,
        *[kept(host="", source="", consent="", robots_read="")] * 2,
        dropped("no_url", host="", consent="no_url", robots_read=""),
        dropped("robots_disallow", host="none", agent="GPTBot"),
    ]
    folder = write_corpus(tmp_path / "corpus", rows)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["by_host"] == {
        "none": {"kept": 3, "dropped": 1},
        "": {"kept": 2, "dropped": 1},
    }
    corpus = read_corpus(tmp_path)
    assert corpus is not None
    told = {host.name: host for host in corpus.hosts}
    assert (told["none"].agents, told["none"].robots_read) == ("GPTBot", "2024-05-06")
    assert (told[""].agents, told[""].robots_read, told[""].kept) == ("", "", 2)
    sources = {source.name: source.documents for source in corpus.sources}
    assert sources == {"(unnamed)": 3, "": 2}
