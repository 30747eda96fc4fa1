"""PII detection of phone numbers: candidates by form, checked by the numbering plan of the country.

The plans are those of the library phonenumbers. Its own search of a whole text is not used: it takes
numbers in URLs for phones, and is far slower.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from phonenumbers import Leniency, PhoneNumberMatcher

from stamm.base.files import read_json
from stamm.corpus.pii.patterns import WORD

# Seven to seventeen digits in small groups with word boundaries: not part of a URL, of a longer
# number, or of a name. E.164 numbers have at most 15 digits, after at most 00 and (0).
_CANDIDATE = re.compile(
    rf"(?<![{WORD}/=&?#%@+-])(?<![0-9][.,])(?:\+ ?|\(\+?)?[0-9]"
    r"(?:(?:[ \u00a0\u202f.-]|[ \u00a0]?[()/–-][ \u00a0]?|\) ?\()?[0-9]){6,16}"
    rf"(?!(?![A-Z][a-z])[{WORD}@=]|[.,/-][0-9])"
)
_UNGROUPED = re.compile(r"[0-9]+")
_BEGINS_OR_GROUPS = re.compile(r"^\(?0|[(-]")
_DIGITS_WITHOUT_KEYWORD = range(10, 13)  # shorter rows of digits are tables and tariffs
# 2019-05-03, 3.5.2019, 10.05.2019 12:30, 1914-1918, 0.3333333, SR 0.631.112.514: not phones.
_OTHER = re.compile(
    r"(?:0\.|[12][0-9]{3}[ ./–-](?:[12][0-9]{3}\b|[01]?[0-9][ ./–-])|"
    r"[0-3]?[0-9][./-][01]?[0-9][./-][12][0-9]{3}\b)"
)
_CONTEXT = 32
_KEYWORD = re.compile(
    r"phone|\btel\b|tel[.:+]|tél|teléf|telef|fax|mobil|handy|natel|hotline|\bcall|\bphon|whatsapp|"
    r"\bsms\b|\bdial|anruf|rufnummer|appel|llam|ligue|chiam|cellul|celular|\bgsm\b|puhelin|"
    r"тел|моб|звон|τηλ|电话|手机|電話|전화|टेलीफोन|هاتف|טלפון|\bĐT\b|điện thoại",
    re.IGNORECASE,
)
# Countries of a language, largest numbering plans first. For a language that is missing here, or
# spoken in too many countries to guess (Arabic, Swahili), only international numbers are found.
_REGIONS: dict[str, list[str]] = read_json(Path(__file__).with_name("numbers.json"))[
    "phone_regions"
]


def phone_spans(text: str, language: str = "") -> Iterator[tuple[int, int]]:
    """Yield start and end of the phone numbers of a text, in order.

    language   of the text, as deu_Latn; its countries write national numbers without country code

    +41 44 668 18 00     found in any language and grouping, if valid
    044 668 18 00        in the language's countries, if valid and grouped as in that country.
                         Groups without 0, bracket or hyphen (912 345 678) may be any amount
    044/668 1800         any or no grouping, only after a keyword for phone within 32 characters: an
                         order number looks the same

    Edge     a word with a capital may follow without a blank (Tel. 044 668 18 00Fax).
    Checked  tests/unit/corpus/pii/test_phone.py
    """
    regions = _REGIONS.get(language[:3], ())
    for candidate in _CANDIDATE.finditer(text):
        if _OTHER.match(candidate[0]):
            continue
        span = _international(text, candidate) or _national(text, candidate, regions)
        if span is not None:
            yield candidate.start() + span[0], candidate.start() + span[1]


def _international(text: str, candidate: re.Match[str]) -> tuple[int, int] | None:
    written, shift = candidate[0], 0
    if written.lstrip("(").startswith("00"):
        # "00" is the international prefix of some countries only; "+" is valid everywhere.
        written, shift = written.replace("00", "+", 1), 1
    if "+" not in written:
        return None
    span = _validated(written, None, Leniency.VALID)
    if span is None:
        return None
    if _UNGROUPED.fullmatch(candidate[0]) and not _follows_keyword(text, candidate):
        return None
    return span[0], span[1] + shift


def _national(
    text: str, candidate: re.Match[str], regions: Sequence[str]
) -> tuple[int, int] | None:
    written = candidate[0]
    if not regions:
        return None
    named = _follows_keyword(text, candidate)
    if not named and not _looks_national(written):
        return None
    leniency = Leniency.VALID if named else Leniency.STRICT_GROUPING
    for region in regions:
        span = _validated(written, region, leniency)
        # Part of a longer row of numbers is a phone only after a keyword.
        if span and (named or span == (0, len(written))):
            return span
    return None


def _looks_national(written: str) -> bool:
    digits = sum(c.isdigit() for c in written)
    return (
        digits in _DIGITS_WITHOUT_KEYWORD
        and _UNGROUPED.fullmatch(written) is None
        and _BEGINS_OR_GROUPS.search(written) is not None
    )


def _validated(written: str, region: str | None, leniency: int) -> tuple[int, int] | None:
    for match in PhoneNumberMatcher(written, region, leniency=leniency, max_tries=3):
        start, stop = match.start, match.end
        # The matcher leaves out the opening bracket of a closing one in the number.
        if start and written[start - 1] == "(" and ")" in written[start:stop]:
            start -= 1
        return start, stop
    return None


def _follows_keyword(text: str, candidate: re.Match[str]) -> bool:
    before = text[max(0, candidate.start() - _CONTEXT) : candidate.start()]
    return _KEYWORD.search(before) is not None
