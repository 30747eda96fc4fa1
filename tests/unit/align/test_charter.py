"""Charters in Markdown: articles, clauses, and errors that name what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from stamm.align.judge.charter import Charter, read_charter, shipped
from stamm.base.errors import DataError


def read(tmp_path: Path, text: str) -> Charter:
    file = tmp_path / "charter.md"
    file.write_text(text, encoding="utf-8")
    return read_charter(file)


def test_the_apertus_charter_has_11_articles_and_68_clauses() -> None:
    charter = read_charter(shipped("package:apertus", "charter"))
    assert charter.title == "Apertus Charter"
    counts = [len(article.clauses) for article in charter.articles]
    assert counts == [6, 8, 9, 7, 8, 5, 8, 3, 5, 3, 6]
    first = charter.articles[0]
    assert first.title == "Response Quality"
    assert first.clauses[0].name == "1.1"
    assert first.clauses[0].text.startswith("The AI should ensure that every response is helpful")
    assert charter.articles[10].clauses[5].text.endswith("should be disclosed")
    everything = " ".join(clause.text for a in charter.articles for clause in a.clauses)
    assert "[" not in everything and "AI Systems developed" not in everything


def test_headings_clause_lines_and_articles_without_clauses_are_read(tmp_path: Path) -> None:
    charter = read(
        tmp_path,
        "# Ours\n\nPreamble 1.\n\n## Article 1: Be kind\n\n- 1.1 Greet.\n1.2 Thank\n   the user.\n"
        "1. not an article\n\n---\n\n## 2. Be true ##\nSay what is so.\nAnd no more.\n",
    )
    assert charter.title == "Ours"
    assert [(a.number, a.title) for a in charter.articles] == [(1, "Be kind"), (2, "Be true")]
    assert [(c.name, c.text) for c in charter.articles[0].clauses] == [
        ("1.1", "Greet."),
        ("1.2", "Thank the user. 1. not an article"),
    ]
    assert charter.articles[1].text() == "Article 2. Be true\n2 Say what is so. And no more."
    assert [a.number for a in charter.chosen((2,), "rating.articles")] == [2]
    assert charter.chosen((), "rating.articles") == charter.articles


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# Only a title\n", "has no article"),
        ("", "has no article"),
        ("## 1. A\nx\n## 3. C\ny\n", "line 3: article 3 where article 2 is expected"),
        ("1. A\nText [1.1] and [1.3].\n", "clause 1.3 where 1.2 is expected"),
        ("1. A\nText [2.1].\n", "clause 2.1 where 1.1 is expected"),
        ("1. A\n[1.1]\n", "clause 1.1 has no text"),
        ("1. A\n2. B\ntext\n", "article 1 (A) has no text"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path, text)
    assert message in error.value.line()
    assert "charter.md" in error.value.line()


def test_unknown_articles_and_files_are_refused(tmp_path: Path) -> None:
    charter = read(tmp_path, "1. A\ntext\n")
    with pytest.raises(DataError, match="no article 7"):
        charter.chosen((1, 7), "rating.articles")
    with pytest.raises(DataError, match="not shipped"):
        shipped("package:../secret", "charter")
    with pytest.raises(DataError, match="is a folder"):
        shipped(str(tmp_path), "charter")
    (tmp_path / "latin.md").write_bytes(b"1. A\n\xff\n")
    with pytest.raises(DataError, match="not UTF-8"):
        read_charter(tmp_path / "latin.md")
