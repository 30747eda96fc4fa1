"""One robots.txt file: may an agent fetch an address, and which line says no.

Decisions are those of Google's parser (lines.py tells where it goes beyond RFC 9309), except that
  /robots.txt    is always allowed (RFC 9309, 2.2.2)
  %7Ejoe, ~joe   name one thing, as do %2A and a star in an address (RFC 9309, 2.2.2 and 2.2.3);
                 Google's parser compares what is written, and asks its caller to encode addresses
  /a b, /a%20b   name one thing, as do all other octets that no address may hold as they are
  /x/../a        is asked as /a: who fetches it asks the server for /a (RFC 3986, 5.2.4)
  Content-Usage  is honoured (draft-ietf-aipref-attach)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from stamm.corpus.consent.content_usage import USAGE_LABELS, refused_use
from stamm.corpus.consent.lines import Block, Rule, agent_token, read_groups, whole_lines
from stamm.corpus.consent.patterns import (
    Candidate,
    LongestMatch,
    escaped,
    one_spelling,
    one_spelling_of_pattern,
    path_of,
)

_AROUND_EQUALS = re.compile(r"[ \t]*=[ \t]*")
_WRITTEN = {"disallow": "Disallow", "usage": "Content-Usage"}
_REASON = {"disallow": "robots_disallow", "usage": "robots_content_usage"}
_INDEX_PAGE = b"/index.htm"
# What a file that is text does not hold: all controls but tabs, line ends, form feeds, and the
# end-of-file mark of old editors.
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1a"))
_MOST_REFUSALS = 1024


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
    line     its number, from 1
    """

    reason: str
    agents: str
    rule: str
    line: int


def robots_path(url: str) -> bool:
    """Whether an address is that of a robots.txt file."""
    try:
        return urlsplit(url).path == "/robots.txt"
    except ValueError:
        return False


class RobotsFile:
    """The rules of one file, given as text or as the octets that came.

    unparsable   "an HTML page" or "binary data" when the file is one and names no agent, else ""

    Source   RFC 9309; draft-ietf-aipref-attach.
    Checked  tests/unit/corpus/consent/test_robots.py, tests/unit/corpus/consent/test_google_cases.py
    """

    def __init__(self, text: str | bytes) -> None:
        octets = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        kept = whole_lines(octets)
        self._groups = read_groups(kept)
        self._panels: dict[tuple[str, ...], _Panel] = {}
        self.unparsable = "" if self._groups else _not_text(kept)

    def refusal(self, url: str, agents: tuple[str, ...]) -> Refusal | None:
        """The refusal that `url` meets, None when every agent may fetch it.

        Agents that have no group of their own follow `*`; they are named only when `*` was not
        asked. A Disallow is named before a Content-Usage line.
        """
        panel = self._panels.get(agents)
        if panel is None:
            panel = self._panels[agents] = _Panel(self._groups, agents)
        return panel.refusal(one_spelling(path_of(url).encode("utf-8", "surrogatepass")))

    def allows(self, path: bytes, agent: str) -> bool:
        """Whether Allow and Disallow let one agent fetch a path, compared as both are written.

        The question that Google's parser answers, and the same answer. `refusal` puts it to paths
        and patterns in one spelling.
        """
        return _Rules(_blocks(self._groups, agent)[1], escaped).disallow(path) is None


class _Rules:
    """The rules of one group, ready to be asked about paths in the spelling of `spell`."""

    def __init__(
        self, blocks: list[Block], spell: Callable[[bytes], bytes] = one_spelling_of_pattern
    ) -> None:
        rules = [rule for block in blocks for rule in block]
        self._access = LongestMatch(_access_patterns(rules, spell))
        self._usage = LongestMatch(_usage_patterns(rules, spell))

    def disallow(self, path: bytes) -> Rule | None:
        """The Disallow that decides about a path."""
        found = self._access.find(path)
        return found.rule if found is not None and found.loses_ties else None

    def usage(self, path: bytes) -> Rule | None:
        """The Content-Usage line that decides about a path, when it reserves training."""
        found = self._usage.find(path)
        return found.rule if found is not None and not found.loses_ties else None


