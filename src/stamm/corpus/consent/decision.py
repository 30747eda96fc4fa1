"""Consent decisions by address: allowed or not, the deciding rule, and the date it was read.

Hosts are normalized (hosts.py). For a host without an answer that of its "www." variant is used,
and the decision names that file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.consent.hosts import normalize_host, www_variant
from stamm.corpus.consent.robots import RobotsFile, RobotsRefusal
from stamm.corpus.consent.robots_parser import PARSED_BYTES
from stamm.corpus.consent.snapshot import SnapshotEntry, cache_by_host
from stamm.corpus.documents import clean_field

ABSOLUTE_URL_RULES = "written as absolute URLs"
"""Part of the rule of a "robots_allows" whose file has rules that match no path."""
# Characters of the texts before parsing; a parsed file takes about ten times as much memory.
_CACHED_CHARACTERS = 16 * 2**20
_MAX_CACHED_DECISIONS = 256
_MOST_TERMS = 5


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether a document may be used.

    consent   the state of consent: "robots_allows", "robots_absent" (4xx), "robots_unreachable",
              "robots_unparsable", "unknown_host", "no_url" (no address at all), or the reason of a
              refusal: "robots_disallow", "robots_content_usage", "domain_list", "bad_url", "unread_terms"
    allowed   the decision for this state under the policy
    rule      the deciding line and its file; of "robots_allows" the file, and how many of its rules
              are ignored because they are written as absolute URLs of their own host
    agent     the agents that the line refuses
    read      the date that file was read
    host      the normalized host
    terms     lines of robots.txt about the use of its content that were not read (`unread_terms`)
    """

    consent: str
    allowed: bool
    rule: str = ""
    agent: str = ""
    read: str = ""
    host: str = ""
    terms: str = ""


class ConsentSource(Protocol):
    """A source of consent decisions for some hosts."""

    def decide(self, url: str, host: str, config: ConsentConfig) -> Decision | None:
        """The decision for an address of a host; None for a host without an entry here."""


class ConsentResolver:
    """Decides for one address after another. Every source that has the host must allow it.

    sources   a run's snapshot, lists of domains that opted out, and for the pages of an archive the
              robots.txt files in it
    """

    def __init__(self, config: ConsentConfig, sources: Sequence[ConsentSource]) -> None:
        self._config = config
        self._sources = tuple(sources)

    def decide(self, url: str) -> Decision:
        """The decision for an address: the first refusal, else that of the last source."""
        if not url.strip():
            return Decision(consent="no_url", allowed=self._config.keeps_no_url)
        try:
            host = normalize_host(url)
        except ValueError:
            return Decision(consent="bad_url", allowed=False, rule="the address cannot be parsed")
        if not host:
            # The host is unknown, so the absence of a robots.txt must not count as permission.
            return Decision(consent="bad_url", allowed=False, rule="the address names no host")
        last = None
        for source in self._sources:
            decision = source.decide(url, host, self._config)
            if decision is not None:
                if not decision.allowed:
                    return decision
                terms = last.terms if last is not None else ""
                last = replace(decision, terms=terms) if terms and not decision.terms else decision
        if last is not None:
            return last
        allowed = self._config.unknown_host == "allow"
        return Decision(consent="unknown_host", allowed=allowed, host=host)


class RobotsSource:
    """The robots.txt answers of many hosts, parsed at first use.

    find   returns the answer of a host, None when there is none
    """

    def __init__(self, find: Callable[[str], SnapshotEntry | None]) -> None:
        self._find = find
        self._answers = cache_by_host(self._load, _CACHED_CHARACTERS)

    def decide(self, url: str, host: str, config: ConsentConfig) -> Decision | None:
        """The decision by the answer of the host or of its "www." variant; None without one."""
        answer = self._answers(host)[0] or self._answers(www_variant(host))[0]
        return answer.decide(url, host, config) if answer is not None else None

    def _load(self, host: str) -> tuple[_ParsedAnswer | None, int]:
        answer = self._find(host)
        if answer is None:
            return None, 0
        parsed = _ParsedAnswer(answer)
        return parsed, parsed.size


class _ParsedAnswer:
    """A parsed answer, and the decisions it led to: many addresses share each of them.

    Source   RFC 9309, 2.3.1: 2xx is parsed, 4xx allows, 5xx and no answer refuse (unless the policy
             `unreachable` allows). Stricter than there: 429, which means "later" and not "no such
             file", and a redirect that was not followed count as no answer.
    """

    def __init__(self, answer: SnapshotEntry) -> None:
        self._state = answer.state
        text = answer.text[: PARSED_BYTES + 1] if self._state == "found" else ""
        self.size = len(text)
        self._file = RobotsFile(text)
        self._url = answer.url
        self._where = clean_field(answer.url)
        self._status = answer.status
        self._read = answer.fetched
        self._known: dict[RobotsRefusal | None, Decision] = {}

    def decide(self, url: str, host: str, config: ConsentConfig) -> Decision:
        """The decision for an address under the rules of the file."""
        if self._state != "found":
            absent = self._state == "absent"
            return Decision(
                consent="robots_absent" if absent else "robots_unreachable",
                allowed=absent or config.unreachable == "allow",
                rule=f"{self._status or 'no answer'} at {self._where}",
                read=self._read,
                host=host,
            )
        if self._file.unparsable:
            return Decision(
                consent="robots_unparsable",
                allowed=config.unparsable == "allow",
                rule=f"{self._file.unparsable} at {self._where}",
                read=self._read,
                host=host,
            )
        refusal = self._file.refusal(url, config.agents)
        decision = self._known.get(refusal)
        if decision is None or decision.host != host:
            if len(self._known) >= _MAX_CACHED_DECISIONS:
                self._known.clear()
            decision = self._known[refusal] = self._decision(host, refusal, config)
        return decision

    def _decision(
        self, host: str, refusal: RobotsRefusal | None, config: ConsentConfig
    ) -> Decision:
        if refusal is None:
            terms = clean_field(
                "; ".join(
                    f"robots.txt, line {line}, {key}: {value.decode('utf-8', 'replace')[:200]}"
                    for line, key, value in self._file.terms[:_MOST_TERMS]
                )
            )
            refused = bool(terms) and config.unread_terms == "drop"
            return Decision(
                consent="unread_terms" if refused else "robots_allows",
                allowed=not refused,
                rule=clean_field(self._where + self._ignored(config.agents)),
                read=self._read,
                host=host,
                terms=terms,
            )
        return Decision(
            consent=refusal.reason,
            allowed=False,
            rule=clean_field(f"{refusal.rule} at {self._where}"),
            agent=clean_field(refusal.agents),
            read=self._read,
            host=host,
        )

    def _ignored(self, agents: tuple[str, ...]) -> str:
        """Text about rules for the agents written as absolute URLs of the host: number and first."""
        rules = self._file.absolute_rules(normalize_host(self._url), agents)
        if not rules:
            return ""
        line, key, value = rules[0]
        first = f"line {line}, {key.capitalize()}: {value.decode('utf-8', 'replace')}"
        return f"; {len(rules)} ignored, {ABSOLUTE_URL_RULES}, first {first}"
