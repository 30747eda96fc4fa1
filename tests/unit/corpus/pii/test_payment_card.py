"""PII detection of payment cards: issuer, length, check digit and grouping."""

from __future__ import annotations

import pytest

from stamm.corpus.pii.payment_card import card_spans, valid_card


def found(text: str) -> list[str]:
    return [text[start:stop] for start, stop in card_spans(text)]


@pytest.mark.parametrize(
    "number",
    [
        "4000 0012 3456 7899",
        "4000-0012-3456-7899",
        "4000\u00a00012\u00a03456\u00a07899",
        "3714 490000 12345",
        "3056 930000 1236",
        "5105 1000 0000 0023",
    ],
)
def test_printed_numbers_need_no_word(number: str) -> None:
    digits = "".join(c for c in number if c.isdigit())
    right = next(f"{number[:-1]}{d}" for d in "0123456789" if valid_card(f"{digits[:-1]}{d}"))
    wrong = f"{right[:-1]}{(int(right[-1]) + 1) % 10}"
    assert found(f"see {right}, thanks") == [right]
    assert found(f"see {wrong}, thanks") == []


def test_issuer_and_length() -> None:
    assert valid_card("4000001234567899")
    assert not valid_card("4000001234567898")
    assert not valid_card("400000123456789")  # one short
    assert not valid_card("1000001234567898")  # no issuer
    assert not valid_card("4000000000000000")  # a row of zeros


def test_luhn_against_the_table_of_doubled_digits() -> None:
    # An independent form of the sum: doubled digits looked up, not computed.
    doubled = [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
    for tail in range(0, 10_000, 7):
        digits = f"400000123456{tail:04d}"
        total = sum(
            doubled[int(d)] if place % 2 else int(d) for place, d in enumerate(reversed(digits))
        )
        assert valid_card(digits) == (total % 10 == 0)


def test_a_number_in_one_piece_needs_a_word_for_a_card() -> None:
    assert found("id 4000001234567899 of the parcel") == []
    assert found("my Visa is 4000001234567899 now") == ["4000001234567899"]
    assert found("信用卡4000001234567899已") == ["4000001234567899"]


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1111 is in every manual",
        "card 14000001234567899",
        "card 40000012345678990000",
        "card 4000 0012-3456 7899",
        "card 4000001234 567899",
        "card x=4000001234567899",
        "https://card.example/4000001234567899",
        "card 1 4000 0012 3456 7899",
        "card 4000 0012 3456 7899 1234",
        "card 4000.0012.3456.7899",
    ],
)
def test_what_is_no_card_stays(text: str) -> None:
    assert found(text) == []
