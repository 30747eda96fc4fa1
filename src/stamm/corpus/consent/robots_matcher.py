"""Paths of robots.txt rules: normalization, and the longest pattern that matches (RFC 9309, 2.2.2).

`*` matches any octets, `$` at the end the end of the path; every other octet itself.
No regular expressions: a pattern is split at its stars, and its pieces are searched from left to
right, each after the one before. The leftmost place is always the best, because a star matches
anything, so there is no backtracking: one pattern costs one pass over the path.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from stamm.corpus.consent.robots_parser import Rule

_TO_ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}|[\x80-\xff]")
_UNRESERVED = re.compile(rb"%(4[1-9A-F]|5[0-9A]|6[1-9A-F]|7[0-9A]|3[0-9]|2D|2E|5F|7E)")
# To be encoded in an address (RFC 3986, 2): controls, blanks, nine signs.
_NOT_IN_ADDRESSES = re.compile(rb'[\x00-\x20"<>\\^`{|}\x7f]')
PLAIN = bytes(set(range(0x21, 0x7F)) - set(b'#%*$"<>\\^`{|}'))
"""Octets that mean themselves in rules and paths."""
_PATH_START = re.compile(r"[/?;]")


def escaped(octets: bytes) -> bytes:
    """`octets` with escapes in capitals, those outside ASCII percent-encoded (RFC 9309, 2.2.2)."""
    # `b"%" in octets` first tries b"%" as a number, and takes three times as long as `find`.
    if octets.isascii() and octets.find(b"%") < 0:
        return octets
    return _TO_ESCAPE.sub(_escape, octets)


def decoded(path: bytes) -> bytes:
    """An escaped path with letters, digits, "-", ".", "_" and "~" decoded (RFC 3986, 2.3)."""
    if b"%" not in path:
        return path
    return _UNRESERVED.sub(lambda escape: bytes([int(escape[1], 16)]), path)


def percent_encode(octets: bytes) -> bytes:
    """`octets` percent-encoded as in an address, in the normal form (RFC 3986, 2 and 6.2.2)."""
    return _NOT_IN_ADDRESSES.sub(_escape, decoded(escaped(octets)))


def normalize_path(path: bytes) -> bytes:
    """The normal form of a path; "*" and "$" in it are escaped.

    Source   RFC 9309, 2.2.2 and 2.2.3; RFC 3986, 5.2.4, for "." and "..".
    """
    if not path.translate(None, PLAIN) and b"/." not in path:
        return path
    return _without_dots(percent_encode(path)).replace(b"*", b"%2A").replace(b"$", b"%24")


def normalize_pattern(pattern: bytes) -> bytes:
    """The normal form of a pattern, to match normalized paths: `*` and a final `$` are kept."""
    body = pattern.removesuffix(b"$")
    if not body.translate(None, PLAIN + b"*"):
        return pattern
    return percent_encode(body).replace(b"$", b"%24") + pattern[len(body) :]


def path_of(url: str) -> str:
    """The part of an address after the host, without the fragment; "/" when there is none.

    Source   google/robotstxt, GetPathParamsQuery: also addresses without a scheme, and a query or
             parameters without a path.
    """
    start = 2 if url.startswith("//") else 0
    scheme = url.find("://", start)
    first = _PATH_START.search(url, start)
    if scheme >= 0 and (first is None or first.start() > scheme):
        first = _PATH_START.search(url, scheme + 3)
    if first is None:
        return "/"
    end = url.find("#", start)
    if end < 0:
        end = len(url)
    elif end < first.start():
        return "/"
    path = url[first.start() : end]
    return path if path.startswith("/") else f"/{path}"


class RankedRule(NamedTuple):
    """A rule with its precedence: of those that match the smallest decides."""

    negative_length: int
    loses_ties: bool
    rule: Rule


class _Starred(NamedTuple):
    """A pattern with stars: the pieces before the first, between them, and at the end."""

    head: bytes
    pieces: tuple[bytes, ...]
    end: bytes | None

    @classmethod
    def of(cls, body: bytes, anchored: bool) -> _Starred:
        """The pattern `body`, which must end with the path when it is `anchored`."""
        head, *rest = body.split(b"*")
        end = rest.pop() if anchored else None
        return cls(head, tuple(piece for piece in rest if piece), end)

    def matches(self, path: bytes) -> bool:
        if not path.startswith(self.head):
            return False
        at = len(self.head)
        for piece in self.pieces:
            at = path.find(piece, at)
            if at < 0:
                return False
            at += len(piece)
        return self.end is None or (at + len(self.end) <= len(path) and path.endswith(self.end))


def longest_match(patterns: Iterable[tuple[bytes, RankedRule]], path: bytes) -> RankedRule | None:
    """The rule that decides a path, as by `LongestMatch`: for a single path."""
    best = None
    for pattern, candidate in patterns:
        if (best is None or candidate < best) and matches(pattern, path):
            best = candidate
    return best


class LongestMatch:
    """Finds the longest rule that matches; of equally long ones the one that wins ties.

    Prefixes are sorted: all prefixes of a path are on one chain, from the one that sorts just before
    it to ever shorter ones. Each stores the best rule of the rest of its chain.
    """

    def __init__(self, patterns: Iterable[tuple[bytes, RankedRule]]) -> None:
        exact: dict[bytes, RankedRule] = {}
        plain: dict[bytes, RankedRule] = {}
        starred = []
        for pattern, candidate in patterns:
            body = pattern.removesuffix(b"$")
            anchored = len(body) < len(pattern)
            if body.find(b"*") < 0:
                known = exact if anchored else plain
                known[body] = min(candidate, known.get(body, candidate))
                continue
            cut = _Starred.of(body, anchored)
            if cut.pieces or cut.end:
                starred.append((candidate, cut))
            else:
                plain[cut.head] = min(candidate, plain.get(cut.head, candidate))
        self._exact = exact
        self._starred = sorted(starred)
        self._prefixes = sorted(plain)
        self._shorter, self._best = _chains(self._prefixes, plain)

    def find(self, path: bytes) -> RankedRule | None:
        """The rule that decides a path, None when none matches."""
        best = self._exact.get(path)
        at = bisect_right(self._prefixes, path) - 1
        while at >= 0:
            if path.startswith(self._prefixes[at]):
                if best is None or self._best[at] < best:
                    best = self._best[at]
                break
            at = self._shorter[at]
        for candidate, pattern in self._starred:
            if best is not None and best < candidate:
                break
            if pattern.matches(path):
                best = candidate
                break
        return best


def _escape(escape: re.Match[bytes]) -> bytes:
    return escape[0].upper() if len(escape[0]) == 3 else b"%%%02X" % ord(escape[0])


def _without_dots(path: bytes) -> bytes:
    """Remove "." and "..": clients request /a for /x/../a."""
    if b"/." not in path:
        return path
    before, mark, query = path.partition(b"?")
    kept: list[bytes] = []
    *parts, last = before.split(b"/")[1:]
    for part in (*parts, last):
        if part == b"..":
            del kept[-1:]
        elif part != b".":
            kept.append(part)
    if last in (b".", b".."):
        kept.append(b"")
    return b"/" + b"/".join(kept) + mark + query


def matches(pattern: bytes, path: bytes) -> bool:
    """Whether a pattern matches a path, both normalized."""
    body = pattern.removesuffix(b"$")
    anchored = len(body) < len(pattern)
    if body.find(b"*") >= 0:
        return _Starred.of(body, anchored).matches(path)
    return path == body if anchored else path.startswith(body)


def _chains(
    prefixes: list[bytes], plain: dict[bytes, RankedRule]
) -> tuple[list[int], list[RankedRule]]:
    """For each prefix the index of its longest other prefix (-1 when there is none), and the best
    rule among itself and all its prefixes."""
    shorter: list[int] = []
    best: list[RankedRule] = []
    for at, prefix in enumerate(prefixes):
        above = at - 1
        while above >= 0 and not prefix.startswith(prefixes[above]):
            above = shorter[above]
        shorter.append(above)
        own = plain[prefix]
        best.append(own if above < 0 else min(own, best[above]))
    return shorter, best
