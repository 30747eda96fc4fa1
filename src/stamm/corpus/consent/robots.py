"""Decisions of a robots.txt file: may an agent fetch an address, and which line refuses it.

Decisions are those of Google's parser (robots_parser.py lists where it goes beyond RFC 9309), except that
  /robots.txt    is always allowed (RFC 9309, 2.2.2)
  %7Ejoe, ~joe   are equal, as are %2A and a star in an address (RFC 9309, 2.2.2 and 2.2.3);
                 Google's parser compares them as written, and expects its caller to encode addresses
  /a b, /a%20b   are equal, as are all other octets that must be encoded in an address
  /x/../a        counts as /a: clients request /a from the server (RFC 3986, 5.2.4)
  Content-Usage  is honoured (draft-ietf-aipref-attach), and Content-Signal (contentsignals.org), also
                 above all groups, where it applies to every agent
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from urllib.parse import urlsplit

from stamm.corpus.consent.content_usage import USAGE_LABELS, refused_use, signal_refuses
from stamm.corpus.consent.hosts import normalize_host, www_variant
from stamm.corpus.consent.robots_matcher import (
    PLAIN,
    LongestMatch,
    RankedRule,
    escaped,
    longest_match,
    normalize_path,
    normalize_pattern,
    path_of,
)
from stamm.corpus.consent.robots_parser import (
    Block,
    Rule,
    agent_token,
    disallows,
    read_groups,
    read_lines,
    read_rules,
    whole_lines,
)
from stamm.corpus.consent.terms import prohibits_training, usage_lines

PREFERENCES = ("usage", "signal")
"""Kinds of lines that are preferences: Content-Usage and Content-Signal."""
_ABSOLUTE = re.compile(rb"(?i)https?://")
_INDEX_PAGE = b"/index.htm"
_NOT_PLAIN = re.compile(b"[^%s]" % re.escape(PLAIN))
# Building the search structure takes as long as comparing two or three paths with all lines.
_ONE_BY_ONE = 3
_NOTHING = LongestMatch(())


class GroupRules:
    """The rules of one group; patterns are normalized by `spell`.

    Most files decide about few paths, and most rules begin otherwise than the path. So the first
    paths are compared with the lines one by one; after these a search structure is built.

    lines    the lines of the file
    blocks   positions of the rules in them
    """

    def __init__(
        self,
        lines: bytes,
        blocks: tuple[Block, ...],
        spell: Callable[[bytes], bytes] = normalize_pattern,
    ) -> None:
        self._lines = lines
        self._blocks = blocks
        self._spell = spell
        self._asked = 0
        self._access: LongestMatch | None = None
        self._usage: LongestMatch | None = None
        self._others: list[Rule] | None = None

    def disallow(self, path: bytes) -> Rule | None:
        """The Disallow that decides a path, or None."""
        if self._access is None and self._asked < _ONE_BY_ONE:
            self._asked += 1
            near = self._read(_far_from(path[:2]))
            if self._others is None:
                self._others = _no_paths(near)
            likely = [rule for rule in near if _may_match(rule, path)]
            match = longest_match(_access_patterns(likely, self._spell), path)
        else:
            if self._access is None:
                self._access = LongestMatch(_access_patterns(self._read(), self._spell))
            match = self._access.find(path)
        return match.rule if match is not None and match.loses_ties else None

    def usage(self, path: bytes) -> Rule | None:
        """The Content-Usage or Content-Signal line that decides a path, when it reserves training."""
        if self._usage is None:
            usage = [rule for rule in self._no_paths() if rule[1] in PREFERENCES]
            self._usage = LongestMatch(_usage_patterns(usage, self._spell)) if usage else _NOTHING
        match = self._usage.find(path)
        return match.rule if match is not None and not match.loses_ties else None

    def absolute(self) -> list[Rule]:
        """The Allow and Disallow written as absolute URLs: they match no path."""
        return [
            rule
            for rule in self._no_paths()
            if rule[1] not in PREFERENCES and _ABSOLUTE.match(rule[2])
        ]

    def _no_paths(self) -> list[Rule]:
        if self._others is None:
            self._others = _no_paths(self._read(_far_from(b"")))
        return self._others

    def _read(self, without: frozenset[bytes] = frozenset()) -> list[Rule]:
        read = [read_rules(self._lines, block, without) for block in self._blocks]
        return read[0] if len(read) == 1 else list(chain.from_iterable(read))


def reserves_training(preference: str) -> bool:
    """Whether the value of a Content-Usage or Content-Signal line denies training."""
    return refused_use([preference], USAGE_LABELS) is not None or signal_refuses(preference)


def _no_paths(rules: list[Rule]) -> list[Rule]:
    """Preferences, and other rules that do not begin with "/"; `_far_from` keeps them all."""
    return [rule for rule in rules if rule[1] in PREFERENCES or rule[2][:1] != b"/"]


@functools.lru_cache(maxsize=512)
def _far_from(start: bytes) -> frozenset[bytes]:
    """Beginnings of Disallow lines that match no path beginning with the two octets `start`."""
    return disallows(octet for octet in PLAIN if b"/%c" % octet != start)


def _may_match(rule: Rule, path: bytes) -> bool:
    """Whether an Allow or Disallow may match a path, in any spelling.

    Octets that stand for themselves match nothing else; but an Allow for an index page means its
    folder too.
    """
    _, key, value = rule
    if path.startswith(value):
        return True
    if key == "allow" and value.find(_INDEX_PAGE) >= 0:
        return True
    if not value.translate(None, PLAIN):
        return False
    return path.startswith(_NOT_PLAIN.split(value, maxsplit=1)[0])


def _access_patterns(
    rules: Iterable[Rule], spell: Callable[[bytes], bytes]
) -> Iterator[tuple[bytes, RankedRule]]:
    """Patterns of the Allow and Disallow rules; of equally long ones Allow wins."""
    for rule in rules:
        # An empty pattern matches with no weight: it decides nothing.
        _, key, value = rule
        if key in PREFERENCES or not value:
            continue
        pattern, allows = escaped(value), key == "allow"
        yield spell(pattern), RankedRule(-len(pattern), not allows, rule)
        if allows and _INDEX_PAGE in pattern:
            # As Google's parser: an Allow for /a/index.html also allows /a/.
            folder, slash, page = pattern.rpartition(b"/")
            if (slash + page).startswith(_INDEX_PAGE):
                shorter = folder + b"/$"
                yield spell(shorter), RankedRule(-len(shorter), False, rule)


def _usage_patterns(
    rules: Iterable[Rule], spell: Callable[[bytes], bytes]
) -> Iterator[tuple[bytes, RankedRule]]:
    """Patterns of preference lines; of equally long ones the one that reserves wins.

    A line without a path applies to "/".
    """
    for rule in rules:
        path, preference = b"/", rule[2]
        if preference.startswith(b"/"):
            path, preference = (*preference.split(None, 1), b"")[:2]
        reserves = reserves_training(preference.decode("utf-8", "replace"))
        yield spell(path), RankedRule(-len(escaped(path)), not reserves, rule)


_WRITTEN = {
    "disallow": "Disallow",
    "usage": "Content-Usage",
    "signal": "Content-Signal",
    "prohibits": "Prohibits",
}
_REASON = {
    "disallow": "robots_disallow",
    "usage": "robots_content_usage",
    "signal": "robots_content_usage",
    "prohibits": "robots_content_usage",
}
# Controls that a text file does not contain: all but tabs, line ends, form feeds, and the
# end-of-file mark of old editors.
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1a"))
_MOST_REFUSALS = 1024
_ROBOTS_PATH = b"/robots.txt"


@dataclass(frozen=True, kw_only=True)
class RobotsAnswer:
    """The answer of a host to the request for its robots.txt.

    status   HTTP status; 0 without a readable answer
    read     the date it was read, as in the snapshot
    """

    url: str
    status: int
    read: str
    text: str


@dataclass(frozen=True, kw_only=True)
class RobotsRefusal:
    """A line that refuses an agent.

    reason   "robots_disallow" or "robots_content_usage"
    agents   the refused agents, as configured, joined by ", "
    rule     the line and its group
    line     its number, from 1
    """

    reason: str
    agents: str
    rule: str
    line: int


def is_robots_path(url: str) -> bool:
    """Whether an address is that of a robots.txt file."""
    try:
        return urlsplit(url).path == "/robots.txt"
    except ValueError:
        return False


class RobotsFile:
    """The rules of one file, given as text or bytes.

    unparsable   "an HTML page" or "binary data" when the file is that and names no agent, else ""

    Source   RFC 9309; draft-ietf-aipref-attach.
    Checked  tests/unit/corpus/consent/test_robots.py, tests/unit/corpus/consent/test_google_cases.py
    """

    def __init__(self, text: str | bytes) -> None:
        octets = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        kept = whole_lines(octets)
        self._lines = read_lines(kept)
        self._groups = read_groups(self._lines)
        self._rules: dict[tuple[Block, ...], GroupRules] = {}
        self._agent_rules: _AgentRules | None = None
        self.unparsable = "" if self._groups else _not_text(kept)

    def refusal(self, url: str, agents: tuple[str, ...]) -> RobotsRefusal | None:
        """The refusal of `url`, None when every agent may fetch it.

        Agents without a group follow `*`; they are reported only when `*` is not among `agents`.
        A Disallow is reported before a Content-Usage line.
        """
        agent_rules = self._agent_rules
        if agent_rules is None or agent_rules.agents != agents:
            names = self._followed(agents)
            rules = {name: self._rules_of(name) for name in dict.fromkeys(names)}
            agent_rules = self._agent_rules = _AgentRules(agents, names, rules)
        path = normalize_path(path_of(url).encode("utf-8", "surrogatepass"))
        refusal = agent_rules.refusal(path)
        denial = None if refusal is not None or path == _ROBOTS_PATH else self._denial
        if denial is not None:
            line, key, value = denial
            refusal = RobotsRefusal(
                reason=_REASON[key],
                agents=", ".join(agents),
                rule=f"{_WRITTEN[key]}: {value.decode('utf-8', 'replace')} (no group)",
                line=line,
            )
        return refusal

    def allows(self, path: bytes, agent: str) -> bool:
        """Whether Allow and Disallow let one agent fetch a path, as Google's parser compares them."""
        (name,) = self._followed((agent,))
        return GroupRules(self._lines, self._groups.get(name, ()), escaped).disallow(path) is None

    def absolute_rules(self, host: str, agents: tuple[str, ...] | None = None) -> list[Rule]:
        """Rules written as absolute URLs of `host` or its "www." variant, which match no path.

        agents   only the groups that these follow; None: every group
        """
        names = self._groups if agents is None else self._followed(agents)
        rules = {rule for name in set(names) for rule in self._rules_of(name).absolute()}
        return sorted(rule for rule in rules if _host(rule[2]) in (host, www_variant(host)))

    @functools.cached_property
    def terms(self) -> tuple[Rule, ...]:
        """Lines about the use of the site's content that are not read, such as License."""
        return tuple(usage_lines(self._lines))

    @functools.cached_property
    def _denial(self) -> Rule | None:
        """The line outside all groups that denies training: Content-Signal above them, or Prohibits."""
        prohibited = (rule for rule in self.terms if prohibits_training(*rule[1:]))
        return self._signal_above() or next(prohibited, None)

    def _signal_above(self) -> Rule | None:
        """The Content-Signal above all groups that denies training."""
        start = min(
            (start for blocks in self._groups.values() for _, start, _ in blocks), default=None
        )
        return next(
            (
                rule
                for rule in read_rules(self._lines, (0, 0, start or len(self._lines)))
                if rule[1] == "signal" and signal_refuses(rule[2].decode("utf-8", "replace"))
            ),
            None,
        )

    def _followed(self, agents: tuple[str, ...]) -> tuple[str, ...]:
        """The name of the group that each agent follows."""
        groups = self._groups
        return tuple([token if token in groups else "*" for token in _tokens(agents)])

    def _rules_of(self, name: str) -> GroupRules:
        """The rules of a group; the same ones for names that share its lines."""
        blocks = self._groups.get(name, ())
        if blocks not in self._rules:
            self._rules[blocks] = GroupRules(self._lines, blocks)
        return self._rules[blocks]


