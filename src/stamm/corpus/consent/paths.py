"""Path patterns of tdmrep.json and ai.txt: a prefix, `*` for anything, `$` for the end.

Source   RFC 9309, 2.2.2 and 2.2.3; the TDM Reservation Protocol and ai.txt reuse them.
"""

from __future__ import annotations

from stamm.corpus.consent.robots_matcher import normalize_path, path_of, percent_encode


def url_path(url: str) -> str:
    """Normalized path and query of an address; `*` and `$` in it are escaped."""
    return normalize_path(path_of(url).encode("utf-8", "surrogatepass")).decode("ascii")


def path_pattern(text: str) -> str:
    """A pattern, normalized as in `url_path`; only a final `$` means the end."""
    end = "$" if text.endswith("$") else ""
    return _encode(text.removesuffix("$")).replace("$", "%24") + end


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches a path, both normalized.

    Each part between two `*` is searched once, from left to right, so that the time grows with
    the length of the path, whatever the pattern.
    """
    first, *rest = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    at = len(first)
    anchored = pattern.endswith("$")
    if anchored and not rest:
        return at == len(path)
    last = rest.pop() if anchored else ""
    for part in rest:
        found = path.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(path) - len(last) >= at and path.endswith(last)


def _encode(text: str) -> str:
    return percent_encode(text.encode("utf-8", "surrogatepass")).decode("ascii")
