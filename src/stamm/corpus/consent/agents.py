"""The crawler names that a website is asked about: whose refusal keeps a page out.

A list is data with a source and a date, not a constant of nature: names appear and vanish. Ours is
agents.json beside this file; a newer one of the same form can be named by its path. A run records
the names it used in its configuration.

Form of the file: {"date": ..., "sources": {...}, "lists": {name: [agent, ...]}, "agents": [{"token",
"operator", "purpose"}, ...]}. An agent is a product token (RFC 9309, 2.2.1), which may have a
version behind a "/", or "*": what a crawler without a name may do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stamm.base.config import nearest
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json, sha256_value
from stamm.corpus.consent.lines import agent_token

_SHIPPED = Path(__file__).with_name("agents.json")


def agents(name: str, path: Path | None = None) -> tuple[str, ...]:
    """The agents of a named list, in its order.

    name     "apertus": those of the Apertus corpus; "training": crawlers that gather texts for
             training, and "*"; "all": every agent of the file, and "*"
    path     an updated file; None is the one shipped
    Raises   ConfigError for a name that the file does not hold, DataError for a file of another form.
    """
    file = path or _SHIPPED
    lists = _lists(read_json(file), file)
    if name not in lists:
        raise ConfigError(f"{file.name} has no list {name!r}", fix=nearest(name, lists))
    return lists[name]


def agents_sha256(names: tuple[str, ...]) -> str:
    """SHA-256 of a list of agents, in hexadecimal: two runs with the same hash asked for the same."""
    return sha256_value(list(names))


def is_agent(name: str) -> bool:
    """Whether a group of robots.txt can be meant for an agent of this name."""
    return agent_token(name) != ""


def _lists(found: Any, file: Path) -> dict[str, tuple[str, ...]]:
    lists = found.get("lists") if isinstance(found, dict) else None
    if not isinstance(lists, dict):
        raise DataError(
            f"{file} is no list of agents", fix='It needs {"lists": {name: [agent, ...]}}'
        )
    for name, members in lists.items():
        fine = isinstance(members, list) and all(
            isinstance(m, str) and is_agent(m) for m in members
        )
        if not fine or not members:
            raise DataError(
                f"the list {name!r} of {file} is not made of agent names",
                fix='Write product tokens such as "GPTBot", or "*"',
            )
    return {name: tuple(members) for name, members in lists.items()}


APERTUS_AGENTS: tuple[str, ...] = agents("apertus")
"""The agents of the Apertus corpus, asked in January 2025.

Source   Apertus technical report (arXiv 2509.14233), section on robots.txt; FacebookBot stands
         only in the code, swiss-ai/pretrain-data.
"""
