"""PII detection of IBANs in any layout, by country, length and check digits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stamm.corpus.pii.word_boundaries import WORD

_HEAD = re.compile(r"(?:(?<![A-Za-z0-9])|(?<=IBAN))[A-Z]{2}(?=[ \u00a0\u202f.-]?[0-9])")
_IN_WORD = re.compile(f"[{WORD}]")
_BLANKS = " \t\u00a0\u2009\u202f"
_SEPARATORS = f"{_BLANKS}.-"
_SYMBOLS = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_INDENT = 12  # blanks around a line break; more is another column or another block
# Length by country. Source: the ISO 13616 registry of IBAN formats kept by SWIFT.
_TABLE = (
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 "
    "DK18 DO28 EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 "
    "IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 "
    "MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 "
    "SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30"
)
IBAN_LENGTHS = {entry[:2]: int(entry[2:]) for entry in _TABLE.split()}
"""The number of letters and digits by country."""


def iban_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the IBANs of a text, in order.

    Two symbols may be separated by one blank, point or hyphen, or by one line break with up to 12
    blanks on either side.

    Edge     lower-case letters are not accepted: no bank prints them.
    Checked  tests/unit/corpus/pii/test_pii.py
    """
    for head in _HEAD.finditer(text):
        length = IBAN_LENGTHS.get(head[0])
        if length is None:
            continue
        symbols, at = head[0], head.end()
        while len(symbols) < length:
            at = _past_separator(text, at)
            symbol = text[at : at + 1]
            if symbol not in _SYMBOLS:
                break
            symbols, at = symbols + symbol, at + 1
        if not _IN_WORD.match(text, at) and valid_iban(symbols):
            yield head.start(), at


def valid_iban(symbols: str) -> bool:
    """Whether capital letters and digits without blanks are an IBAN.

    The country's length, and ISO 7064: with the first four symbols moved to the end and letters
    written as 10 to 35, the number leaves 1 when divided by 97.
    """
    if len(symbols) != IBAN_LENGTHS.get(symbols[:2], -1) or not symbols[2:4].isdigit():
        return False
    return int("".join(str(int(c, 36)) for c in symbols[4:] + symbols[:4])) % 97 == 1


def _past_separator(text: str, at: int) -> int:
    if text[at : at + 1] in _SYMBOLS:
        return at
    end, breaks = at, 0
    while text[end : end + 1] and end - at <= 2 * _INDENT:
        if text[end] == "\n":
            breaks += 1
        elif text[end] != "\r" and text[end] not in _BLANKS:
            break
        end += 1
    if breaks == 1:
        return end
    return at + 1 if text[at : at + 1] and text[at] in _SEPARATORS else at
