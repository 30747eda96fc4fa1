"""Hosts in their one spelling: lower case, ASCII (IDNA), no final dot, no default port.

IPv6 addresses are shortened as RFC 5952 has it, and stand in brackets before a port only.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address
from urllib.parse import SplitResult, unquote, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
# Most addresses. urlsplit reads them in the same way, and takes some ten times as long.
_PLAIN = re.compile(r"(https?)://([A-Za-z0-9.:_-]+)(?=[/?#]|\Z)")
# What no host name holds, though a percent-encoded one could smuggle it in.
_LONGEST_NAME = 253
# Before percent-encoding and IDNA are undone.
_LONGEST_NETLOC = 2048
_NOT_A_NAME = re.compile(r"[\x00-\x20\x7f/?#@\\%]")


def normalize_host(url: str) -> str:
    """The host of an address in its one spelling; "" when it names none.

    Raises   ValueError for an address that cannot be taken apart, or a host that no name can be.
    """
    plain = _PLAIN.match(url)
    if plain is not None:
        return _spelled(plain[1], plain[2])
    parts = urlsplit(url)
    if "\\" in parts.netloc:
        # Browsers end the host there, other clients at the next slash: nobody knows who was asked.
        raise ValueError("a backslash in the host")
    return _spelled(parts.scheme, parts.netloc.rpartition("@")[2])


@lru_cache(maxsize=8192)
def _spelled(scheme: str, netloc: str) -> str:
    if len(netloc) > _LONGEST_NETLOC:
        raise ValueError("the host is no name")
    parts = SplitResult(scheme, netloc, "", "", "")
    name = (parts.hostname or "").rstrip(".")
    if "%" in name:
        name = unquote(name, errors="strict").lower()
    if not name.isascii():
        name = name.encode("idna").decode("ascii")
    if _NOT_A_NAME.search(name):
        raise ValueError("the host is no name")
    if not name:
        return ""
    if netloc.startswith("["):
        name = str(IPv6Address(name))
    elif len(name) > _LONGEST_NAME or not all(name.split(".")):
        raise ValueError("the host is no name")
    port = parts.port
    if port is not None and port != _DEFAULT_PORTS.get(scheme.lower()):
        return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
    return name


def www_variant(host: str) -> str:
    """The same host with "www." added, or removed if it has it."""
    return host.removeprefix("www.") if host.startswith("www.") else f"www.{host}"
