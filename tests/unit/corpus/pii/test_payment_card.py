"""PII detection of payment cards: issuer, length, check digit and grouping."""

from __future__ import annotations

import pytest

from stamm.corpus.pii.patterns import card_spans, valid_card


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
    "number", ["4929 1234 5678 9015", "4929-1234-5678-9015", "4929123456789015"]
)
@pytest.mark.parametrize(
    "after",
    ["12/27", "05/2027", "123", "12/27 123", "123 12/27", "123.", "123, thanks", "12/27/123 x", ""],
)
def test_an_expiry_date_or_code_may_follow(number: str, after: str) -> None:
    wanted = [] if after.startswith("12/27/") else [number]
    assert found(f"Visa {number} {after}") == wanted
    assert found(f"see {number} {after}") == ([number] if len(number) > 16 and not after else [])


def test_the_code_of_american_express_has_four_digits() -> None:
    number = "3755 123456 78909"
    assert found(f"Amex {number} 1234") == [number]
    assert found(f"Amex {number} 1234 12/27, and") == [number]
    assert found("Amex 375512345678909 1234") == ["375512345678909"]


def test_six_and_thirteen_digits() -> None:
    number = next(
        f"630412 345678901234{d}" for d in "0123456789" if valid_card(f"630412345678901234{d}")
    )
    assert found(f"see {number}, thanks") == [number]
    assert found(f"Maestro {number} 12/27") == [number]
    assert found(f"see {number[:-1]}{(int(number[-1]) + 1) % 10}, thanks") == []


def test_all_digits_are_one_number_where_they_are_valid() -> None:
    ends = (f"{n:03d}" for n in range(1000))
    number = next(
        f"4929 1234 5678 9015 {end}" for end in ends if valid_card(f"4929123456789015{end}")
    )
    assert found(f"Visa {number}") == [number]


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
        "card 4000001234567899 1234",
        "card 4000 0012 3456 7899 123 456",
        "card 4000 0012 3456 7899 123,50",
        "card 4000 0012 3456 7899 13/27",
        "card 4000 0012 3456 7898 12/27",
        "card 4111 1111 1111 1111 12/27 123",
        "card 4000.0012.3456.7899",
    ],
)
def test_what_is_no_card_stays(text: str) -> None:
    assert found(text) == []
