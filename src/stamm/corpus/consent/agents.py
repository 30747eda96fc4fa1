"""The crawler names that a website is asked about: whose refusal keeps a page out.

A list is data with a source and a date, not a constant of nature: names appear and vanish. Ours is
agents.json beside this file. Where agents are asked for, "package:training" stands for a list of it
and "mine.json:training" for one of a file of your own. A run's configuration records the names, and
from which file of which date and content they came.

Form of the file: {"date": "2026-11-22", "lists": {name: [agent, ...]}}; ours has "sources" and
"agents" ({"token", "operator", "purpose"}) beside, which nobody reads. An agent is a product token (RFC 9309, 2.2.1), which may have a
version behind a "/", or "*": what a crawler without a name may do.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from stamm.base.config import nearest
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json, sha256_bytes, sha256_value
from stamm.corpus.consent.robots_parser import agent_token

_PACKAGE = "package"
_DAY = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])")
_SHIPPED = Path(__file__).with_name("agents.json")


def load_agents(name: str, path: Path | None = None) -> tuple[str, ...]:
    """The agents of a named list, in its order.

    name     "apertus": those of the Apertus corpus; "training": crawlers that gather texts for
             training, and "*"; "all": every agent of the file, and "*"
    path     an updated file; None is the one shipped
    Raises   ConfigError for a name that the file does not hold, DataError for a file of another form.
    """
    file = path or _SHIPPED
    lists, _ = _read(file)
    if name not in lists:
        raise ConfigError(f"{file.name} has no list {name!r}", fix=nearest(name, lists))
    return lists[name]


def resolve_agents(asked: tuple[str, ...], source: str = "") -> tuple[tuple[str, ...], str]:
    """The names that `asked` stands for, each once, and where they came from.

    asked    names of agents, or lists of a file: "package:training", "mine.json:training"
    source   what was said before of the same names: a worker is told names, and has no files
    Edge     names that are exactly those of a shipped list came from there; "" is said of others.
             Where one is no name of an agent, all are given back as they are, for `validate`.
    Raises   ConfigError or DataError for a list that is not there, or none.
    """
    if not all(":" in one or is_agent(one) for one in asked):
        return asked, ""
    names: dict[str, None] = {}
    told = []
    for one in asked:
        place, colon, name = one.rpartition(":")
        if colon:
            file = _SHIPPED if place == _PACKAGE else Path(place)
            names |= dict.fromkeys(load_agents(name, file))
            told.append(_provenance(one, file))
        else:
            names[one] = None
    if told:
        return tuple(names), f"{'; '.join(told)}; names {agents_sha256(tuple(names))}"
    if source.endswith(f"names {agents_sha256(asked)}"):
        return asked, source
    lists, _ = _read(_SHIPPED)
    shipped = next((f"{_PACKAGE}:{name}" for name in lists if lists[name] == asked), "")
    return resolve_agents((shipped,)) if shipped else (asked, "")


def fill_agents(config: Any) -> None:
    """Put names into the place of lists in a frozen configuration that is being made.

    config   has the fields `agents` and `agents_source`
    """
    names, source = resolve_agents(config.agents, config.agents_source)
    object.__setattr__(config, "agents", names)
    object.__setattr__(config, "agents_source", source)


def agents_sha256(names: tuple[str, ...]) -> str:
    """SHA-256 of a list of agents, in hexadecimal: two runs with the same hash asked for the same."""
    return sha256_value(list(names))


def is_agent(name: str) -> bool:
    """Whether a group of robots.txt can be meant for an agent of this name."""
    return agent_token(name) != ""


def _provenance(asked: str, file: Path) -> str:
    _, date = _read(file)
    return f"{asked} of {date}, sha256 {sha256_bytes(file.read_bytes())}"


def _read(file: Path) -> tuple[dict[str, tuple[str, ...]], str]:
    """The lists of a file, and its date."""
    found = read_json(file)
    lists = found.get("lists") if isinstance(found, dict) else None
    if not isinstance(lists, dict) or not lists:
        raise DataError(
            f"{file} is no list of agents",
            fix='It needs {"date": "2026-11-22", "lists": {name: [agent, ...]}}',
        )
    date = found.get("date")
    if not isinstance(date, str) or _DAY.fullmatch(date) is None:
        raise DataError(
            f"the lists of agents in {file} have the date {str(date)[:40]!r}",
            fix='Write the day on which they held, such as "date": "2026-11-22"',
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
    return {name: tuple(members) for name, members in lists.items()}, date


APERTUS_AGENTS: tuple[str, ...] = load_agents("apertus")
"""The agents of the Apertus corpus, asked in January 2025.

Source   Apertus technical report (arXiv 2509.14233), section on robots.txt; FacebookBot stands
         only in the code, swiss-ai/pretrain-data.
"""
