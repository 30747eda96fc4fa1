"""Parser of ai.txt in Spawning's format: whether the site opted out, and the line that decides.

The file looks like a robots.txt whose rules name media types by their file endings (`Disallow:
*.txt`) beside paths. At least four unrelated formats bear the same name; a file without both a
user-agent and a rule is treated as absent.

Source   Spawning, "ai.txt: A new way for websites to set permissions for AI", 2023-05-30, and the
         files its generator wrote; a convention without a standard.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from stamm.corpus.consent.robots_matcher import (
    matches,
    normalize_path,
    normalize_pattern,
    path_of,
)
from stamm.corpus.consent.robots_parser import agent_token
from stamm.corpus.documents import clean_field

LONGEST_TEXT = 500 * 1024
MOST_RULES = 10_000
LONGEST_LINE = 2048
_TYPE = re.compile(r"/?\*\.([A-Za-z0-9]{1,10})\$?")
_ENDING = re.compile(r"\.([A-Za-z0-9]{1,10})$")
# What the generator lists under text.
TEXT_TYPES = ("txt", "pdf", "doc", "docx", "odt", "rtf", "tex", "wks", "wpd", "wps", "html")
# Types of an address that ends in none of these.
_PAGE_TYPES = ("html", "txt")


@dataclass(frozen=True, kw_only=True)
class AiTxtAnswer:
    """The opt-out state of an address, the line that decided, and the agent it applies to."""

    state: Literal["reserved", "not_reserved", "silent"] = "silent"
    rule: str = ""
    agent: str = ""


@dataclass(frozen=True, kw_only=True)
class _AiTxtRule:
    allow: bool
    written: str
    pattern: bytes
    media: str


class AiTxtFile:
    """The rules of one file.

    unread   the file has another format

    Edge     the longest rule that matches an address holds, Allow before Disallow among equals, as
             in robots.txt: the convention does not define it. A rule for a type of text (`*.txt`,
             `*.html`) applies to every page whose address does not end in another type of text:
             pages rarely end in .html. Rules beyond 10,000, lines beyond 2,048 characters and text
             beyond 500 KiB are ignored.
    Checked  tests/unit/corpus/consent/test_ai_txt.py
    """

    def __init__(self, text: str) -> None:
        whole = text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT].rpartition("\n")[0]
        bare = whole.lstrip("\ufeff \t\r\n")
        self._groups = _groups(bare)
        # An HTML page is the answer of a site without the file.
        self.unread = bool(bare) and not self._groups and not bare.startswith("<")

    def answer(self, url: str, agents: tuple[str, ...]) -> AiTxtAnswer:
        """The opt-out state of the text at an address; one refused agent is enough."""
        path = normalize_path(path_of(url).encode("utf-8", "surrogatepass"))
        if not self._groups:
            return AiTxtAnswer()
        types = _types(path.decode("ascii"))
        allowed = AiTxtAnswer()
        for name, agent in self._groups_of(agents).items():
            decisive = [
                rule
                for block in self._groups[name]
                for rule in block
                if rule.media in types or matches(rule.pattern, path)
            ]
            if not decisive:
                continue
            rule = max(decisive, key=lambda r: (len(r.pattern), r.allow))
            answer = AiTxtAnswer(
                state="not_reserved" if rule.allow else "reserved",
                rule=f"{'Allow' if rule.allow else 'Disallow'}: {rule.written}",
                agent=clean_field(agent),
            )
            if not rule.allow:
                return answer
            allowed = allowed if allowed.rule else answer
        return allowed

    def _groups_of(self, agents: tuple[str, ...]) -> dict[str, str]:
        """The groups that agents follow, and the first agent that follows each."""
        agent_by_group: dict[str, str] = {}
        for agent in agents:
            token = agent_token(agent)
            name = token if token in self._groups else "*"
            if name in self._groups:
                agent_by_group.setdefault(name, agent)
        return agent_by_group


def _types(path: str) -> tuple[str, ...]:
    """The text types of a path: the one its file ending names, else those of a page."""
    ending = _ENDING.search(path.partition("?")[0])
    named = ending[1].lower() if ending else ""
    return (named,) if named in TEXT_TYPES else _PAGE_TYPES


def _groups(text: str) -> dict[str, list[list[_AiTxtRule]]]:
    """The blocks of rules by agent; empty unless some agent has a rule.

    Blocks are shared between the names above them: a file may hold as many names as rules.
    """
    groups: dict[str, list[list[_AiTxtRule]]] = {}
    block: list[_AiTxtRule] = []
    naming, count = False, 0
    for line in re.split(r"\r\n|\r|\n", text):
        if len(line) > LONGEST_LINE:
            continue
        key, _, value = line.partition("#")[0].partition(":")
        key, value = key.strip().lower(), value.strip()
        if key == "user-agent":
            block, naming = (block, True) if naming else ([], True)
            blocks = groups.setdefault(agent_token(value), [])
            if not blocks or blocks[-1] is not block:
                blocks.append(block)
        elif key in ("allow", "disallow"):
            naming, count = False, count + 1
            # An empty Disallow refuses nothing, as in robots.txt.
            if value and count <= MOST_RULES:
                block.append(_rule(key == "allow", value))
    has_rules = any(any(blocks) for blocks in groups.values())
    return groups if has_rules else {}


def _rule(allow: bool, value: str) -> _AiTxtRule:
    media = _TYPE.fullmatch(value)
    start = value if value.startswith(("/", "*")) else f"/{value}"
    return _AiTxtRule(
        allow=allow,
        written=clean_field(value),
        pattern=normalize_pattern(start.encode("utf-8", "surrogatepass")),
        media=media[1].lower() if media else "",
    )
