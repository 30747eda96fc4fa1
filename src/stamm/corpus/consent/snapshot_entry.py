"""Rows of a snapshot: the answer of a site for its robots.txt, tdmrep.json or ai.txt.

A row of the JSONL
  kind       "robots", "tdmrep" or "ai_txt"; "robots" when missing
  domain     the normalized host as listed
  url        the address requested first; the answer is that of its host, wherever redirects led
  status     HTTP status of the last answer, below 1,000; 0 without a readable answer
  error      why status is 0 (`ERRORS`), "" otherwise
  fetched    time of the request: "2026-11-22T02:20:00Z", or its year, month or day alone
  redirects  the addresses that followed, in order
  bytes      length of the stored body, decoded; of a status 2xx only. A longer one is stored up to
             its last whole line within 500 KiB
  truncated  whether the body was longer
  sha256     of these bytes
  text       the same as UTF-8 (UTF-16 after its byte order mark), invalid bytes as U+FFFD
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from stamm.base.errors import DataError
from stamm.base.json_text import parse_json
from stamm.corpus.consent.cache import cache_by_host
from stamm.corpus.consent.fetch_config import KINDS, Kind
from stamm.corpus.consent.hosts import normalize_host, www_variant
from stamm.corpus.limits import ReadLimits
from stamm.corpus.records import clean_field
from stamm.corpus.streams import BoundedStream, StreamError, bounded_lines

# Values of `error`, with their meaning.
ERRORS = {
    "dns": "the name has no address",
    "private_address": "the name resolves to an address that is not public",
    "refused": "connection refused",
    "connect": "no connection, or a broken one",
    "connect_time_out": "timeout of the connection",
    "tls": "no trusted encrypted connection",
    "time_out": "timeout of the answer",
    "protocol": "the answer is not HTTP",
    "encoding": "the body is not in the stated content encoding",
    "redirects": "an invalid redirect, or too many",
    "rate_limited": "429 after all retries, or a longer pause demanded than is kept",
}
_DATE = re.compile(
    r"[0-9]{4}(-[0-9]{2}(-[0-9]{2}([T ][0-9:.,]{2,20}(Z|[+-][0-9]{2}:?[0-9]{2})?)?)?)?"
)
# Of the texts before parsing; parsed, a file takes some ten times as much memory.
_CACHED_CHARACTERS = 4 * 2**20
F = TypeVar("F")


@dataclass(frozen=True, kw_only=True)
class SnapshotEntry:
    """One answer; the fields are those of a row."""

    kind: Kind
    domain: str
    url: str
    status: int
    fetched: str
    redirects: tuple[str, ...] = ()
    bytes: int = 0
    truncated: bool = False
    sha256: str = ""
    text: str = ""
    error: str = ""

    @property
    def state(self) -> str:
        """The state: "found" (2xx), "redirect" (3xx without a location), "absent" (4xx),
        "rate_limited", "server_error" or `error`.
        """
        if self.error:
            return self.error
        if self.status == 429:
            return "rate_limited"
        return {2: "found", 3: "redirect", 4: "absent"}.get(self.status // 100, "server_error")

    def row(self) -> dict[str, Any]:
        """The row, ready for JSON."""
        return {**self.__dict__, "redirects": list(self.redirects)}


class SiteFiles(Generic[F]):
    """The files of one kind by host, parsed at first use.

    find     returns the answer of a host
    parse    parses a text: TdmrepFile, AiTxtFile
    Edge     only answers with status 2xx count. For a host without an answer that of its "www."
             variant is used, as for robots.txt.
    """

    def __init__(
        self, find: Callable[[str], SnapshotEntry | None], parse: Callable[[str], F]
    ) -> None:
        self._find = find
        self._parse = parse
        self._parsed = cache_by_host(self._file, _CACHED_CHARACTERS)

    def file(self, host: str) -> F | None:
        """The file of a normalized host, None when it has none."""
        return self._parsed(host)[0]

    def _file(self, host: str) -> tuple[F | None, int]:
        answer = self._find(host) or self._find(www_variant(host))
        if answer is None or answer.state != "found":
            return None, 0
        return self._parse(answer.text), len(answer.text)


def read_snapshot(path: Path, limits: ReadLimits) -> list[SnapshotEntry]:
    """Read all answers of a small snapshot file, in order.

    Raises   DataError as `snapshot_entries` does.
    """
    return list(snapshot_entries(path, limits))


def snapshot_entries(path: Path, limits: ReadLimits) -> Iterator[SnapshotEntry]:
    """Yield the answers of a snapshot file, in order.

    Raises   DataError for an invalid line: a missing answer would change consent decisions.
    """
    number = 0
    with BoundedStream(path, limits.expansion) as stream:
        try:
            for line in bounded_lines(stream, limits.line_bytes):
                number = line.number
                if line.data.strip():
                    yield parse_entry(parse_json(line.data.decode("utf-8-sig")))
        except (StreamError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(
                f"{path} is not a snapshot of sites: {error}",
                where=f"line {max(number, 1)}",
                fix="Each line needs url, status, fetched and text",
            ) from None


def parse_entry(row: Any) -> SnapshotEntry:
    """The answer of a row.

    Raises   KeyError, TypeError or ValueError for an invalid row.
    """
    if not isinstance(row, dict):
        raise TypeError(f"{str(row)[:40]!r} is not an object")
    kind, redirects = row.get("kind", "robots"), row.get("redirects", [])
    if kind not in KINDS:
        raise ValueError(f"kind {str(kind)[:40]!r} is not one of {', '.join(KINDS)}")
    if not isinstance(redirects, list):
        raise TypeError(f"redirects {str(redirects)[:40]!r} is not a list")
    url = _typed(row["url"], str)
    host = normalize_host(url)
    if not host:
        raise ValueError(f"{url[:80]!r} names no host")
    return SnapshotEntry(
        kind=cast(Kind, kind),
        domain=_typed(row.get("domain", host), str),
        url=url,
        status=_status(row["status"]),
        fetched=_date(row["fetched"]),
        redirects=tuple(_typed(target, str) for target in redirects),
        bytes=_typed(row.get("bytes", 0), int),
        truncated=_typed(row.get("truncated", False), bool),
        sha256=_typed(row.get("sha256", ""), str),
        text=_typed(row["text"], str),
        error=_typed(row.get("error", ""), str),
    )


def decode_body(body: bytes) -> str:
    """Decode a body: UTF-8, or UTF-16 after its byte order mark; invalid bytes as U+FFFD."""
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        return body.decode("utf-16", "replace")
    return body.decode("utf-8", "replace")


def _status(value: Any) -> int:
    status = _typed(value, int)
    if isinstance(value, bool) or not 0 <= status <= 999:
        raise ValueError(f"{str(value)[:40]!r} is not an HTTP status")
    return status


def _date(value: Any) -> str:
    """A valid date: it is copied into the ledger, and compared to find the newest answer."""
    date = clean_field(_typed(value, str))
    if _DATE.fullmatch(date) is None:
        raise ValueError(f"{date[:40]!r} is not a date such as 2026-11-22")
    return date


V = TypeVar("V", str, int, bool)


def _typed(value: Any, kind: type[V]) -> V:
    if not isinstance(value, kind):
        raise TypeError(f"{str(value)[:40]!r} is not {kind.__name__}")
    return value
