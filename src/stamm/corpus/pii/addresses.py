"""PII detection of public IP addresses, version 4 and 6, and not versions, sections or articles."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from stamm.corpus.pii.word_boundaries import WORD

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
    """Yield start and end of the public IP addresses of a text, in order.

    Version 4 needs word boundaries and must not be a version or section number; where the text cites
    Swiss law it also needs a network word nearby, since the numbers of that law look alike
    ("SR 172.220.111.3"). Version 6 in every spelling, with its zone.

    Edge     private, loopback, multicast and documentation addresses are not personal and are kept.
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
