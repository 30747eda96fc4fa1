"""What websites say about the use of their pages, asked politely and frozen."""

from __future__ import annotations

from dataclasses import dataclass, fields

from stamm.base.errors import ConfigError
from stamm.corpus.consent.fetch_config import KINDS, FetchConfig, Kind
from stamm.corpus.inputs import expand
from stamm.runs.job import Step


@dataclass(frozen=True, kw_only=True)
class RobotsRecipe:
    """A snapshot of robots.txt, tdmrep.json and ai.txt of many domains.

    domains, agent, contact   whom to ask, and who asks: all three must be said (FetchConfig)
    """

    domains: str = ""
    agent: str = ""
    contact: str = ""
    kinds: tuple[Kind, ...] = KINDS
    hosts_at_once: int = 32
    answer_s: float = 30.0
    retries: int = 2

    def steps(self) -> tuple[Step, ...]:
        """Everything to be done, in order.

        Raises   ConfigError when it is not said whom to ask, or who asks.
        """
        missing = [name for name in ("domains", "agent", "contact") if not getattr(self, name)]
        if missing:
            raise ConfigError(
                f"{' and '.join(missing)} must be said before anybody is asked",
                fix="Set domains=FILE agent=NAME/VERSION contact=https://…, one host a line",
            )
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return (
            Step(
                name="fetch",
                job="fetch",
                config=FetchConfig(**own),
                folder="snapshot",
                external=expand([self.domains], "domains"),
                outputs=("snapshot.jsonl.zst", "summary.json"),
                sharded=True,
            ),
        )


def robots() -> RobotsRecipe:
    """The robots.txt, tdmrep.json and ai.txt of a list of domains, fetched politely and frozen."""
    return RobotsRecipe()
