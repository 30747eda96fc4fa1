"""Normalization of URLs, so that a request matches a page whatever the spelling of its URL."""

from __future__ import annotations

from stamm.corpus.consent.hosts import normalize_host
from stamm.corpus.consent.robots_matcher import decoded, escaped, path_of
from stamm.corpus.records import clean_field


def normal_address(url: str) -> str:
    """The normalized form of a URL.

    Scheme and host in lower case, the host in ASCII without final dot, default port and user
    name; "/" for no path; the fragment left out; percent-encoding in capitals, of blanks and of
    non-ASCII characters, never of letters, digits, "-", ".", "_" and "~"; no invisible characters.

    Edge     text without a host is unchanged, except for invisible characters.
    Source   RFC 3986, 6.2.2 and 6.2.3; RFC 3987, 3.1
    Checked  tests/unit/corpus/test_deletions.py
    """
    cleaned = clean_field(url).strip()
    scheme, colon, _ = cleaned.partition("://")
    try:
        host = normalize_host(cleaned)
    except ValueError:
        host = ""
    if not host or not colon:
        return cleaned
    return f"{scheme.lower()}://{host}{_spelled(path_of(cleaned))}"


def normal_fragment(url: str) -> str:
    """The fragment that `normal_address` drops, normalized, with its "#"; "" without one."""
    _, mark, fragment = clean_field(url).strip().partition("#")
    return mark + _spelled(fragment) if fragment else ""


def _spelled(text: str) -> str:
    octets = escaped(text.encode("utf-8", "surrogatepass")).replace(b" ", b"%20")
    return decoded(octets).decode("ascii")
