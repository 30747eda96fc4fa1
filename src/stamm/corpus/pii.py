"""Personal data in text: e-mail addresses, public IP addresses and IBANs become markers.

Only counts leave this file; a value found is neither logged nor kept.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass

from stamm.corpus.config import PiiConfig
from stamm.corpus.special_tokens import PII_MARKERS

# Letters of scripts that separate words by blanks. Chinese or Thai text may run straight into an
# address, and must not be swallowed with it.
_LETTERS = "A-Za-zÀ-ɏͰ-ϿЀ-ӿ"
_IN_MAILBOX = re.compile(rf"[{_LETTERS}0-9._%+-]")
_STARTS_MAILBOX = re.compile(rf"[{_LETTERS}0-9_]")
_DOMAIN = re.compile(
    rf"((?:[{_LETTERS}0-9](?:[{_LETTERS}0-9-]{{0,61}}[{_LETTERS}0-9])?\.){{1,8}})([{_LETTERS}]{{2,24}}|"
    rf"[Xx][Nn]--[A-Za-z0-9-]{{0,58}}[A-Za-z0-9])"
    rf"(?![{_LETTERS}0-9_-]|\.[{_LETTERS}0-9])"
)
_LONGEST_DOMAIN = 255
# icon@2x.png and its kind are files; a.b.py is a host in Paraguay.
_FILE_ENDS = ("png", "jpg", "jpeg", "gif", "svg", "webp", "html", "css", "js", "ts", "py", "json")

_IPV4 = re.compile(r"(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?!\w|\.[0-9]|-[A-Za-z])")
# Global unicast, RFC 4291: what is assigned to anyone begins with 2 or 3.
_IPV6 = re.compile(r"(?<![\w:.])[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{2,40}(?!\w)")
_CONTEXT = 48
_VERSION = re.compile(
    r"(?:\b(?:versions?|ver|release|rel|build|firmware|v|section|chapter|clause|Art)\.?|§|"
    r"[A-Za-z][-_]|[A-Za-z0-9_.]/)[\s:=*\[(]*$",
    re.IGNORECASE,
)
_NETWORK = re.compile(
    r"\b(?:ips?|ipv4|address(?:es)?|adressen?|addr|hosts?|servers?|ping|dns|nameservers?|subnet|"
    r"gateway|ports?|tcp|udp|ssh|curl|client|proxy|router|network|netzwerk|listen)\b",
    re.IGNORECASE,
)
# A text that cites classified Swiss law: "SR 172.220", "RS 0.142.30", "[SR **172.220.111.3**]".
_SWISS_LAW = re.compile(r"\b(?:SR|RS)[\s*\[]{0,4}[0-9]{1,3}(?:\.[0-9]{1,3})+")
_LARGEST_SECTION = 63

_IBAN_HEAD = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}(?=[ \u00a0\u202f.-]?[0-9])")
_IBAN_SEPARATORS = " \t\u00a0\u2009\u202f.-"
_IBAN_SYMBOLS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# Length by country. Source: the ISO 13616 registry of IBAN formats kept by SWIFT.
_IBAN_TABLE = (
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 "
    "DK18 DO28 EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 "
    "IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 "
    "MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 "
    "SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30"
)
_IBAN_LENGTHS = {entry[:2]: int(entry[2:]) for entry in _IBAN_TABLE.split()}


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """A text without the personal data looked for, and how many of each kind were replaced."""

    text: str
    email: int = 0
    ip: int = 0
    iban: int = 0


def replace_pii(text: str, config: PiiConfig) -> Cleaned:
    """`text` with a marker in place of each value of the kinds switched on.

    email    `git@host:path` is a repository and stays
    ip       public addresses. IPv4 needs free borders and must not be a version or section
             number; where the text cites Swiss law it also needs a network word near by, since
             the numbers of that law look alike ("SR 172.220.111.3"). IPv6 within 2000::/3.
             Private, loopback and documentation addresses name nobody and stay
    iban     in any layout, with the length of its country and right check digits
    Checked  tests/unit/corpus/test_pii.py
    """
    ibans = emails = ips = 0
    if config.iban:
        text, ibans = _replace(text, _ibans(text), PII_MARKERS["iban"])
    if config.email:
        text, emails = _replace(text, _emails(text), PII_MARKERS["email"])
    if config.ip:
        text, ips = _replace(text, _addresses(text), PII_MARKERS["ip"])
    return Cleaned(text=text, email=emails, ip=ips, iban=ibans)


def valid_iban(symbols: str) -> bool:
    """Whether capital letters and digits without blanks are an IBAN.

    The country's length, and ISO 7064: with the first four symbols moved to the end and letters
    written as 10 to 35, the number leaves 1 when divided by 97.
    """
    if len(symbols) != _IBAN_LENGTHS.get(symbols[:2], -1) or not symbols[2:4].isdigit():
        return False
    return int("".join(str(int(c, 36)) for c in symbols[4:] + symbols[:4])) % 97 == 1


def _replace(text: str, spans: Iterator[tuple[int, int]], marker: str) -> tuple[str, int]:
    parts, count, end = [], 0, 0
    for start, stop in spans:
        if start >= end:
            parts += [text[end:start], marker]
            count, end = count + 1, stop
    return ("".join(parts) + text[end:], count) if count else (text, 0)


def _emails(text: str) -> Iterator[tuple[int, int]]:
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
    """Where the mailbox before the sign at `at` begins; `at` when none ends there.

    Edge   longer than the 64 characters of RFC 5321 it is taken whole: nothing stays in clear.
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


def _addresses(text: str) -> Iterator[tuple[int, int]]:
    cites_law = _SWISS_LAW.search(text) is not None
    found = [m.span() for m in _IPV4.finditer(text) if _public_ipv4(text, m, cites_law)]
    for match in _IPV6.finditer(text):
        stop = match.end()
        if match[0].endswith(":") and not match[0].endswith("::"):
            stop -= 1
        if _public_ipv6(text[match.start() : stop]):
            found.append((match.start(), stop))
    return iter(sorted(found))


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


def _public_ipv6(candidate: str) -> bool:
    try:
        return ipaddress.IPv6Address(candidate).is_global
    except ValueError:
        return False


def _ibans(text: str) -> Iterator[tuple[int, int]]:
    for head in _IBAN_HEAD.finditer(text):
        length = _IBAN_LENGTHS.get(head[0])
        if length is None:
            continue
        symbols, at = head[0], head.end()
        while len(symbols) < length:
            if text[at : at + 1] in _IBAN_SEPARATORS and text[at : at + 1]:
                at += 1
            symbol = text[at : at + 1]
            if not symbol or symbol not in _IBAN_SYMBOLS:
                break
            symbols, at = symbols + symbol, at + 1
        if not text[at : at + 1].isalnum() and valid_iban(symbols):
            yield head.start(), at
