"""The answers of sites as they were frozen: robots.txt, tdmrep.json and ai.txt, one row each.

A row of the JSONL
  kind       "robots", "tdmrep" or "ai_txt"; a row without one is a robots.txt
  domain     the host as listed, in its one spelling
  url        the address asked first; the answer speaks for its host, wherever redirects led
  status     HTTP status of the last answer; 0 when none came that can be read
  error      why status is 0 (`ERRORS`), "" otherwise
  fetched    when, as the clock said
  redirects  the addresses that followed, in order
  bytes      length of the body kept, after its content encoding; of a status 2xx only
  truncated  whether more stood behind
  sha256     of these bytes
  text       the same as UTF-8 (UTF-16 behind its byte order mark), what is none as U+FFFD
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from stamm.base.errors import DataError
from stamm.corpus.config import ReadLimits
from stamm.corpus.consent.fetch_config import KINDS, Kind
from stamm.corpus.consent.hosts import normal_host
from stamm.corpus.records import clean_field
from stamm.corpus.streams import BoundedStream, StreamError, bounded_lines

# What may stand in `error`.
ERRORS = {
    "dns": "the name has no address",
    "private_address": "the name leads to an address that is not public",
    "refused": "nobody listens there",
    "connect": "no connection for another reason, or a broken one",
    "connect_time_out": "no connection in time",
    "tls": "no trusted encrypted connection",
    "time_out": "no whole answer in time",
    "protocol": "what came is no HTTP",
    "encoding": "the body is not in the content encoding that was agreed on",
    "redirects": "a redirect to nowhere, or too many",
    "rate_limited": "429 to the last, or a longer wait asked for than is kept",
}
_PARSED_FILES = 2048
F = TypeVar("F")


@dataclass(frozen=True, kw_only=True)
class FrozenFile:
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
        """What became of the question, in a word: "found", "absent" (4xx), "server_error" or `error`.

        "redirect" is a status 3xx that names no other place.
        """
        if self.error:
            return self.error
        return {2: "found", 3: "redirect", 4: "absent"}.get(self.status // 100, "server_error")

    def row(self) -> dict[str, Any]:
        """The row, ready for JSON."""
        return {**self.__dict__, "redirects": list(self.redirects)}


class FrozenBook(Generic[F]):
    """The files of one kind by host, parsed when first asked.

    parse    makes a file of a text: TdmrepFile, AiTxtFile
    Edge     only answers with status 2xx speak. Of several of one host the one fetched last does,
             and of these the last in order. The twin with or without "www." stands in for a host
             without an answer, as it does for robots.txt.
    """

    def __init__(self, answers: Iterable[FrozenFile], parse: Callable[[str], F]) -> None:
        self._answers: dict[str, FrozenFile] = {}
        for answer in answers:
            host = normal_host(answer.url)
            known = self._answers.get(host)
            if known is None or known.fetched <= answer.fetched:
                self._answers[host] = answer
        self._parse = parse
        self._parsed: dict[str, F] = {}

    def file(self, host: str) -> F | None:
        """The file of a host (`normal_host`), None when it has none."""
        twin = host.removeprefix("www.") if host.startswith("www.") else f"www.{host}"
        answer = self._answers.get(host) or self._answers.get(twin)
        if answer is None or answer.state != "found":
            return None
        if answer.url not in self._parsed:
            if len(self._parsed) >= _PARSED_FILES:
                self._parsed.clear()
            self._parsed[answer.url] = self._parse(answer.text)
        return self._parsed[answer.url]


def read_frozen(path: Path, limits: ReadLimits) -> list[FrozenFile]:
    """The answers in a snapshot file, in order.

    Raises   DataError for a line that is no such row: consent rests on this file, so a part of it
             cannot be passed over.
    """
    answers, number = [], 0
    with BoundedStream(path, limits.expansion) as stream:
        try:
            for line in bounded_lines(stream, limits.line_bytes):
                number = line.number
                if line.data.strip():
                    answers.append(frozen_file(json.loads(line.data.decode("utf-8-sig"))))
        except (StreamError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(
                f"{path} is no snapshot of sites: {error}",
                where=f"line {max(number, 1)}",
                fix="Each line needs url, status, fetched and text",
            ) from None
    return answers


def frozen_file(row: Any) -> FrozenFile:
    """The answer that a row stands for.

    Raises   KeyError, TypeError or ValueError for a row that is none.
    """
    if not isinstance(row, dict):
        raise TypeError(f"{str(row)[:40]!r} is no object")
    kind, redirects = row.get("kind", "robots"), row.get("redirects", [])
    if kind not in KINDS:
        raise ValueError(f"kind {str(kind)[:40]!r} is none of {', '.join(KINDS)}")
    if not isinstance(redirects, list):
        raise TypeError(f"redirects {str(redirects)[:40]!r} is no list")
    url = _typed(row["url"], str)
    host = normal_host(url)
    if not host:
        raise ValueError(f"{url[:80]!r} names no host")
    return FrozenFile(
        kind=cast(Kind, kind),
        domain=_typed(row.get("domain", host), str),
        url=url,
        status=_typed(row["status"], int),
        # The date is copied into every row of the ledger.
        fetched=clean_field(_typed(row["fetched"], str)),
        redirects=tuple(_typed(target, str) for target in redirects),
        bytes=_typed(row.get("bytes", 0), int),
        truncated=_typed(row.get("truncated", False), bool),
        sha256=_typed(row.get("sha256", ""), str),
        text=_typed(row["text"], str),
        error=_typed(row.get("error", ""), str),
    )


V = TypeVar("V", str, int, bool)


def _typed(value: Any, kind: type[V]) -> V:
    if not isinstance(value, kind):
        raise TypeError(f"{str(value)[:40]!r} is not {kind.__name__}")
    return value
