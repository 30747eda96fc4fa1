"""Who allowed a document, under which rule, read when: robots.txt by address and by agent.

A host is known by its name in lower case and ASCII (IDNA), without a final dot, without the default
port of its scheme. When a host has no answer of its own, the answer of its twin with or without
"www." stands in, and the decision names that file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stamm.base.errors import DataError
from stamm.corpus.config import ConsentConfig, ReadLimits
from stamm.corpus.records import clean_field
from stamm.corpus.robots import RobotsAnswer, RobotsFile
from stamm.corpus.streams import BoundedStream, StreamError, bounded_lines

_DEFAULT_PORTS = {"http": 80, "https": 443}
_PARSED_FILES = 2048


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether a document may be used.

    consent   what is known: "robots_allows", "robots_absent" (4xx), "robots_unreachable",
              "unknown_host", "no_url" (no address at all), or the reason of a refusal
    allowed   the known thing under the policy
    rule      the line that decided, and in which file
    agent     the agents that a line keeps out
    read      the date that file was read
    host      the host asked, normalised
    """

    consent: str
    allowed: bool
    rule: str = ""
    agent: str = ""
    read: str = ""
    host: str = ""


def normal_host(url: str) -> str:
    """The host of an address in its one spelling; "" when it names none.

    Raises   ValueError for an address that cannot be taken apart.
    """
    parts = urlsplit(url)
    name = (parts.hostname or "").rstrip(".")
    if not name:
        return ""
    if not name.isascii():
        name = name.encode("idna").decode("ascii")
    port = parts.port
    if port is not None and port != _DEFAULT_PORTS.get(parts.scheme.lower()):
        return f"{name}:{port}"
    return name


class RobotsBook:
    """The robots.txt answers of many hosts, parsed when first asked.

    Of several answers of one host the one read last counts, and of these the last in order.
    An answer whose address names no host speaks for nobody and is passed over.
    """

    def __init__(self, answers: Iterable[RobotsAnswer]) -> None:
        self._answers: dict[str, RobotsAnswer] = {}
        for answer in answers:
            try:
                host = normal_host(answer.url)
            except ValueError:
                continue
            if not host:
                continue
            known = self._answers.get(host)
            if known is None or known.read <= answer.read:
                self._answers[host] = answer
        self._parsed: dict[str, RobotsFile] = {}

    def answer(self, host: str) -> RobotsAnswer | None:
        """The answer of a host, or of its twin with or without "www."; None when neither is known."""
        twin = host.removeprefix("www.") if host.startswith("www.") else f"www.{host}"
        return self._answers.get(host) or self._answers.get(twin)

    def file(self, answer: RobotsAnswer) -> RobotsFile:
        """The parsed text of an answer."""
        if answer.url not in self._parsed:
            if len(self._parsed) >= _PARSED_FILES:
                self._parsed.clear()
            self._parsed[answer.url] = RobotsFile(answer.text)
        return self._parsed[answer.url]


class Consent:
    """Decides for one address after another. Every book must agree that knows the host.

    books   a run's snapshot, and for the pages of an archive the answers in that archive
    """

    def __init__(self, config: ConsentConfig, books: Sequence[RobotsBook]) -> None:
        self._config = config
        self._books = tuple(books)

    def ask(self, url: str) -> Decision:
        """The decision for an address.

        Source   RFC 9309, 2.3.1: 2xx is parsed, 4xx allows, 5xx and silence refuse (the policy
                 `unreachable` can say otherwise); a redirect that was not followed is silence.
        """
        if not url.strip():
            return Decision(consent="no_url", allowed=self._config.no_url == "allow")
        try:
            host = normal_host(url)
        except ValueError:
            return Decision(consent="bad_url", allowed=False, rule="the address cannot be parsed")
        if not host:
            # Somebody's word may exist, and nobody can be asked: not the silence of an own text.
            return Decision(consent="bad_url", allowed=False, rule="the address names no host")
        decisions = [
            self._decide(book, answer, url, host)
            for book in self._books
            if (answer := book.answer(host)) is not None
        ]
        if not decisions:
            allowed = self._config.unknown_host == "allow"
            return Decision(consent="unknown_host", allowed=allowed, host=host)
        return next((d for d in decisions if not d.allowed), decisions[-1])

    def _decide(self, book: RobotsBook, answer: RobotsAnswer, url: str, host: str) -> Decision:
        where = clean_field(answer.url)
        if 400 <= answer.status < 500:
            return Decision(
                consent="robots_absent",
                allowed=True,
                rule=f"{answer.status} at {where}",
                read=answer.read,
                host=host,
            )
        if not 200 <= answer.status < 300:
            return Decision(
                consent="robots_unreachable",
                allowed=self._config.unreachable == "allow",
                rule=f"{answer.status or 'no answer'} at {where}",
                read=answer.read,
                host=host,
            )
        refusal = book.file(answer).refusal(url, self._config.agents)
        if refusal is None:
            return Decision(
                consent="robots_allows", allowed=True, rule=where, read=answer.read, host=host
            )
        return Decision(
            consent=refusal.reason,
            allowed=False,
            rule=clean_field(f"{refusal.rule} at {where}"),
            agent=clean_field(refusal.agents),
            read=answer.read,
            host=host,
        )


def read_snapshot(path: Path, limits: ReadLimits) -> list[RobotsAnswer]:
    """The answers in a snapshot file: JSONL with domain, url, status, fetched and text.

    Raises   DataError for a line that is not such an object: consent rests on this file, so a
             part of it cannot be passed over.
    """
    answers = []
    number = 0
    with BoundedStream(path, limits.expansion) as stream:
        try:
            for line in bounded_lines(stream, limits.line_bytes):
                number = line.number
                if line.data.strip():
                    answers.append(_answer(json.loads(line.data.decode("utf-8-sig"))))
        except (StreamError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(
                f"{path} is no robots.txt snapshot: {error}",
                where=f"line {max(number, 1)}",
                fix="Each line needs url, status, fetched and text",
            ) from None
    return answers


def _answer(row: Any) -> RobotsAnswer:
    answer = RobotsAnswer(
        url=row["url"], status=row["status"], read=row["fetched"], text=row["text"]
    )
    kinds = (answer.url, str), (answer.status, int), (answer.read, str), (answer.text, str)
    for value, kind in kinds:
        if not isinstance(value, kind):
            raise TypeError(f"{str(value)[:40]!r} is not {kind.__name__}")
    if not normal_host(answer.url):
        raise ValueError(f"{answer.url[:80]!r} names no host")
    # The date is copied into every row of the ledger.
    return replace(answer, read=clean_field(answer.read))
