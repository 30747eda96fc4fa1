"""Crawler names (user agents) whose opt-out removes a page, read from dated lists.

The shipped lists are in agents.json beside this file. In a configuration "package:training" names
one of them, "mine.json:training" a list of your own file. A run's configuration records the names,
and the file they came from with its date and hash.

File format: {"date": "2026-11-22", "lists": {name: [agent, ...]}}; other keys are ignored. An agent
is a product token (RFC 9309, 2.2.1), with an optional version behind a "/", or "*", the rules for
crawlers that no group names.
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
    """The agents of a named list: "apertus", "training" or "all" of the shipped file, or one of `path`.

    Raises   ConfigError for a list that is not in the file, DataError for an invalid file.
    """
    file = path or _SHIPPED
    lists, _ = _read(file)
    if name not in lists:
        raise ConfigError(f"{file.name} has no list {name!r}", fix=nearest(name, lists))
    return lists[name]


def resolve_agents(given: tuple[str, ...], source: str = "") -> tuple[tuple[str, ...], str]:
    """Replace lists by their names, each once. Returns the names and their provenance.

    given    agents, or lists: "package:training", "mine.json:training"
    source   provenance recorded before for the same names: a worker gets names, not files
    Edge     names equal to those of a shipped list get its provenance, other names "".
             With an invalid agent among them all are returned unchanged, for `validate` to report.
    Raises   ConfigError or DataError for a list that is missing or invalid.
    """
    if not all(":" in entry or is_agent(entry) for entry in given):
        return given, ""
    names: dict[str, None] = {}
    provenance = []
    for entry in given:
        list_source, colon, name = entry.rpartition(":")
        if colon:
            file = _SHIPPED if list_source == _PACKAGE else Path(list_source)
            names |= dict.fromkeys(load_agents(name, file))
            provenance.append(_provenance(entry, file))
        else:
            names[entry] = None
    if provenance:
        return tuple(names), f"{'; '.join(provenance)}; names {agents_sha256(tuple(names))}"
    if source.endswith(f"names {agents_sha256(given)}"):
        return given, source
    lists, _ = _read(_SHIPPED)
    shipped = next((f"{_PACKAGE}:{name}" for name in lists if lists[name] == given), "")
    return resolve_agents((shipped,)) if shipped else (given, "")


def fill_agents(config: Any) -> None:
    """Resolve `agents` and `agents_source` in `__post_init__` of a frozen configuration."""
    names, source = resolve_agents(config.agents, config.agents_source)
    object.__setattr__(config, "agents", names)
    object.__setattr__(config, "agents_source", source)


def agents_sha256(names: tuple[str, ...]) -> str:
    """SHA-256 of a list of agents, in hexadecimal; equal hashes mean equal lists."""
    return sha256_value(list(names))


def is_agent(name: str) -> bool:
    """Whether a robots.txt group can address an agent of this name."""
    return agent_token(name) != ""


def _provenance(given: str, file: Path) -> str:
    _, date = _read(file)
    return f"{given} of {date}, sha256 {sha256_bytes(file.read_bytes())}"


def _read(file: Path) -> tuple[dict[str, tuple[str, ...]], str]:
    """The lists of a file, and its date."""
    stored = read_json(file)
    lists = stored.get("lists") if isinstance(stored, dict) else None
    if not isinstance(lists, dict) or not lists:
        raise DataError(
            f"{file} is not a file of agent lists",
            fix='It needs {"date": "2026-11-22", "lists": {name: [agent, ...]}}',
        )
    date = stored.get("date")
    if not isinstance(date, str) or _DAY.fullmatch(date) is None:
        raise DataError(
            f"date = {str(date)[:40]!r} in {file} is not a day",
            fix='Write the day of the lists, such as "date": "2026-11-22"',
        )
    for name, members in lists.items():
        is_valid = isinstance(members, list) and all(
            isinstance(m, str) and is_agent(m) for m in members
        )
        if not is_valid or not members:
            raise DataError(
                f"the list {name!r} of {file} is not made of agent names",
                fix='Write product tokens such as "GPTBot", or "*"',
            )
    return {name: tuple(members) for name, members in lists.items()}, date


APERTUS_AGENTS: tuple[str, ...] = load_agents("apertus")
"""The agents checked for the Apertus corpus in January 2025.

Source   Apertus technical report (arXiv 2509.14233), section on robots.txt; FacebookBot occurs
         only in the code, swiss-ai/pretrain-data.
"""
