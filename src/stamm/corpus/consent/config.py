"""Consent policy of a corpus: which opt-outs count, and what a missing answer means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stamm.base.config import validate
from stamm.corpus.consent.agents import APERTUS_AGENTS, fill_agents, is_agent
from stamm.corpus.consent.signals_config import SignalsConfig

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
    agents: tuple[str, ...] = APERTUS_AGENTS
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
            ("agents", len(self.agents) > 0, "is empty: name at least one agent, such as '*'"),
            (
                "agents",
                all(agent.strip() for agent in self.agents),
                "has an empty name in it",
            ),
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
