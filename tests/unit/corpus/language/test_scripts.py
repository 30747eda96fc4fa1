"""Scripts of letters and of texts."""

from __future__ import annotations

import unicodedata

import pytest

from stamm.corpus.language.codes import script_of, text_script
from stamm.corpus.language.text_sample import MARKS, evenly_spaced_sample, plain_letters


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Grüezi", "Latn"),
        ("добрый день", "Cyrl"),
        ("你好世界", "Hani"),
        ("日本語のテキスト", "Jpan"),
        ("대한민국 憲法", "Kore"),
        ("नमस्ते दुनिया", "Deva"),
        ("ᓄᓇᕗᑦ", "Cans"),
        ("ދިވެހި", "Thaa"),
        ("123 !?", ""),
        ("", ""),
    ],
)
def test_main_script(text: str, script: str) -> None:
    assert text_script(text)[0] == script


def test_share_counts_letters_only() -> None:
    assert text_script("aaa жж 12345 ...") == ("Latn", 3 / 5)


def test_of_two_equal_scripts_the_first_in_the_alphabet_is_taken() -> None:
    assert text_script("жa") == text_script("aж") == ("Cyrl", 0.5)


def test_every_assigned_letter_of_the_large_scripts_has_a_script() -> None:
    missing = [
        hex(point)
        for first, last in ((0x400, 0x482), (0x905, 0x939), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3))
        for point in range(first, last)
        if chr(point).isalpha() and not script_of(chr(point))
    ]
    assert not missing


def test_marks_are_all_combining_marks_below_the_variation_selectors() -> None:
    spans = [MARKS[at : at + 3] for at in range(0, len(MARKS) - 2, 3)]
    assert all(span[1] == "-" for span in spans)
    marks = {chr(p) for span in spans for p in range(ord(span[0]), ord(span[2]) + 1)}
    expected = {chr(p) for p in range(0x1E94B) if unicodedata.category(chr(p))[0] == "M"}
    assert marks == expected


def test_plain_letters_keeps_words_whole_and_drops_addresses() -> None:
    assert plain_letters("See https://example.org/a?b=c, `x = 1` or MAIL me@example.org!") == (
        "see or mail"
    )
    assert plain_letters("हिन्दी 42 தமிழ்") == "हिन्दी தமிழ்"
    assert plain_letters("e\u0301te\u0301") == "été"


def test_spread_reads_no_more_than_it_may_and_reaches_the_end() -> None:
    text = " ".join(f"w{number}" for number in range(100_000))
    sample = evenly_spaced_sample(text, 3000)
    assert len(sample) <= 3005
    numbers = [int(word[1:]) for word in sample.split()]
    assert numbers == sorted(numbers)
    assert max(numbers) > 99_000
    assert evenly_spaced_sample("short", 3000) == "short"
