"""Configuration of the opt-out replay: which later opt-outs are applied to a finished corpus."""

from __future__ import annotations

from dataclasses import dataclass, field

from stamm.base.config import validate
from stamm.corpus.consent.agents import APERTUS_AGENTS, fill_agents
from stamm.corpus.consent.config import ConsentConfig, Policy
from stamm.corpus.limits import ReadLimits


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Opt-out signals, newer than the corpus, that are applied to a finished corpus.

    robots        snapshots of robots.txt, newer than those of the corpus
    domains       lists of domains whose owners refused
    deletions     requests: addresses, document identifiers, or sha256: of an address, one a line
    agents        crawler names asked about, or lists of them, as in ConsentConfig
    agents_source where the names came from, with date and hash: filled in, never to be set
    unreachable   a host that allowed before and does not answer now; likewise unparsable
    memory_gib    what sorting and grouping may take before they use the disk
    """

    robots: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    deletions: tuple[str, ...] = ()
    agents: tuple[str, ...] = APERTUS_AGENTS
    agents_source: str = ""
    unreachable: Policy = "allow"
    unparsable: Policy = "allow"
    limits: ReadLimits = field(default_factory=ReadLimits)
    memory_gib: float = 2.0

    def __post_init__(self) -> None:
        fill_agents(self)
        validate(self, ("memory_gib", self.memory_gib >= 0.125, "must be at least 0.125"))

    @property
    def consent(self) -> ConsentConfig:
        """The policy by which newer answers are read; a host that gave none keeps its old one."""
        return ConsentConfig(
            agents=self.agents,
            agents_source=self.agents_source,
            unknown_host="allow",
            unreachable=self.unreachable,
            unparsable=self.unparsable,
            no_url="allow",
        )
