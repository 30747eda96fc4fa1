"""PII detection of payment card numbers, by issuer, length, Luhn check digit and grouping."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stamm.corpus.pii.word_boundaries import WORD

# First digits and lengths by network. Source: ISO/IEC 7812 and the networks' documents.
# (first, last, lengths): the number begins with a value from first to last.
_ISSUERS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("4", "4", (13, 16, 19)),  # Visa
    ("51", "55", (16,)),  # Mastercard
    ("2221", "2720", (16,)),  # Mastercard
    ("34", "34", (15,)),  # American Express
    ("37", "37", (15,)),
    ("300", "305", (14, 16)),  # Diners Club
    ("36", "36", (14, 16)),
    ("38", "39", (14, 16)),
    ("6011", "6011", (16, 19)),  # Discover
    ("644", "659", (16, 19)),
    ("3528", "3589", (16, 19)),  # JCB
    ("62", "62", (16, 17, 18, 19)),  # UnionPay
    ("81", "81", (16, 17, 18, 19)),
    ("2200", "2204", (16, 19)),  # Mir
    ("5018", "5018", (16, 19)),  # Maestro
    ("5020", "5020", (16, 19)),
    ("5038", "5038", (16, 19)),
    ("6304", "6304", (16, 19)),
    ("6759", "6759", (16, 19)),
    ("6761", "6763", (16, 19)),
)
# Test numbers in the manuals of the networks are not personal.
_TEST_NUMBERS = (
    "4111111111111111 4242424242424242 4012888888881881 4222222222222 4000000000000002 "
    "5555555555554444 5105105105105100 2223003122003222 378282246310005 371449635398431 "
    "6011111111111117 6011000990139424 30569309025904 38520000023237 3530111333300000 "
    "3566002020360505"
)
_TEST_CARDS = frozenset(_TEST_NUMBERS.split())
_START = rf"(?<![{WORD}+=/#-])(?<![0-9][ \u00a0.])(?=[2-68])"
_CANDIDATE = re.compile(
    rf"{_START}(?:[0-9]{{4}}[ \u00a0-]?[0-9]{{4}}(?:[ \u00a0-]?[0-9]){{4,11}}|"
    rf"[0-9]{{6}}[ \u00a0-][0-9]{{13}})(?![{WORD}=]|[ \u00a0.-][0-9])"
)
_EXPIRY = r"(?:0[1-9]|1[0-2])/(?:20)?[0-9]{2}(?![0-9/])"
# A number and, after a blank, the digits beside it on a card: expiry date, security code or both.
_FOLLOWED = re.compile(
    rf"{_START}(?:[0-9]{{13,19}}|[0-9]{{4}}(?P<sep>[ \u00a0-])(?:[0-9]{{4}}(?P=sep)){{2}}[0-9]{{4}}|"
    rf"[0-9]{{4}}(?P<other>[ \u00a0-])[0-9]{{6}}(?P=other)[0-9]{{4,5}}|[0-9]{{6}}[ \u00a0-][0-9]{{13}})"
    rf"(?=[ \u00a0](?:{_EXPIRY}|(?P<code>[0-9]{{3,4}})"
    rf"(?:[ \u00a0]{_EXPIRY}|(?![{WORD}=]|[ \u00a0.,/-][0-9]))))"
)
_AMEX_LENGTH = 15
_AMEX_CODE = 4  # digits of its security code; the other networks have three
_GROUPING = re.compile(r"[0-9]+")
_GROUPS = {(4, 6, 5), (4, 6, 4), (6, 13)}
_CONTEXT = 64
_CARD_WORD = re.compile(
    r"card|visa|maestro|amex|american express|discover|diners|\bjcb\b|unionpay|\bcvv|\bcvc|"
    r"\bpan\b|karte|carte|carta|tarjeta|cart[ãa]o|kaart|kort\b|karta|kart[ay]|kortti|карт|κάρτα|"
    r"kártya|銀行卡|信用卡|银行卡|カード",
    re.IGNORECASE,
)


def card_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the payment card numbers of a text, in order.

    Grouped as on a card (4 4 4 4, 4 6 5, 4 6 4, 6 13, by blanks or hyphens), or in one piece with
    a word for a card within 64 characters: one 16-digit number in ten has a right check digit. So
    is a number before an expiry date or a security code (4929 1234 5678 9015 12/27 123).

    Edge     the networks' own test numbers (4111 1111 1111 1111) are kept.
    Checked  tests/unit/corpus/pii/test_payment_card.py
    """
    found: dict[int, int] = {}  # start to end
    for match in _FOLLOWED.finditer(text):
        digits = "".join(_GROUPING.findall(match[0]))
        is_code = len(match["code"] or "") < _AMEX_CODE or len(digits) == _AMEX_LENGTH
        if is_code and _personal(digits) and _near_card_word(text, *match.span()):
            found[match.start()] = match.end()
    for match in _CANDIDATE.finditer(text):
        groups = _GROUPING.findall(match[0])
        if not _personal("".join(groups)):
            continue
        if len(groups) > 1:
            known = _printed(match[0], tuple(map(len, groups)))
        else:
            known = _near_card_word(text, *match.span())
        if known:  # of two from one start this one: it has all the digits
            found[match.start()] = match.end()
    yield from sorted(found.items())


def _personal(digits: str) -> bool:
    return valid_card(digits) and digits not in _TEST_CARDS


def valid_card(digits: str) -> bool:
    """Whether digits without blanks have a known issuer, its length and Luhn's check digit.

    From the right, every second digit is doubled, and counts the sum of its own digits; the sum
    of all must divide by 10.
    """
    known = any(
        first <= digits[: len(first)] <= last and len(digits) in lengths
        for first, last, lengths in _ISSUERS
    )
    if not known or len(set(digits[4:])) == 1:
        return False
    total = sum(int(d) for d in digits[-1::-2])
    return (total + sum(sum(divmod(2 * int(d), 10)) for d in digits[-2::-2])) % 10 == 0


def _printed(written: str, lengths: tuple[int, ...]) -> bool:
    if len({c for c in written if not c.isdigit()}) != 1:
        return False
    in_fours = all(n == 4 for n in lengths[:-1]) and lengths[-1] <= 4
    return in_fours or lengths in _GROUPS


def _near_card_word(text: str, start: int, stop: int) -> bool:
    around = f"{text[max(0, start - _CONTEXT) : start]} {text[stop : stop + _CONTEXT]}"
    return _CARD_WORD.search(around) is not None
