"""PII detection by form: e-mail addresses, public IP addresses, IBANs and payment cards.

E-mail addresses spelled for people ("jane at example dot org") and mailboxes in quotation marks are
not detected: both look like prose. Words are bounded by letters of the scripts that separate words
by blanks: Chinese, Japanese or Thai text may directly precede an address or a number; such a letter
is not part of it, and must not hide it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stamm.base.files import read_json

LETTERS = "A-Za-zÀ-ɏͰ-ϿЀ-ӿ"
"""Latin, Greek and Cyrillic letters, for use inside the brackets of a pattern."""

WORD = f"{LETTERS}0-9_"
"""These letters, digits and the underscore."""

# First of the ten digits of scripts in wide use. `_PLAIN` adds wide East Asian and narrow
# typographic characters.
_DIGITS: Final = (0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6, 0x0C66,
                  0x0CE6, 0x0D66, 0x0DE6, 0x0E50, 0x0ED0, 0x0F20, 0x1040, 0x1090, 0x17E0, 0x1810)  # fmt: skip
_PLAIN: Final = {
    **{wide: wide - 0xFEE0 for wide in range(0xFF01, 0xFF5F)},
    **{zero + value: ord("0") + value for zero in _DIGITS for value in range(10)},
    **dict.fromkeys((0x2010, 0x2011, 0x2212), ord("-")),
    **dict.fromkeys((0x2007, 0x2009, 0x202F, 0x3000), 0xA0),
}
# Common in all Chinese text, and irrelevant to the patterns: alone they need no translation.
_USUAL: Final = "！（），：；？"
_OTHER: Final = re.compile(f"[{''.join(chr(c) for c in _PLAIN if chr(c) not in _USUAL)}]")


def to_ascii_signs(text: str) -> str:
    """`text` in as many characters: digits of other scripts and wide characters as ASCII."""
    return text.translate(_PLAIN) if not text.isascii() and _OTHER.search(text) else text


_NUMBERS = read_json(Path(__file__).with_name("numbers.json"))
# Networks of cards: the number begins with a value from the first to the second text, and has one of
# these lengths. Source: ISO/IEC 7812 and the networks' documents.
_ISSUERS: list[tuple[str, str, list[int]]] = _NUMBERS["card_issuers"]
_TEST_CARDS = frozenset(_NUMBERS["test_cards"])  # of the networks' manuals: not personal
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
_CARD_CONTEXT = 64
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
    end_by_start: dict[int, int] = {}  # start to end
    for match in _FOLLOWED.finditer(text):
        digits = "".join(_GROUPING.findall(match[0]))
        is_code = len(match["code"] or "") < _AMEX_CODE or len(digits) == _AMEX_LENGTH
        if is_code and _personal(digits) and _near_card_word(text, *match.span()):
            end_by_start[match.start()] = match.end()
    for match in _CANDIDATE.finditer(text):
        groups = _GROUPING.findall(match[0])
        if not _personal("".join(groups)):
            continue
        if len(groups) > 1:
            known = _printed(match[0], tuple(map(len, groups)))
        else:
            known = _near_card_word(text, *match.span())
        if known:  # replaces an earlier match with the same start, which lacks digits
            end_by_start[match.start()] = match.end()
    yield from sorted(end_by_start.items())


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
    around = f"{text[max(0, start - _CARD_CONTEXT) : start]} {text[stop : stop + _CARD_CONTEXT]}"
    return _CARD_WORD.search(around) is not None


_HEAD = re.compile(r"(?:(?<![A-Za-z0-9])|(?<=IBAN))[A-Z]{2}(?=[ \u00a0\u202f.-]?[0-9])")
_IN_WORD = re.compile(f"[{WORD}]")
_BLANKS = " \t\u00a0\u2009\u202f"
_SEPARATORS = f"{_BLANKS}.-"
_SYMBOLS = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_INDENT = 12  # blanks around a line break; more is another column or another block
IBAN_LENGTHS: dict[str, int] = _NUMBERS["iban_lengths"]
"""The number of letters and digits by country: the ISO 13616 registry of IBAN formats kept by SWIFT."""


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
    """Whether symbols are an IBAN: length of the country, and 1 modulo 97 (ISO 7064)."""
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


_IN_MAILBOX = re.compile(rf"[{LETTERS}0-9._%+-]")
_STARTS_MAILBOX = re.compile(rf"[{WORD}]")
_DOMAIN = re.compile(
    rf"((?:[{LETTERS}0-9](?:[{LETTERS}0-9-]{{0,61}}[{LETTERS}0-9])?\.){{1,8}})"
    rf"([Xx][Nn]--[A-Za-z0-9-]{{0,58}}[A-Za-z0-9]|[{LETTERS}]{{2,24}})"
    rf"(?![{LETTERS}0-9]|\.[{LETTERS}])"
)
_LONGEST_DOMAIN = 255
# icon@2x.png and similar are files; a.b.py is a host in Paraguay.
_FILE_ENDS = ("png", "jpg", "jpeg", "gif", "svg", "webp", "html", "css", "js", "ts", "py", "json")


def email_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the e-mail addresses of a text, in order.

    Edge   `git@host:path` is a repository, not a mailbox; `icon@2x.png` is a file.
    """
    at = text.find("@")
    while at != -1:
        start = _mailbox_start(text, at)
        domain = _DOMAIN.match(text, at + 1, at + 1 + _LONGEST_DOMAIN)
        if start < at and domain and not _is_file(domain):
            repository = text[start:at] == "git" and text[domain.end() : domain.end() + 1] == ":"
            if not repository:
                yield start, domain.end()
        at = text.find("@", at + 1)


