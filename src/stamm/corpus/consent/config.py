"""Consent policy of a corpus: which opt-outs count, and what a missing answer means."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from stamm.base.bounds import AtLeastOne, Positive, distinct, not_empty, within
from stamm.base.config import Bounded, validate
from stamm.corpus.consent.agents import APERTUS_AGENTS, fill_agents, is_agent
from stamm.corpus.consent.content_usage import USAGE_LABELS

Kind = Literal["robots", "tdmrep", "ai_txt"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# A product token with a version, and an address: both are written into a header unescaped.
_AGENT = re.compile(r"[A-Za-z_-]{1,64}/[A-Za-z0-9._-]{1,32}")
_CONTACT = re.compile(r"(https?://[!-'*-:=?-~]{4,200}|mailto:[!-'*-:=?-~]{4,200})")


@dataclass(frozen=True, kw_only=True)
class FetchSettings(Bounded):
    """Files to fetch of each site, and how fast.

    kinds         robots (/robots.txt), tdmrep (/.well-known/tdmrep.json), ai_txt (/ai.txt)
    hosts_at_once sites fetched concurrently; each gets one request at a time
    answer_s      timeout of a whole answer, from connecting to its last byte, in seconds
    retries       retries after 5xx, 429, timeouts and broken answers
    """

    kinds: Annotated[
        tuple[Kind, ...], not_empty("name at least robots"), distinct("names a kind twice")
    ] = KINDS
    hosts_at_once: Annotated[int, within("[1, 1024]")] = 32
    answer_s: Annotated[float, within("(0, 600]")] = 30.0
    retries: Annotated[int, within("[0, 10]")] = 2


@dataclass(frozen=True, kw_only=True)
class FetchConfig(FetchSettings):
    """Sites to fetch from, the User-Agent and timeouts.

    domains       a text file: one host per line; blank lines and lines with # are ignored
    agent         product token with a version ("stamm-corpus/1.0")
    contact       a page, or mailto:, that shows site owners who fetches and how to opt out
    connect_s     timeout of DNS and TCP together, and again of TLS, in seconds
    backoff_s     seconds before the first retry, doubled before each next one
    max_wait_s    longest pause before a retry; a site that demands more is not retried
    sync_every    answers between two fsyncs: what a crash of the machine can lose
    """

    domains: Annotated[str, not_empty("name a text file with one host per line")]
    agent: str
    contact: str
    connect_s: Positive = 10.0
    backoff_s: Positive = 2.0
    max_wait_s: Annotated[float, within("(0, 3600]")] = 60.0
    sync_every: AtLeastOne = 256

    def __post_init__(self) -> None:
        validate(
            self,
            ("agent", _AGENT.fullmatch(self.agent) is not None, "must read as name/version"),
            (
                "contact",
                _CONTACT.fullmatch(self.contact) is not None,
                "must be an http(s) page or a mailto: address",
            ),
            ("connect_s", self.connect_s <= self.answer_s, "must not exceed answer_s"),
            ("backoff_s", self.backoff_s <= self.max_wait_s, "must not exceed max_wait_s"),
        )

    @property
    def user_agent(self) -> str:
        """The User-Agent of every request: "stamm-corpus/1.0 (+https://example.org/bot)"."""
        return f"{self.agent} (+{self.contact})"


@dataclass(frozen=True, kw_only=True)
class SignalsConfig:
    """One switch per signal. One opt-out is enough.

    noai             noai in X-Robots-Tag or <meta name="robots">, for all or for a configured agent;
                     a convention of DeviantArt (2022) without a standard
    noimageai        the same for noimageai, which is about images: off by default
    agent_noindex    noindex or none for a configured agent. Without an agent it is for search
                     engines (Google, "Robots meta tag specifications")
    tdm_reservation  tdm-reservation: 1 in tdmrep.json, a header or a meta (W3C TDM Reservation
                     Protocol, final group report 2024-05-10)
    tdmrep_unparsable  policy for a tdmrep.json that cannot be parsed
    content_usage    the headers Content-Usage: train-ai=n (draft-ietf-aipref-attach-05) and
                     Content-Signal: ai-train=no (contentsignals.org)
    usage_labels     the labels checked there
    ai_txt           text refused in /ai.txt (Spawning, 2023; no standard)
    rsl              an RSL licence inside the page that does not grant training to everyone without
                     payment (terms.py)
    row_opt_out      a field of a row of JSONL or a table that opts it out: noai, opt_out, HPLT's
                     robotstxt: disallowed … (readers/rows.py: ROW_KEYS.refused)
    """

    noai: bool = True
    noimageai: bool = False
    agent_noindex: bool = True
    tdm_reservation: bool = True
    tdmrep_unparsable: Literal["allow", "drop"] = "drop"
    content_usage: bool = True
    usage_labels: Annotated[tuple[str, ...], not_empty("name train-ai at least")] = USAGE_LABELS
    ai_txt: bool = True
    rsl: bool = True
    row_opt_out: bool = True

    def __post_init__(self) -> None:
        validate(
            self,
            (
                "usage_labels",
                all(label == label.lower() and label.strip() for label in self.usage_labels),
                "has a label that is not in lower case, which cannot match",
            ),
        )


Policy = Literal["allow", "drop"]


@dataclass(frozen=True, kw_only=True)
class ConsentConfig:
    """Which opt-outs remove a document, and what a missing answer means.

    robots        snapshot files of robots.txt, tdmrep.json and ai.txt (JSONL: kind, domain, url,
                  status, fetched, text; `stamm run corpus.robots` makes one)
    domains       lists of domains that opted out, one a line; their subdomains are included
    agents        crawler names to check, or lists of them: "package:training",
                  "mine.json:training" (agents.py). One refused agent is enough
    agents_source provenance of the names, with date and hash; filled in, never to be set
    unknown_host  the host is in no snapshot, so its robots.txt was never fetched. Apertus: "allow"
    unreachable   robots.txt answered 5xx or nothing. RFC 9309, 2.3.1.4: refuse. Apertus: "allow"
    unparsable    the answer was an HTML page or binary data. RFC 9309, 2.3.1.1, asks to follow the
                  lines that can be parsed; there are none, so it allows
    unread_terms  the site names terms of use that are not read: an RSL licence in another file
                  (`License:` in robots.txt, Link header, link element), an ai.txt in another format.
                  Apertus: "allow"
    no_url        a document without an address. "auto": the user's own text, which is trusted, where
                  neither robots nor domains are set; else dropped, and a file of which no document
                  has an address is an error. "own": the user's own text, unless its row has a field
                  for an address that is empty, or another that looks like one
    signals       which opt-outs in headers, pages, tdmrep.json and ai.txt count; None: none

    Presets: as Apertus, unknown_host, unreachable, unparsable and unread_terms are "allow". Strict, all
    of them and no_url are "drop". The defaults follow RFC 9309 and take neither an unknown host nor
    unread terms for consent.
    """

    robots: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    agents: Annotated[tuple[str, ...], not_empty("name at least one agent, such as '*'")] = (
        APERTUS_AGENTS
    )
    agents_source: str = ""
    unknown_host: Policy = "drop"
    unreachable: Policy = "drop"
    unparsable: Policy = "allow"
    unread_terms: Policy = "drop"
    no_url: Literal["auto", "own", "allow", "drop"] = "auto"
    signals: SignalsConfig | None = field(default_factory=SignalsConfig)

    def __post_init__(self) -> None:
        fill_agents(self)
        validate(
            self,
            ("agents", all(agent.strip() for agent in self.agents), "has an empty name in it"),
            (
                "agents",
                all(is_agent(agent) for agent in self.agents if agent.strip()),
                "has a name that robots.txt cannot address: write its letters up to the first blank",
            ),
        )

    @property
    def needs_addresses(self) -> bool:
        """Whether a file without any address is an error: its consent could not be checked."""
        return self.no_url == "auto" and bool(self.robots or self.domains)

    @property
    def keeps_no_url(self) -> bool:
        """Whether a document without an address is kept."""
        return self.no_url in ("allow", "own") or (
            self.no_url == "auto" and not self.needs_addresses
        )
