"""The rules of one group of a robots.txt file, and the search for the one that decides a path."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from stamm.corpus.consent.content_usage import USAGE_LABELS, refused_use, signal_refuses
from stamm.corpus.consent.robots_matcher import (
    PLAIN,
    LongestMatch,
    RankedRule,
    escaped,
    longest_match,
    normalize_pattern,
)
from stamm.corpus.consent.robots_parser import Block, Rule, disallows, read_rules

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
            found = longest_match(_access_patterns(likely, self._spell), path)
        else:
            if self._access is None:
                self._access = LongestMatch(_access_patterns(self._read(), self._spell))
            found = self._access.find(path)
        return found.rule if found is not None and found.loses_ties else None

    def usage(self, path: bytes) -> Rule | None:
        """The Content-Usage or Content-Signal line that decides a path, when it reserves training."""
        if self._usage is None:
            usage = [rule for rule in self._no_paths() if rule[1] in PREFERENCES]
            self._usage = LongestMatch(_usage_patterns(usage, self._spell)) if usage else _NOTHING
        found = self._usage.find(path)
        return found.rule if found is not None and not found.loses_ties else None

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
    """Of equally long rules Allow wins."""
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
    """Of equally long lines the one that reserves wins; one without a path applies to "/"."""
    for rule in rules:
        path, preference = b"/", rule[2]
        if preference.startswith(b"/"):
            path, preference = (*preference.split(None, 1), b"")[:2]
        reserves = reserves_training(preference.decode("utf-8", "replace"))
        yield spell(path), RankedRule(-len(escaped(path)), not reserves, rule)
