"""Normalization of hosts: lower case, ASCII (IDNA), no final dot, no default port.

IPv6 addresses are shortened as in RFC 5952, in brackets only before a port.

Source   Unicode Technical Standard 46, non-transitional, as browsers apply it: straße.example is not
         strasse.example. Python's codec "idna" follows RFC 3490 of 2003, by which they are one host.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address
from urllib.parse import SplitResult, unquote, urlsplit

import idna

_DEFAULT_PORTS = {"http": 80, "https": 443}
# Matches most addresses. urlsplit gives the same result in about ten times the time.
_PLAIN = re.compile(r"(https?)://([A-Za-z0-9.:_-]+)(?=[/?#]|\Z)")
_LONGEST_NAME = 253
_LONGEST_LABEL = 63
# `str.lower` writes a last Σ as ς, which is another letter in a host.
_SIGMA, _SIGMA_LOWER = "Σ", "σ"
# Before percent-encoding and IDNA are undone.
_LONGEST_NETLOC = 2048
_DOMAIN = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)+")
# Not allowed in a host name, also when percent-encoded.
_NOT_A_NAME = re.compile(r"[\x00-\x20\x7f/?#@\\%]")


def normalize_host(url: str) -> str:
    """The normalized host of an address; "" when it names none.

    Raises   ValueError for an address that cannot be parsed, or an invalid host name.
    """
    plain = _PLAIN.match(url)
    if plain is not None:
        return _normalize(plain[1], plain[2])
    parts = urlsplit(url)
    if "\\" in parts.netloc:
        # Browsers end the host there, other clients at the next slash: the host is ambiguous.
        raise ValueError("a backslash in the host")
    return _normalize(parts.scheme, parts.netloc.rpartition("@")[2])


@lru_cache(maxsize=8192)
def _normalize(scheme: str, netloc: str) -> str:
    if len(netloc) > _LONGEST_NETLOC:
        raise ValueError("not a host name")
    parts = SplitResult(scheme, netloc.replace(_SIGMA, _SIGMA_LOWER), "", "", "")
    name = (parts.hostname or "").rstrip(".")
    if "%" in name:
        name = ascii_name(unquote(name, errors="strict"))
    elif not name.isascii():
        name = ascii_name(name)
    if _NOT_A_NAME.search(name):
        raise ValueError("not a host name")
    if not name:
        return ""
    if netloc.startswith("["):
        name = str(IPv6Address(name))
    elif len(name) > _LONGEST_NAME or not all(name.split(".")):
        raise ValueError("not a host name")
    port = parts.port
    if port is not None and port != _DEFAULT_PORTS.get(scheme.lower()):
        return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
    return name


def ascii_name(name: str) -> str:
    """A host name in lower case and ASCII (xn--…), its labels mapped by UTS 46.

    Raises   ValueError for a name with a disallowed character, or a label that is too long.
    """
    lower = name.replace(_SIGMA, _SIGMA_LOWER).lower()
    if lower.isascii():
        return lower
    # `idna.encode` is not used: it rejects existing names, such as those with emoji.
    labels = idna.uts46_remap(lower, std3_rules=False).split(".")
    return ".".join(map(_ascii_label, labels))


def _ascii_label(label: str) -> str:
    if label.isascii():
        return label
    written = f"xn--{label.encode('punycode').decode('ascii')}"
    if label.startswith("xn--") or len(written) > _LONGEST_LABEL:
        raise ValueError("not a host name")
    return written


def www_variant(host: str) -> str:
    """The same host with "www." added, or removed if it has it."""
    return host.removeprefix("www.") if host.startswith("www.") else f"www.{host}"


def named_domain(written: str) -> str:
    """The normalized domain that a line of a list names; "*.example.org" is example.org.

    Raises   ValueError for a line that names no domain, or only a top level such as "org".
    """
    bare = written.removeprefix("*").removeprefix(".")
    domain = normalize_host(bare if "://" in bare else f"//{bare}").partition(":")[0]
    if _DOMAIN.fullmatch(domain) is None:
        raise ValueError(f"{written[:80]!r} names no domain")
    return domain
