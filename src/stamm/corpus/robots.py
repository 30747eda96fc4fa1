"""One robots.txt file: may an agent fetch an address, and which line says no.

Protego decides about addresses. It matches agents by parts of their names, does not tell which rule
decided and does not know Content-Usage lines, so agents and groups are matched here, by whole
product tokens, and Protego is asked by the name of the group found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from protego import Protego

# RFC 9309, 2.5: a parser must read at least 500 KiB; what stands behind may be ignored.
PARSED_BYTES = 500 * 1024
_AGENT = ("user-agent", "useragent", "user agent")
# RFC 9309, 2.2.1, allows letters, "_" and "-"; digits are added for names such as AI2Bot.
_PRODUCT_TOKEN = re.compile(r"[A-Za-z0-9_-]+|\*")
_SITE_WIDE = ("sitemap", "sitemaps", "site-map", "host")
_USAGE = "content-usage"


@dataclass(frozen=True, kw_only=True)
class RobotsAnswer:
    """What a host answered when its robots.txt was read.

    status   HTTP status; 0 when nothing came, or nothing that can be read
    read     the date it was read, as the snapshot has it
    """

    url: str
    status: int
    read: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A line that keeps an agent out.

    reason   "robots_disallow" or "robots_content_usage"
    agents   the agents it keeps out, as asked, joined by ", "
    rule     the line and the group it stands in
    """

    reason: str
    agents: str
    rule: str


def robots_path(url: str) -> bool:
    """Whether an address is that of a robots.txt file."""
    try:
        return urlsplit(url).path == "/robots.txt"
    except ValueError:
        return False


class RobotsFile:
    """The rules of one file. A leading byte order mark is no part of the first line.

    Edge     "GPTBot/1.0" and "GPTBot (ai)" name the group gptbot, "* foo" names the group *; the
             agents asked are cut in the same way.
    Source   RFC 9309; Protego 0.7.0 keeps the mark and loses the first group (scrapy/scrapy issue
             6195), so it is taken off here.
    Checked  tests/unit/corpus/test_robots.py
    """

    def __init__(self, text: str) -> None:
        kept = text.encode("utf-8", "replace")[:PARSED_BYTES].decode("utf-8", "ignore")
        kept = kept.lstrip("\ufeff")
        self._protego = Protego.parse(_with_tokens(kept))
        self._groups = _groups(kept)
        self._patterns: dict[str, Protego] = {}
        self._speaks_of_usage = any(
            key == _USAGE for rules in self._groups.values() for key, _ in rules
        )

    def refusal(self, url: str, agents: tuple[str, ...]) -> Refusal | None:
        """The refusal that `url` meets, None when every agent may fetch it.

        Agents that have no group of their own follow `*`; they are named only when `*` was not
        asked.
        """
        refused = [
            agent
            for agent in agents
            if not self._protego.can_fetch(url, _asked_name(self._token(agent)))
        ]
        if refused:
            named = [a for a in refused if a == "*" or self._token(a) != "*"] or refused
            return Refusal(
                reason="robots_disallow",
                agents=", ".join(named),
                rule=self._disallow(url, named[0]),
            )
        for agent in agents if self._speaks_of_usage else ():
            line = self._usage(url, self._token(agent))
            if line:
                return Refusal(reason="robots_content_usage", agents=agent, rule=line)
        return None

    def _token(self, agent: str) -> str:
        """The name of the group an agent follows, "*" when none is its own."""
        token = _product_token(agent)
        return token if token in self._groups else "*"

    def _disallow(self, url: str, agent: str) -> str:
        token = self._token(agent)
        # Protego also takes misspelt forms; all begin with a d, and no other rule does.
        values = [value for key, value in self._groups.get(token, []) if key.startswith("d")]
        hits = [value for value in values if value and self._matches(value, url)]
        if not hits:
            return f"a rule of group {token}, not found as a line"
        return f"Disallow: {max(hits, key=len)} (group {token})"

    def _usage(self, url: str, token: str) -> str:
        """The longest Content-Usage line of a group that says train-ai=n for `url`, or ""."""
        best: tuple[int, bool, str] | None = None
        for key, value in self._groups.get(token, []):
            if key != _USAGE:
                continue
            path, preference = "/", value
            if value.startswith("/"):
                path, preference = (*value.split(None, 1), "")[:2]
            if self._matches(path, url):
                # Of equally long lines the one that reserves wins.
                found = (len(path), reserves_training(preference), f"Content-Usage: {value}")
                best = max(best, found) if best else found
        return f"{best[2]} (group {token})" if best and best[1] else ""

    def _matches(self, pattern: str, url: str) -> bool:
        if pattern not in self._patterns:
            self._patterns[pattern] = Protego.parse(f"User-agent: *\nDisallow: {pattern}\n")
        return not self._patterns[pattern].can_fetch(url, "*")


def reserves_training(preference: str) -> bool:
    """Whether a Content-Usage value says train-ai=n.

    Source   ietf-wg-aipref/drafts, draft-ietf-aipref-attach: a dictionary, members split by commas.
    """
    members = [part.split(";")[0].replace(" ", "").lower() for part in preference.split(",")]
    return "train-ai=n" in members


def _product_token(name: str) -> str:
    """The leading product token of an agent's name in lower case; the name when it has none."""
    found = _PRODUCT_TOKEN.match(name.strip())
    return (found[0] if found else name.strip()).lower()


def _asked_name(token: str) -> str:
    # Protego 0.7.0 scores a name by its length, so that a name of one letter ties with "*".
    return token if token == "*" else f"group-{token}"


def _split_line(line: str) -> tuple[str, str]:
    bare = line.partition("#")[0].strip()
    key, colon, value = bare.partition(":")
    if not colon:
        key, _, value = bare.partition(" ")
    return key.strip().lower(), value.strip()


def _with_tokens(text: str) -> str:
    """`text` with the value of each user-agent line cut to its product token."""
    lines = []
    for written in text.splitlines():
        line = written
        key, value = _split_line(line)
        if key in _AGENT and value:
            line = f"User-agent: {_asked_name(_product_token(value))}"
        lines.append(line)
    return "\n".join(lines)


def _groups(text: str) -> dict[str, list[tuple[str, str]]]:
    """The rules by agent name, groups of the same name merged (RFC 9309, 2.2.1)."""
    groups: dict[str, list[tuple[str, str]]] = {}
    current: list[str] = []
    naming = False
    for key, value in map(_split_line, text.splitlines()):
        if not key:
            continue
        if key in _AGENT:
            if not naming:
                current = []
            naming = True
            if value:
                current.append(_product_token(value))
                groups.setdefault(_product_token(value), [])
        elif key not in _SITE_WIDE:
            naming = False
            for name in current:
                groups[name].append((key, value))
    return groups
