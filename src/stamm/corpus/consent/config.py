"""What a run is told about consent: whose word counts, and what silence means. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stamm.base.config import validate
from stamm.corpus.consent.agents import APERTUS_AGENTS, fill_agents, is_agent
from stamm.corpus.consent.signals_config import SignalsConfig

Policy = Literal["allow", "drop"]


@dataclass(frozen=True, kw_only=True)
class ConsentConfig:
    """Whose word counts before a document may be used, and what silence means.

    robots        snapshot files of robots.txt, tdmrep.json and ai.txt (JSONL: kind, domain, url,
                  status, fetched, text; `stamm run corpus.robots` makes one)
    domains       lists of domains whose owners refused, one a line; what is below them included
    agents        crawler names asked about, or lists of them: "package:training",
                  "mine.json:training" (agents.py). The names take their place; one refusal is enough
    agents_source where the names came from, with date and hash: filled in, never to be set
    unknown_host  the host is in no snapshot: nobody asked it. Apertus allowed; here it must be said
    unreachable   robots.txt answered 5xx or nothing. RFC 9309, 2.3.1.4: refuse; Apertus allowed
    unparsable    an HTML page or binary data was answered as robots.txt. RFC 9309, 2.3.1.1, asks to
                  follow the lines that can be parsed; there are none, so that it allows
    no_url        a document that names no source: the user's own text, by default trusted
    signals       which words in headers, pages, tdmrep.json and ai.txt count; None: none of them

    Presets: as Apertus, unknown_host, unreachable and unparsable are "allow". Strict, all three and
    no_url are "drop". The defaults stand between: what RFC 9309 says, and no word is no consent.
    """

    robots: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    agents: tuple[str, ...] = APERTUS_AGENTS
    agents_source: str = ""
    unknown_host: Policy = "drop"
    unreachable: Policy = "drop"
    unparsable: Policy = "allow"
    no_url: Policy = "allow"
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
                "has a name that no robots.txt can mean: write its letters up to the first blank",
            ),
        )
