"""Deletion requests: a text file with one per line, and the outcome of each.

A line is a URL (https://…), a document_id of the ledger (32 hexadecimal digits), "sha256:" with
the SHA-256 of a URL that is not to be disclosed: as in the ledger, or normalized (`normal_address`);
a domain (example.org: with its subdomains, as in a list of domains); or all pages of one host or of
one of its folders (https://example.org/*, https://example.org/folder/*: over http as well).

A fragment ("#…") is ignored for pages. It identifies the files of a repository: there a request with
a fragment means one file, and one without means all of them.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stamm.base.errors import DataError
from stamm.corpus.consent.hosts import named_domain, normalize_host
from stamm.corpus.consent.robots_matcher import decoded, escaped, path_of
from stamm.corpus.documents import ID_DIGITS, LONGEST_FIELD, clean_field
from stamm.corpus.tables import columns


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
    return f"{scheme.lower()}://{host}{spelled(path_of(cleaned))}"


def normal_fragment(url: str) -> str:
    """The fragment that `normal_address` drops, normalized, with its "#"; "" without one."""
    _, mark, fragment = clean_field(url).strip().partition("#")
    return mark + spelled(fragment) if fragment else ""


def spelled(text: str) -> str:
    """Text with normalized percent-encoding, which blanks and non-ASCII characters have."""
    octets = escaped(text.encode("utf-8", "surrogatepass")).replace(b" ", b"%20")
    return decoded(octets).decode("ascii")


_IDENTIFIER = re.compile(rf"[0-9a-f]{{{ID_DIGITS}}}")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_DOMAIN, _FOLDER = "domain", "folder"
_NOT_IN_A_DOMAIN = frozenset("/:?#@")
_LONGEST_LINE = 2 * LONGEST_FIELD
_MOST_BYTES = 2**30
_LISTED = 100

REQUESTS_SCHEMA = columns("list line:int64 kind key withdrawn:int64 out_before:int64")
"""One row per request: documents that it removed, and records that were dropped before. The key is
the SHA-256 of the URL, or the document_id; the URL itself is not stored."""


class Request(NamedTuple):
    """One deletion request.

    key    SHA-256 of the normalized URL with its fragment, a given SHA-256, or a document_id; of a domain
           or folder, SHA-256 of "domain NAME" or "folder HOST/PATH/"
    page   SHA-256 of the URL without its fragment, "" without one
    host   normalized host or domain; "" of other kinds. Every URL that the request names contains it, in
           some spelling
    """

    list: str
    line: int
    kind: str
    key: str
    page: str
    host: str = ""

    @property
    def rule(self) -> str:
        """List and line of the request."""
        return f"{self.list}, line {self.line}"


class Deletions:
    """Requests by key. Of several requests with one key the first is reported."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._rules: dict[str, str] = {}
        self._of_page: dict[str, dict[str, None]] = {}
        self._wider = False
        for request in requests:
            self._rules.setdefault(request.key, request.rule)
            self._wider |= request.kind in (_DOMAIN, _FOLDER)
            # Also of a later request: a hash before it does not tell the page.
            if request.page:
                self._of_page.setdefault(request.page, {})[request.key] = None

    def keys(self, url: str, document_id: str) -> list[str]:
        """The keys of all requests that name a document."""
        if not self._rules:
            return []
        possible = [document_id]
        if url:
            page, part = normal_address(url), normal_fragment(url)
            possible += [_hashed(page + part), _hashed(page), _hashed(url)]
            if not part:
                possible += self._of_page.get(possible[1], ())
            possible += map(_hashed, _wider(page)) if self._wider else ()
        return [key for key in dict.fromkeys(possible) if key in self._rules]

    def rule(self, key: str) -> str:
        """List and line of the request with this key."""
        return self._rules[key]


def read_deletions(paths: Iterable[Path]) -> Iterator[Request]:
    """The requests in some files. Blank lines and lines that begin with "#" are ignored.

    Raises   DataError for any other line: a request must not be skipped.
    """
    for path in paths:
        for number, written in enumerate(_lines(path), start=1):
            line = clean_field(written.strip())
            if not line or line.startswith("#"):
                continue
            try:
                yield read_deletion(written, path.name, number)
            except ValueError:
                raise DataError(  # the line is not shown: it may name a person
                    f"a line of {len(written)} characters is not a deletion request",
                    where=f"{path}, line {number}",
                    fix="Write a URL, a document_id of the ledger, a domain such as example.org, "
                    "https://example.org/*, or sha256: and 64 digits",
                ) from None


