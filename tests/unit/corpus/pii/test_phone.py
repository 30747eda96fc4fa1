"""PII detection of phone numbers: national by language, international in any, and look-alikes."""

from __future__ import annotations

import pytest

from stamm.corpus.pii.phone import phone_spans


def found(text: str, language: str = "") -> list[str]:
    return [text[start:stop] for start, stop in phone_spans(text, language)]


@pytest.mark.parametrize(
    "number",
    [
        "+41 21 234 56 78",
        "+41 (0)21 234 56 78",
        "(+41) 21 234 56 78",
        "0041 21 234 56 78",
        "(0041) 21 234 56 78",
        "+41212345678",
        "+41-21-234-56-78",
        "+41\u00a021\u00a0234\u00a056\u00a078",
        "+1 (202) 555-0143",
        "+49 30/23125 000",
        "+44 20 7946 0000",
    ],
)
@pytest.mark.parametrize("language", ["", "und", "eng_Latn", "jpn_Jpan"])
def test_international_form_in_any_language(number: str, language: str) -> None:
    assert found(f"call {number}, please", language) == [number]
    assert found(f"电话{number}已", language) == [number]


def test_national_form_needs_the_language() -> None:
    assert found("Zentrale 021 234 56 78.", "deu_Latn") == ["021 234 56 78"]
    assert found("Zentrale 021 234 56 78.", "eng_Latn") == []
    assert found("Zentrale 021 234 56 78.") == []
    assert found("Call (202) 555-0143.", "eng_Latn") == ["(202) 555-0143"]


def test_one_piece_and_odd_groups_need_a_word_for_phone() -> None:
    assert found("Nummer 0212345678", "deu_Latn") == []
    assert found("Telefon 0212345678", "deu_Latn") == ["0212345678"]
    assert found("Nummer 021 23 456 78", "deu_Latn") == []
    assert found("Tel. 021 23 456 78", "deu_Latn") == ["021 23 456 78"]
    assert found("No. 0041212345678") == []
    assert found("Tel. 0041212345678") == ["0041212345678"]


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org/p/+41212345678",
        "https://example.org/?id=2025550143&x=+41212345678",
        "a-202-555-0143.html",
        "x@+41212345678",
        "+999 12 345 67 89",
        "+41 21 234 56",
        "SR 0.631.112.514 und SR 0.831.109.454.241",
        "0.3333333333",
        "2019-05-03 12:30:45",
        "1914-1918 und 1939-1945",
        "ISBN 978-3-16-148410-0",
        "1 079 500.00 368 470.00",
        "912 345 678 Franken",
        "0711.2000 und 0711.9000",
        "10 000 000 000",
        "1 2 3 4 5 6 7 8 9 10 11 12",
        "phone",
        "+",
        "(",
    ],
)
@pytest.mark.parametrize("language", ["", "deu_Latn", "eng_Latn", "spa_Latn"])
def test_what_is_no_phone_stays(text: str, language: str) -> None:
    assert found(text, language) == []
