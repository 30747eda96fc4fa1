"""Counts by host and source: what has none is no host, and no source, of another name."""

from __future__ import annotations

import json
from pathlib import Path

from stamm.reports.corpus_record import read_corpus
from tests.unit.corpus.evidence.ledgers import dropped, kept, write_corpus


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
    corpus = read_corpus(folder)
    assert corpus is not None
    told = {host.name: host for host in corpus.hosts}
    assert (told["none"].agents, told["none"].robots_read) == ("GPTBot", "2024-05-06")
    assert (told[""].agents, told[""].robots_read, told[""].kept) == ("", "", 2)
    sources = {source.name: source.documents for source in corpus.sources}
    assert sources == {"(unnamed)": 3, "": 2}
