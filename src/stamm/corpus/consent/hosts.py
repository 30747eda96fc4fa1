"""Normalization of hosts: lower case, ASCII (IDNA), no final dot, no default port.

IPv6 addresses are shortened as in RFC 5952, in brackets only before a port.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address
from urllib.parse import SplitResult, unquote, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
# Most addresses. urlsplit reads them in the same way, and takes some ten times as long.
_PLAIN = re.compile(r"(https?)://([A-Za-z0-9.:_-]+)(?=[/?#]|\Z)")
_LONGEST_NAME = 253
# Before percent-encoding and IDNA are undone.
_LONGEST_NETLOC = 2048
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
    parts = SplitResult(scheme, netloc, "", "", "")
    name = (parts.hostname or "").rstrip(".")
    if "%" in name:
        name = unquote(name, errors="strict").lower()
    if not name.isascii():
        name = name.encode("idna").decode("ascii")
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


def www_variant(host: str) -> str:
    """The same host with "www." added, or removed if it has it."""
    return host.removeprefix("www.") if host.startswith("www.") else f"www.{host}"