class _AgentRules:
    """The rules for several agents: each group is checked once, whatever the number of agents.

    names   the group that each agent follows
    rules   of each group
    """

    def __init__(
        self, agents: tuple[str, ...], names: tuple[str, ...], rules: dict[str, GroupRules]
    ) -> None:
        self.agents = agents
        self._names = names
        self._rules = list(dict.fromkeys(rules.values()))
        self._at = {name: self._rules.index(group_rules) for name, group_rules in rules.items()}
        self._refusals: dict[tuple[Rule | None, ...], RobotsRefusal] = {}

    def refusal(self, path: bytes) -> RobotsRefusal | None:
        """The refusal of a normalized path by any group."""
        if path == _ROBOTS_PATH:
            return None
        lines = [rules.disallow(path) for rules in self._rules]
        if not any(lines):
            lines = [rules.usage(path) for rules in self._rules]
        if not any(lines):
            return None
        deciding_lines = tuple(lines)
        if deciding_lines not in self._refusals:
            if len(self._refusals) >= _MOST_REFUSALS:
                self._refusals.clear()
            self._refusals[deciding_lines] = self._named(deciding_lines)
        return self._refusals[deciding_lines]

    def _named(self, lines: tuple[Rule | None, ...]) -> RobotsRefusal:
        refused = [
            (agent, name, rule)
            for agent, name in zip(self.agents, self._names, strict=True)
            if (rule := lines[self._at[name]])
        ]
        named_refusals = [
            refusal for refusal in refused if refusal[0] == "*" or refusal[1] != "*"
        ] or refused
        _, name, (line, key, value) = named_refusals[0]
        written = value.decode("utf-8", "replace")
        return RobotsRefusal(
            reason=_REASON[key],
            agents=", ".join(agent for agent, _, _ in named_refusals),
            rule=f"{_WRITTEN[key]}: {written} (group {name})",
            line=line,
        )


@functools.lru_cache(maxsize=8)
def _tokens(agents: tuple[str, ...]) -> tuple[str, ...]:
    """The names under which the groups of agents are looked up."""
    return tuple(agent_token(agent) for agent in agents)


def _host(address: bytes) -> str:
    """The host of an address, "" when it names none."""
    try:
        return normalize_host(address.decode("utf-8", "replace"))
    except ValueError:
        return ""


def _not_text(octets: bytes) -> str:
    if octets.translate(None, _CONTROLS) != octets:
        return "binary data"
    return "an HTML page" if octets.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"<" else ""
