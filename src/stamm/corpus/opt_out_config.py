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
    domains       lists of opted-out domains
    deletions     text files of deletion requests: one URL, document_id or sha256:… of a URL per line
    agents        crawler names to check, or lists of them, as in ConsentConfig; none: those that the
                  finished corpus was checked for
    agents_source source, date and hash of the names; filled in automatically
    unreachable   policy for a host that allowed before and does not answer now; likewise unparsable
    memory_gib    memory for sorting and grouping before the disk is used
    """

    robots: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    deletions: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
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
            # Without agents there are no newer robots.txt files to read (recipes.replay).
            agents=self.agents or APERTUS_AGENTS,
            agents_source=self.agents_source,
            unknown_host="allow",
            unreachable=self.unreachable,
            unparsable=self.unparsable,
            unread_terms="allow",
            no_url="allow",
        )
