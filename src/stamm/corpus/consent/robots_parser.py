"""Parser of robots.txt: groups of agents and their rules, read as Google's parser reads them.

Everything here is bytes: RFC 9309 counts octets, and a file may contain invalid UTF-8.

Where Google's parser goes beyond RFC 9309, and this one too:
  keys       a key counts by its beginning ("Disallowed", "User-agents"), and five misspellings of
             Disallow and two of User-agent count; a blank may replace the colon when the line has
             exactly two words
  agents     of "GPTBot/1.0 (ai)" only the leading letters, "-" and "_" count; "* foo" is "*"
  groups     only Allow and Disallow end the list of names at the start of a group. A group with
             nothing but Crawl-delay or Sitemap is therefore merged into the next one; at the end
             of a file it is a group, and frees its agents from the rules of "*"
  lines      cut at 16,663 octets and at a NUL; CR, LF and CRLF end them
  pages      an Allow for /a/index.html also allows /a/
  start      the first octets of a byte order mark are skipped, even when some are missing
Where this parser differs from Google's:
  agents     a name with digits (AI2Bot, which Google's parser cannot find) is also found whole, and
             so is one with characters outside ASCII (Bücherbot, which Google's parser reads as B):
             the octets of its UTF-8 are compared, capital letters of ASCII as small ones, nothing
             else folded or normalised. It ends at a blank, at another ASCII sign, and at an octet
             that is not UTF-8; a name in another encoding therefore matches by its ASCII start only
  groups     a Content-Usage line is a rule (draft-ietf-aipref-attach), so it ends the list of names
  size       bytes beyond 500 KiB are ignored (RFC 9309, 2.5, lets a parser stop there), and so is
             the line across that limit: cut, it would be another rule

Source   RFC 9309; google/robotstxt, robots.cc (Apache-2.0), read for its decisions.
Checked  tests/unit/corpus/consent/test_google_cases.py
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

PARSED_BYTES = 500 * 1024
_LONGEST_LINE = 2083 * 8 - 1
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_KINDS = re.compile(
    rb"(?P<agent>user[- ]?agent)|(?P<allow>allow)"
    rb"|(?P<disallow>disallow|dissallow|dissalow|disalow|diasllow|disallaw)"
    rb"|(?P<usage>content-usage\Z)|(?P<signal>content-signal\Z)",
    re.IGNORECASE,
)
# Common spellings of keys, and their kinds: a fast path.
_USUAL_KEYS = {
    spelled.encode(): kind
    for key, kind in (
        ("User-agent", "agent"),
        ("Allow", "allow"),
        ("Disallow", "disallow"),
        ("Content-usage", "usage"),
        ("Content-signal", "signal"),
        ("Crawl-delay", None),
    )
    for spelled in (key, key.lower(), key.upper(), key.title())
}
_AGENT_LINES = re.compile(rb"\n[ \t\v\f]*+(?i:user[- ]?agent)[^\n]*+")
_RULE_LINES = re.compile(rb"\n[ \t\v\f]*+[adcADC][^\n]*+")
# First letters of lines with a rule. Comments, blank lines and Sitemap are half of all lines.
_RULE_BEGINNINGS = frozenset(b"adcADC")
# "Disallow: /" and one octet.
_START = 12
# RFC 9309, 2.2.1: a product token is made of letters, "-" and "_". AI2Bot has a digit.
_LETTERS = re.compile(rb"[A-Za-z_-]+")
_LETTERS_AND_DIGITS = re.compile(rb"[A-Za-z0-9_-]+")
# U+FFFD replaces invalid octets; lone surrogates are invalid.
_WHOLE_NAME = re.compile(r"(?:[A-Za-z0-9_-]|[^\x00-\x7f\s\ufffd\ud800-\udfff])+")

Rule = tuple[int, str, bytes]
"""One rule: its line, from 1, its kind ("allow", "disallow", "usage" or "signal"), its value as written."""

Block = tuple[int, int, int]
"""Position of the rules after a list of names: the number of the line before them, and their start
and end in the result of `read_lines`."""


def read_lines(data: bytes) -> bytes:
    """The lines within all limits, each after a line feed."""
    kept = whole_lines(data)
    for octet in _BYTE_ORDER_MARK:
        if kept[:1] != bytes([octet]):
            break
        kept = kept[1:]
    if b"\r" in kept:
        kept = kept.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\0" in kept or _has_long_line(kept):
        cut = (line[:_LONGEST_LINE].partition(b"\0")[0] for line in kept.split(b"\n"))
        kept = b"\n".join(cut)
    return b"\n" + kept


def read_groups(lines: bytes) -> dict[str, tuple[Block, ...]]:
    """The blocks of each agent by its name in lower case, "*" for all others, in file order.

    Their rules are parsed later (`read_rules`). Names above the same rules share a block, so the
    result grows with the file and not with names times rules.
    """
    groups: dict[str, list[Block]] = {}
    names: dict[str, None] = {}
    number = end = 0
    for agent_line in _AGENT_LINES.finditer(lines):
        kind, value = _kind_and_value(agent_line[0].strip())
        if kind != "agent":
            continue
        start = agent_line.start()
        if start > end and _has_rule(lines, end, start):
            _add(groups, names, (number, end, start))
            names = {}
        names |= dict.fromkeys(_names(value))
        number += lines.count(b"\n", end, agent_line.end())
        end = agent_line.end()
    _add(groups, names, (number, end, len(lines)))
    return {name: tuple(blocks) for name, blocks in groups.items()}


def read_rules(lines: bytes, block: Block, without: frozenset[bytes] = frozenset()) -> list[Rule]:
    """The rules of a block.

    without   beginnings of lines, of 12 octets, that are skipped (`disallows`)
    """
    rules: list[Rule] = []
    first, start, end = block
    for number, line in enumerate(lines[start:end].split(b"\n"), start=first):
        if line[:_START] in without:
            continue
        bare = line.strip()
        if not bare or bare[0] not in _RULE_BEGINNINGS:
            continue
        kind, value = _kind_and_value(bare)
        if kind is not None:
            rules.append((number, kind, value))
    return rules


def disallows(octets: Iterable[int]) -> frozenset[bytes]:
    """Beginnings of lines that disallow "/" and one of `octets`, in the usual spellings."""
    keys = [key for key, kind in _USUAL_KEYS.items() if kind == "disallow"]
    return frozenset(b"%s: /%c" % (key, octet) for key in keys for octet in octets)


def whole_lines(data: bytes) -> bytes:
    """The first 500 KiB, without the line that is cut there.

    Edge   a first line of more than 500 KiB is cut.
    """
    if len(data) <= PARSED_BYTES:
        return data
    # A line end directly after the limit completes the last line.
    kept = data[: PARSED_BYTES + 1]
    end = max(kept.rfind(b"\n"), kept.rfind(b"\r"))
    return kept[: min(end + 1, PARSED_BYTES)] if end >= 0 else kept[:PARSED_BYTES]


def agent_token(agent: str) -> str:
    """The name under which an agent's group is looked up: "CCBot/2.0" gives "ccbot", "*" itself.

    Edge     "" for no product token ("Foo Bar"). Only ASCII becomes lower case: "BÜR" gives "bÜr".
    """
    name = agent.strip().partition("/")[0]
    return _ascii_lower(name) if name == "*" or _WHOLE_NAME.fullmatch(name) else ""


def _has_long_line(data: bytes) -> bool:
    start = 0
    while len(data) - start > _LONGEST_LINE:
        end = data.rfind(b"\n", start, start + _LONGEST_LINE + 1)
        if end < 0:
            return True
        start = end + 1
    return False


def _has_rule(lines: bytes, start: int, stop: int) -> bool:
    for rule_line in _RULE_LINES.finditer(lines, start, stop):
        if _kind_and_value(rule_line[0].strip())[0] is not None:
            return True
    return False


def _add(groups: dict[str, list[Block]], names: Iterable[str], block: Block) -> None:
    for name in names:
        groups.setdefault(name, []).append(block)


def _kind_and_value(bare: bytes) -> tuple[str | None, bytes]:
    """The kind of a stripped line, None when it is neither a name nor a rule, and its value."""
    key, colon, value = bare.partition(b":")
    if colon and key in _USUAL_KEYS:
        return _USUAL_KEYS[key], value.partition(b"#")[0].strip()
    bare = bare.partition(b"#")[0].rstrip()
    key, colon, value = bare.partition(b":")
    if not colon:
        words = [word for word in bare.replace(b"\t", b" ").split(b" ") if word]
        key, value = words if len(words) == 2 else (b"", b"")
    kind_match = _KINDS.match(key.strip())
    return kind_match.lastgroup if kind_match else None, value.strip()


@functools.lru_cache(maxsize=512)
def _names(value: bytes) -> tuple[str, ...]:
    """Names of agents that a User-agent line addresses."""
    if value[:1] == b"*" and (len(value) == 1 or value[1:2].isspace()):
        return ("*",)
    name_matches = (_LETTERS.match(value), _LETTERS_AND_DIGITS.match(value))
    names = [name[0].decode().lower() for name in name_matches if name]
    if not value.isascii():
        whole = _WHOLE_NAME.match(value.decode("utf-8", "replace"))
        names += [_ascii_lower(whole[0])] if whole else []
    return tuple(dict.fromkeys(names))


def _ascii_lower(name: str) -> str:
    """`name` with ASCII letters in lower case."""
    return name.encode().lower().decode()
