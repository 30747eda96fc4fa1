"""Hosts in their one spelling: lower case, ASCII (IDNA), no final dot, no default port."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import SplitResult, unquote, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
# Most addresses. urlsplit reads them in the same way, and takes some ten times as long.
_PLAIN = re.compile(r"(https?)://([A-Za-z0-9.:_-]+)(?=[/?#]|\Z)")
# What no host name holds, though a percent-encoded one could smuggle it in.
_NOT_A_NAME = re.compile(r"[\x00-\x20\x7f/?#@\\%]")


def normal_host(url: str) -> str:
    """The host of an address in its one spelling; "" when it names none.

    Raises   ValueError for an address that cannot be taken apart, or a host that no name can be.
    """
    plain = _PLAIN.match(url)
    if plain is not None:
        return _spelled(plain[1], plain[2])
    parts = urlsplit(url)
    return _spelled(parts.scheme, parts.netloc)


@lru_cache(maxsize=8192)
def _spelled(scheme: str, netloc: str) -> str:
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
    port = parts.port
    if port is not None and port != _DEFAULT_PORTS.get(scheme.lower()):
        return f"{name}:{port}"
    return name
