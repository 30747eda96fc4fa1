"""Word hashes: what counts as equal, in every script, and edges of phrases."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stamm.corpus.dedup.shingles import hash_shingles, hash_words, normalize_text, text_key

PIECE = 1 << 16


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The cat sat.", "the   CAT\nsat"),
        ("Straße und Fluß", "STRASSE UND FLUSS"),
        ("café", "cafe\u0301"),
        ("Donau\u00addampf\u200bschiff", "Donaudampfschiff"),
        ("ＡＢＣ　１２３", "abc 123"),
        ("“Don't!”, she said", "don t she said"),
        ("हिन्दी भाषा", "हिन्दी, भाषा।"),
        ("πρωτεΐνες", "πρωτεΐνες".upper()),
        ("ıssız İstanbul", "ISSIZ istanbul"),
    ],
)
def test_spelling_that_does_not_count(one: str, other: str) -> None:
    assert hash_words(one).hashes.tolist() == hash_words(other).hashes.tolist()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("... 🙂 !!", 0),
        ("one", 1),
        ("हिन्दी भाषा", 2),
        ("他打开了门", 5),
        ("ภาษา", 4),
        ("ひらがな", 4),
        ("iPhone手机", 3),
        ("한국어 문장", 2),
        ("\ud800x", 1),
    ],
)
def test_how_many_words(text: str, count: int) -> None:
    words = hash_words(text)
    assert len(words.hashes) == count
    assert len(words.edges) == count + 1


@given(st.text("ab .\n", max_size=60))
def test_agrees_with_a_plain_split(text: str) -> None:
    plain = re.findall("[ab]+", text)
    words = hash_words(text)
    numbers = {word: hash_words(word).hashes[0] for word in set(plain)}
    assert len(set(numbers.values())) == len(numbers)
    assert words.hashes.tolist() == [numbers[word] for word in plain]
    gaps = re.split("[ab]+", text)
    if plain:
        inner = [bool(set(gap) - {" "}) for gap in gaps[1:-1]]
        assert words.edges.tolist() == [True, *inner, True]


def test_letters_swapped_are_another_word() -> None:
    words = ["ab", "ba", "aab", "aba", "a", "aa", "b"]
    assert len({int(hash_words(word).hashes[0]) for word in words}) == len(words)


@pytest.mark.parametrize("gap", [" ", "\n", ". "])
def test_a_text_of_many_pieces_is_the_sum_of_its_words(gap: str) -> None:
    text = gap.join(f"w{number}" for number in range(40_000))
    assert len(text) > 2 * PIECE
    words = hash_words(text)
    single = [hash_words(f"w{number}").hashes[0] for number in range(0, 40_000, 1999)]
    assert words.hashes[::1999].tolist() == single
    assert words.edges[1:-1].all() == (gap != " ")
    assert not words.edges[1:-1].any() or gap != " "


def test_runs_are_equal_where_words_are_and_order_matters() -> None:
    runs = hash_shingles(hash_words("a b c d a b c d").hashes, 4)
    assert runs[0] == runs[4]
    assert len(set(runs.tolist())) == 4
    assert hash_shingles(hash_words("a b").hashes, 3).shape == (0,)


def test_hostile_text_costs_a_multiple_of_its_size() -> None:
    # U+FDFA becomes 18 characters under NFKC; the result keeps 9 bytes a word, not 4 a character.
    words = hash_words("\ufdfa" * 50_000)
    assert words.hashes.nbytes + words.edges.nbytes <= 9 * 4 * 50_000 + 9
    assert len(hash_words("x" * 300_000).hashes) == -(-300_000 // PIECE)
    assert np.array_equal(hash_words("\u200b" * 200_000).edges, [True])


def test_a_row_of_marks_is_not_sorted_in_quadratic_time() -> None:
    # Sorting these 600,000 marks by insertion would take hours; the test's own limit is minutes.
    marks = "\u0301\u0323" * 300_000
    assert len(hash_words("a" + marks).hashes) >= 1
    assert text_key("a" + marks) == text_key("a" + "\u0323\u0301" * 15)
    assert normalize_text("e\u0301" + "\u0345" * 3) == "\u00e9" + "\u03b9" * 3