def read_deletion(written: str, name: str = "", number: int = 1) -> Request:
    """The request in one line, of a list with this name.

    Raises   ValueError for any other line
    """
    line = clean_field(written.strip())
    digest = _HASH.fullmatch(line.lower())
    if digest:
        return Request(name, number, "sha256", digest[1], "")
    if _IDENTIFIER.fullmatch(line.lower()):
        return Request(name, number, "identifier", line.lower(), "")
    if len(written) <= _LONGEST_LINE and "://" in line:
        page, part = normal_address(line), normal_fragment(line)
        if page.endswith("/*") and not part and "?" not in page:
            key = _hashed(f"{_FOLDER} {page.partition('://')[2].removesuffix('*')}")
            return Request(name, number, _FOLDER, key, "", _host(page))
        whole = _hashed(page + part)
        return Request(name, number, "address", whole, _hashed(page) if part else "", _host(page))
    if len(written) <= _LONGEST_LINE and _NOT_IN_A_DOMAIN.isdisjoint(line):
        domain = named_domain(line)
        return Request(name, number, _DOMAIN, _hashed(f"{_DOMAIN} {domain}"), "", domain)
    raise ValueError("not a deletion request")


def request_rows(
    requests: Iterable[Request], withdrawn: Mapping[str, int], before: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """The outcome of each request, as rows of REQUESTS_SCHEMA.

    withdrawn   documents removed, by key
    before      records that were dropped before, by key
    """
    for request in requests:
        row = request._asdict()
        del row["page"], row["host"]
        yield {
            **row,
            "withdrawn": withdrawn.get(request.key, 0),
            "out_before": before.get(request.key, 0),
        }


def outcomes(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts of requests that removed documents, match dropped records only, or match nothing, and
    the first of the latter."""
    counts: Counter[str] = Counter()
    unmatched: list[dict[str, Any]] = []
    for row in rows:
        counts["asked"] += 1
        state = "unmatched"
        if row["withdrawn"] or row["out_before"]:
            state = "withdrew" if row["withdrawn"] else "out_before"
        counts[state] += 1
        if state == "unmatched" and len(unmatched) < _LISTED:
            unmatched.append({name: row[name] for name in ("list", "line", "key")})
    names = ("asked", "withdrew", "out_before", "unmatched")
    return {**{name: counts[name] for name in names}, "first_unmatched": unmatched}


def unmatched_text(counts: Mapping[str, Any]) -> str:
    """One line that names the requests without a match; "" when there are none."""
    if not counts["unmatched"]:
        return ""
    first: Sequence[Mapping[str, Any]] = counts["first_unmatched"][:10]
    lines = ", ".join(f"{row['list']} line {row['line']}" for row in first)
    num_hidden = counts["unmatched"] - len(first)
    return (
        f"{counts['unmatched']} of {counts['asked']} deletion requests match no input record: "
        f"{lines}" + (f", and {num_hidden} more" if num_hidden else "")
    )


def _lines(path: Path) -> list[str]:
    if path.stat().st_size > _MOST_BYTES:
        raise DataError(f"{path} is larger than 1 GiB", fix="Split it")
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error.reason}", fix="Write it as UTF-8") from None


def _host(page: str) -> str:
    """Host of a normalized URL, without its port; "" for an address in numbers, which has many spellings."""
    host = page.partition("://")[2].partition("/")[0].partition(":")[0]
    return "" if host.startswith("[") else host


def _wider(page: str) -> Iterator[str]:
    """Texts whose hashes a request for a domain or a folder that holds a normalized URL may have."""
    address = page.partition("://")[2].partition("?")[0]
    at = address.find("/")
    domain = address[:at].partition(":")[0] if at > 0 else ""
    while at > 0:
        yield f"{_FOLDER} {address[: at + 1]}"
        at = address.find("/", at + 1)
    while domain:
        yield f"{_DOMAIN} {domain}"
        domain = domain.partition(".")[2]


def _hashed(url: str) -> str:
    return hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()