class _Panel:
    """Agents asked together: each group once, however many agents follow it."""

    def __init__(self, groups: dict[str, list[Block]], agents: tuple[str, ...]) -> None:
        self._agents: list[tuple[str, str, int]] = []
        self._rules: list[_Rules] = []
        known: dict[tuple[int, ...], int] = {}
        for agent in agents:
            name, blocks = _blocks(groups, agent)
            same = tuple(map(id, blocks))
            if same not in known:
                known[same] = len(self._rules)
                self._rules.append(_Rules(blocks))
            self._agents.append((agent, name, known[same]))
        self._refusals: dict[tuple[Rule | None, ...], Refusal] = {}

    def refusal(self, path: bytes) -> Refusal | None:
        """The refusal that a path in one spelling meets in any group."""
        if path == b"/robots.txt":
            return None
        lines = [rules.disallow(path) for rules in self._rules]
        if not any(lines):
            lines = [rules.usage(path) for rules in self._rules]
        if not any(lines):
            return None
        found = tuple(lines)
        if found not in self._refusals:
            if len(self._refusals) >= _MOST_REFUSALS:
                self._refusals.clear()
            self._refusals[found] = self._named(found)
        return self._refusals[found]

    def _named(self, lines: tuple[Rule | None, ...]) -> Refusal:
        refused = [(agent, name, rule) for agent, name, at in self._agents if (rule := lines[at])]
        own = [one for one in refused if one[0] == "*" or one[1] != "*"] or refused
        _, name, rule = own[0]
        value = rule.value.decode("utf-8", "replace")
        return Refusal(
            reason=_REASON[rule.key],
            agents=", ".join(agent for agent, _, _ in own),
            rule=f"{_WRITTEN[rule.key]}: {value} (group {name})",
            line=rule.line,
        )


def reserves_training(preference: str) -> bool:
    """Whether a Content-Usage value denies training.

    Edge   blanks around "=" and capital letters make a value meaningless by the draft. They are
           common in robots.txt, where nothing else minds them: such a refusal is heard.
    """
    plain = _AROUND_EQUALS.sub("=", preference.lower())
    return refused_use([plain], USAGE_LABELS) is not None


def _blocks(groups: dict[str, list[Block]], agent: str) -> tuple[str, list[Block]]:
    """The name of the group an agent follows, and its blocks."""
    token = agent_token(agent)
    name = token if token in groups else "*"
    return name, groups.get(name, [])


def _access_patterns(
    rules: list[Rule], spell: Callable[[bytes], bytes]
) -> Iterator[tuple[bytes, Candidate]]:
    """Of equally long rules Allow wins."""
    for rule in rules:
        # An empty pattern matches with no weight: it decides nothing.
        if rule.key == "usage" or not rule.value:
            continue
        pattern, allows = escaped(rule.value), rule.key == "allow"
        yield spell(pattern), Candidate(-len(pattern), not allows, rule)
        if allows and _INDEX_PAGE in pattern:
            # Google's parser: who allows /a/index.html allows /a/ too.
            folder, slash, page = pattern.rpartition(b"/")
            if (slash + page).startswith(_INDEX_PAGE):
                shorter = folder + b"/$"
                yield spell(shorter), Candidate(-len(shorter), False, rule)


def _usage_patterns(
    rules: list[Rule], spell: Callable[[bytes], bytes]
) -> Iterator[tuple[bytes, Candidate]]:
    """Of equally long lines the one that reserves wins; one without a path speaks of "/"."""
    for rule in rules:
        if rule.key == "usage":
            path, preference = b"/", rule.value
            if preference.startswith(b"/"):
                path, preference = (*preference.split(None, 1), b"")[:2]
            reserves = reserves_training(preference.decode("utf-8", "replace"))
            yield spell(path), Candidate(-len(escaped(path)), not reserves, rule)


def _not_text(octets: bytes) -> str:
    if octets.translate(None, _CONTROLS) != octets:
        return "binary data"
    return "an HTML page" if octets.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"<" else ""
