"""Configuration of the fetcher of robots.txt, tdmrep.json and ai.txt."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from stamm.base.config import validate

Kind = Literal["robots", "tdmrep", "ai_txt"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# A product token with a version, and an address: both are written into a header unescaped.
_AGENT = re.compile(r"[A-Za-z_-]{1,64}/[A-Za-z0-9._-]{1,32}")
_CONTACT = re.compile(r"(https?://[!-'*-:=?-~]{4,200}|mailto:[!-'*-:=?-~]{4,200})")


@dataclass(frozen=True, kw_only=True)
class FetchConfig:
    """Sites and files to fetch, the User-Agent, timeouts and retries.

    domains       a text file: one host per line; blank lines and lines with # are ignored
    agent         product token with a version ("stamm-corpus/1.0")
    contact       a page, or mailto:, that shows site owners who fetches and how to opt out
    kinds         robots (/robots.txt), tdmrep (/.well-known/tdmrep.json), ai_txt (/ai.txt)
    hosts_at_once sites fetched concurrently; each gets one request at a time
    connect_s     timeout of DNS and TCP together, and again of TLS, in seconds
    answer_s      timeout of a whole answer, from connecting to its last byte, in seconds
    retries       retries after 5xx, 429, timeouts and broken answers
    backoff_s     seconds before the first retry, doubled before each next one
    max_wait_s    longest pause before a retry; a site that demands more is not retried
    sync_every    answers between two fsyncs: what a crash of the machine can lose
    """

    FORMER_KEYS: ClassVar = {  # of version 0.1
        "longest_wait_s": "max_wait_s",
    }

    domains: str
    agent: str
    contact: str
    kinds: tuple[Kind, ...] = KINDS
    hosts_at_once: int = 32
    connect_s: float = 10.0
    answer_s: float = 30.0
    retries: int = 2
    backoff_s: float = 2.0
    max_wait_s: float = 60.0
    sync_every: int = 256

    def __post_init__(self) -> None:
        validate(
            self,
            ("domains", bool(self.domains), "is empty: name a text file with one host per line"),
            ("agent", _AGENT.fullmatch(self.agent) is not None, "must read as name/version"),
            (
                "contact",
                _CONTACT.fullmatch(self.contact) is not None,
                "must be an http(s) page or a mailto: address",
            ),
            ("kinds", len(self.kinds) > 0, "is empty: name at least robots"),
            ("kinds", len(set(self.kinds)) == len(self.kinds), "names a kind twice"),
            ("hosts_at_once", 1 <= self.hosts_at_once <= 1024, "must lie in [1, 1024]"),
            ("connect_s", 0 < self.connect_s <= self.answer_s, "must lie in (0, answer_s]"),
            ("answer_s", 0 < self.answer_s <= 600, "must lie in (0, 600]"),
            ("retries", 0 <= self.retries <= 10, "must lie in [0, 10]"),
            (
                "backoff_s",
                0 < self.backoff_s <= self.max_wait_s,
                "must lie in (0, max_wait_s]",
            ),
            ("max_wait_s", self.max_wait_s <= 3600, "must be at most an hour"),
            ("sync_every", self.sync_every >= 1, "must be at least 1"),
        )

    @property
    def user_agent(self) -> str:
        """The User-Agent of every request: "stamm-corpus/1.0 (+https://example.org/bot)"."""
        return f"{self.agent} (+{self.contact})"
