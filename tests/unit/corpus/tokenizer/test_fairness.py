"""Fertility and fairness of tokenizers, against counts by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stamm.base.errors import DataError
from stamm.corpus.tokenizer.fairness import (
    TokenCounts,
    compare,
    count_tokens,
    fairness,
    gini,
    merge_counts,
)
from stamm.corpus.tokenizer.job import articles, load_declaration


class Letters:
    """One token for each character, numbered by code point."""

    size = 1000

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]


class Bytes:
    """One token for each byte."""

    size = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


LINES = {"deu_Latn": ("ä b", "c"), "ell_Grek": ("αβγ", "δ")}


def test_counts_by_hand() -> None:
    told = fairness(Bytes(), LINES)
    assert told["lines"] == 2
    german, greek = told["languages"]["deu_Latn"], told["languages"]["ell_Grek"]
    assert german == {
        "tokens_per_line": 2.5,
        "documents": 2,
        "bytes": 5,
        "tokens": 5,
        "bytes_per_token": 1.0,
        "tokens_per_character": 1.25,
        "tokens_per_word": 1.6667,
        "vocabulary_used": round(5 / 256, 4),
    }
    assert greek["tokens_per_line"] == 4.0
    assert greek["tokens_per_character"] == 2.0
    # |2.5 - 4| twice, over 2 * 2^2 * mean 3.25.
    assert told["gini"] == round(3 / (8 * 3.25), 4)
    # c3 a4 20 62 63, and ce b1 b2 b3 b4.
    assert told["vocabulary_used"] == round(10 / 256, 4)


def test_side_by_side() -> None:
    table = compare({"letters": Letters(), "bytes": Bytes()}, LINES)
    assert list(table) == ["letters", "bytes"]
    assert table["letters"]["gini"] == 0.0
    assert table["bytes"] == fairness(Bytes(), LINES)


def test_words_are_counted_where_blanks_separate_them() -> None:
    found = count_tokens(
        Letters(), [("cmn_Hans", "ab cd"), ("eng_Latn", "ab cd"), ("eng_Latn", "")]
    )
    assert found["cmn_Hans"].as_dict("cmn_Hans")["tokens_per_word"] is None
    assert found["eng_Latn"].as_dict("eng_Latn")["tokens_per_word"] == 2.5
    whole = merge_counts(found, 1000)
    assert (whole.documents, whole.tokens, whole.words) == (3, 10, 4)
    assert whole.as_dict(None)["vocabulary_used"] == 0.005
    empty = TokenCounts(10).as_dict("eng_Latn")
    assert empty["bytes_per_token"] is None and empty["vocabulary_used"] == 0.0


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=20))
def test_gini_by_its_definition(values: list[float]) -> None:
    total = sum(values)  # a mean of numbers near the smallest would be rounded to 0
    spread = sum(abs(x - y) for x, y in itertools.product(values, values))
    expected = spread / (2 * len(values) * total) if total else 0.0
    assert gini(values) == pytest.approx(expected, abs=1e-9)


def test_gini_at_its_ends() -> None:
    assert gini([]) == gini([3.0]) == gini([0.0, 0.0]) == gini([2.0, 2.0, 2.0]) == 0.0
    assert gini([0.0, 0.0, 0.0, 8.0]) == 0.75


def test_the_shipped_declaration_is_parallel() -> None:
    found = load_declaration()
    assert len(found) == 39
    assert {len(lines) for lines in found.values()} == {30}
    assert found["deu_Latn"][3].startswith("Niemand darf in Sklaverei")
    assert found["fra_Latn"][3].startswith("Nul ne sera tenu en esclavage")
    assert found["ita_Latn"][29].startswith("Nulla nella presente Dichiarazione")
    assert found["deu_Latn"][10].count("\n") == 1 and found["deu_Latn"][28].count("\n") == 2
    # An article is about as long in each language: none is a heading, none holds two.
    for number in range(30):
        sizes = sorted(len(lines[number]) for lines in found.values())
        assert sizes[-1] < 4 * sizes[0]


def test_a_text_that_is_not_the_declaration_is_refused() -> None:
    with pytest.raises(DataError, match="no declaration of 30 articles in 2 blocks"):
        articles("Article 1\n\nAll human beings are born free.")
    with pytest.raises(DataError, match="no declaration"):
        articles("\n\n".join(["Article", ""] * 30))
