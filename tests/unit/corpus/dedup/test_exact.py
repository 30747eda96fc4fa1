"""Exact deduplication: equal keys up to normalization, different keys otherwise."""

from __future__ import annotations

import hashlib

import pytest

from stamm.corpus.dedup.shingles import text_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The Cat", "the cat"),
        ("the  cat\r\n", " the\u00a0cat"),
        ("caf\u00e9", "cafe\u0301"),
        ("\ufb01sh", "FISH"),
        ("\uff21\uff22", "ab"),
        ("", " \n\t\u3000"),
    ],
)
def test_spelling_of_forms_and_blanks_do_not_count(one: str, other: str) -> None:
    assert text_key(one) == text_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("the cat", "thecat"), ("a", "b"), ("a.", "a"), ("12 3", "1 23"), ("\ud800", "\udfff")],
)
def test_everything_else_counts(one: str, other: str) -> None:
    assert text_key(one) != text_key(other)


def test_the_definition() -> None:
    assert text_key(" The\tCAT ") == hashlib.sha256(b"the cat").digest()[:16]


def test_hostile_texts_have_a_key() -> None:
    for text in ("a" * 2**23, "ha " * 10**6, "a" + "\u0301" * 10**6, "\0" * 10**6, "\ud800"):
        assert len(text_key(text)) == 16
