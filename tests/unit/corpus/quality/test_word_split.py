"""Words in scripts with and without blanks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stamm.corpus.quality import word_split as module
from stamm.corpus.quality.word_split import count_characters, split_words


def _words(text: str) -> list[str]:
    return split_words(text, count_characters(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The cat's whiskers, naïve café!", ["The", "cat", "s", "whiskers", "naïve", "café"]),
        ("«Привет», — сказал он…", ["Привет", "сказал", "он"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("e\u0301te\u0301 fini", ["e\u0301te\u0301", "fini"]),
        ("می\u200cخواهم بروم", ["می\u200cخواهم", "بروم"]),
        ("你好 world", ["你", "好", "world"]),
        ("東京タワー", ["東", "京", "タ", "ワ", "ー"]),
        ("ที่นี่", ["ที่", "นี่"]),
        ("བོད་ཡིག", ["བོད", "ཡིག"]),
        ("대한민국 만세", ["대한민국", "만세"]),
        ("snake_case = 3.14", ["snake_case", "3", "14"]),
        ("", []),
        ("!!! ---", []),
    ],
)
def test_split_words(text: str, words: list[str]) -> None:
    assert _words(text) == words


# Letters, signs and blanks of several scripts, without those that are written without blanks.
_SPACED = st.text(
    st.sampled_from("ab Zé_9.,-«»—…'ßжЯλ \n\t\u00a0\u2028\u3000\x1c€½²ªµ٣"), max_size=60
)


@given(_SPACED)
def test_the_fast_way_and_the_pattern_agree(text: str) -> None:
    assert _words(text) == module._WORD.findall(text)


@given(st.text(max_size=80))
def test_characters_are_counted_as_they_are(text: str) -> None:
    assert count_characters(text) == dict(sorted(Counter(text).items()))


@given(st.text(max_size=80))
def test_no_letter_is_lost(text: str) -> None:
    joined = "".join(_words(text))
    assert [c for c in joined if c.isalnum()] == [c for c in text if c.isalnum()]


def test_broken_surrogates_are_split_off() -> None:
    assert _words("ab\ud800cd ef") == ["ab", "cd", "ef"]
    assert count_characters("\ud800")["\ud800"] == 1
