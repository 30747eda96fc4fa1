"""Consent snapshot recipe: fetch robots.txt, tdmrep.json and ai.txt of many domains."""

from __future__ import annotations

from dataclasses import dataclass, fields

from stamm.base.errors import ConfigError
from stamm.corpus.consent.config import FetchConfig, FetchSettings
from stamm.corpus.inputs import expand
from stamm.runs.job import Step


@dataclass(frozen=True, kw_only=True)
class RobotsRecipe(FetchSettings):
    """A snapshot of robots.txt, tdmrep.json and ai.txt of many domains.

    domains, agent, contact   file of hosts, user agent and contact; all required (FetchConfig)
    """

    domains: str = ""
    agent: str = ""
    contact: str = ""

    def steps(self) -> tuple[Step, ...]:
        """All steps, in order.

        Raises   ConfigError when one of the three is missing.
        """
        missing = [name for name in ("domains", "agent", "contact") if not getattr(self, name)]
        if missing:
            raise ConfigError(
                f"{' and '.join(missing)} must be set before any host is contacted",
                fix="Set domains=FILE agent=NAME/VERSION contact=https://…, one host a line",
            )
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return (
            Step(
                name="fetch",
                job="fetch",
                config=FetchConfig(**own, connect_s=min(FetchConfig.connect_s, self.answer_s)),
                folder="snapshot",
                external=expand([self.domains], "domains"),
                outputs=("snapshot.jsonl.zst", "summary.json"),
                sharded=True,
            ),
        )


def robots() -> RobotsRecipe:
    """The robots.txt, tdmrep.json and ai.txt of a list of domains, fetched and stored."""
    return RobotsRecipe()