def _mailbox_start(text: str, at: int) -> int:
    """Start of the mailbox before the "@" at `at`; `at` when there is none.

    Edge   a mailbox beyond the 64 characters of RFC 5321 is covered whole.
    """
    start = at
    if text[at - 1 : at] == ".":
        return at
    while start and _IN_MAILBOX.match(text, start - 1):
        start -= 1
    while start < at and not _STARTS_MAILBOX.match(text, start):
        start += 1
    return start


def _is_file(domain: re.Match[str]) -> bool:
    return domain[1].count(".") == 1 and domain[2].lower() in _FILE_ENDS


_IPV4 = re.compile(
    rf"(?<![{WORD}.])(?:[0-9]{{1,3}}\.){{3}}[0-9]{{1,3}}(?![{WORD}]|\.[0-9]|-[A-Za-z])"
)
# Version 6 in use begins with 2 or 3 (global unicast, RFC 4291), or wraps an address of version 4:
# ::ffff:a.b.c.d (RFC 4291) and 64:ff9b::a.b.c.d (RFC 6052).
_IPV6 = re.compile(
    rf"(?<![{WORD}:.])(?:[23][0-9A-Fa-f]{{3}}:|::[Ff]{{4}}:|64:[Ff][Ff]9[Bb]:)"
    rf"[0-9A-Fa-f:.]{{1,45}}(?![{WORD}])(?:%[0-9A-Za-z._~-]{{1,32}})?"
)
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
_CONTEXT = 48
_VERSION = re.compile(
    r"(?:\b(?:versions?|ver|release|rel|build|firmware|v|section|chapter|clause|Art)\.?|§|"
    r"[A-Za-z][-_]|[A-Za-z0-9_.]/)[\s:=*\[(]*$",
    re.IGNORECASE,
)
_NETWORK = re.compile(
    rf"(?<![{WORD}])(?:ips?|ipv4|address(?:es)?|adressen?|addr|hosts?|servers?|ping|dns|nameservers?|subnet|"
    rf"gateway|ports?|tcp|udp|ssh|curl|client|proxy|router|network|netzwerk|listen)(?![{WORD}])",
    re.IGNORECASE,
)
# A text that cites classified Swiss law: "SR 172.220", "RS 0.142.30", "[SR **172.220.111.3**]".
_SWISS_LAW = re.compile(r"\b(?:SR|RS)[\s*\[]{0,4}[0-9]{1,3}(?:\.[0-9]{1,3})+")
_LARGEST_SECTION = 63


def address_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the public IP addresses of a text, in order, with their zones.

    Edge     a version or section number is none; where the text cites Swiss law ("SR 172.220.111.3"),
             version 4 needs a network word nearby. Private addresses and those of examples are kept.
    Checked  tests/unit/corpus/pii/test_pii.py
    """
    yield from sorted([*_version4(text), *_version6(text)])


def _version4(text: str) -> Iterator[tuple[int, int]]:
    cites_law: bool | None = None
    for match in _IPV4.finditer(text):
        if cites_law is None:
            cites_law = _SWISS_LAW.search(text) is not None
        if _public_ipv4(text, match, cites_law):
            yield match.span()


def _version6(text: str) -> Iterator[tuple[int, int]]:
    for match in _IPV6.finditer(text):
        written, percent, _ = match[0].partition("%")
        address = written.rstrip(".")
        if address.endswith(":") and not address.endswith("::"):
            address = address[:-1]
        if _public_ipv6(address):
            whole = bool(percent) and address == written
            yield match.start(), match.end() if whole else match.start() + len(address)


def _public_ipv4(text: str, match: re.Match[str], cites_law: bool) -> bool:
    try:
        address = ipaddress.IPv4Address(match[0])
    except ValueError:
        return False
    if not address.is_global or address.is_multicast:
        return False
    before = text[max(0, match.start() - _CONTEXT) : match.start()]
    if _VERSION.search(before):
        return False
    # 3.2.1.4 is more often a section or a version than an address: 1 address in 256 looks so.
    if cites_law or max(address.packed) <= _LARGEST_SECTION:
        after = text[match.end() : match.end() + _CONTEXT]
        return before.endswith("//") or _NETWORK.search(f"{before} {after}") is not None
    return True


def _public_ipv6(written: str) -> bool:
    try:
        address = ipaddress.IPv6Address(written)
    except ValueError:
        return False
    wrapped = address.ipv4_mapped
    if wrapped is None and address in _TRANSLATED:
        wrapped = ipaddress.IPv4Address(address.packed[-4:])
    if wrapped is not None:
        return wrapped.is_global and not wrapped.is_multicast
    return address.is_global and not address.is_multicast
