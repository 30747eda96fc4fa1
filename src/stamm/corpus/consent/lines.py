"""The lines of a robots.txt file: groups of agents and their rules, read as Google's parser reads them.

Everything here is bytes: RFC 9309 counts octets, and a file may hold octets that are no text.

Where Google's parser goes beyond RFC 9309, and we go with it:
  keys       a key counts by its beginning ("Disallowed", "User-agents"), and five misspellings of
             Disallow and two of User-agent count; a blank may stand for a forgotten colon when the
             line has exactly two words
  agents     of "GPTBot/1.0 (ai)" only the leading letters, "-" and "_" count; "* foo" is "*"
  groups     only Allow and Disallow end the list of names that a group begins with. A group that
             holds nothing but Crawl-delay or Sitemap therefore runs on into the next one; at the
             end of a file it stands for itself, and frees its agents from the rules of "*"
  lines      cut at 16,663 octets and at a NUL; CR, LF and CRLF end them
  pages      an Allow for /a/index.html also allows /a/
  start      the first octets of a byte order mark are passed over, even when some are missing
Where this parser differs from Google's:
  agents     a name with digits (AI2Bot, which Google's parser cannot find) is also found whole
  groups     a Content-Usage line is a rule (draft-ietf-aipref-attach), so it ends the list of names
  size       what stands behind 500 KiB does not count (RFC 9309, 2.5, lets a parser stop there), nor
             does the line that stands across: cut, it would be another rule

Source   RFC 9309; google/robotstxt, robots.cc (Apache-2.0), read for its decisions.
Checked  tests/unit/corpus/consent/test_google_cases.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

PARSED_BYTES = 500 * 1024
_LONGEST_LINE = 2083 * 8 - 1
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_KINDS = re.compile(
    rb"(?P<agent>user[- ]?agent)|(?P<allow>allow)"
    rb"|(?P<disallow>disallow|dissallow|dissalow|disalow|diasllow|disallaw)"
    rb"|(?P<usage>content-usage\Z)",
    re.IGNORECASE,
)
# Comments, blank lines and Sitemap are half of all lines; they need no taking apart.
_MAY_SPEAK = re.compile(rb"\s*[uadc]", re.IGNORECASE)
# RFC 9309, 2.2.1: a product token is made of letters, "-" and "_". AI2Bot has a digit.
_LETTERS = re.compile(rb"[A-Za-z_-]+")
_LETTERS_AND_DIGITS = re.compile(rb"[A-Za-z0-9_-]+")
_TOKEN = re.compile(r"[A-Za-z0-9_-]+|\*")


class Rule(NamedTuple):
    """One rule: its line, from 1, its kind ("allow", "disallow" or "usage"), its value as written."""

    line: int
    key: str
    value: bytes


Block = list[Rule]
"""The rules that follow one list of names."""


def read_groups(data: bytes) -> dict[str, list[Block]]:
    """The blocks of each agent by its name in lower case, "*" for everybody's, in file order.

    Blocks are shared between the names that stand above them, so that the result grows with the
    file and not with names times rules.
    """
    groups: dict[str, list[Block]] = {}
    block: Block = []
    naming = False
    for number, line in enumerate(_lines(data), start=1):
        if _MAY_SPEAK.match(line) is None:
            continue
        key, value = _key_and_value(line)
        found = _KINDS.match(key)
        kind = found.lastgroup if found else None
        if kind == "agent":
            if not naming:
                block, naming = [], True
            for name in _names(value):
                blocks = groups.setdefault(name, [])
                if not blocks or blocks[-1] is not block:
                    blocks.append(block)
        elif kind is not None:
            naming = False
            block.append(Rule(number, kind, value))
    return groups


def whole_lines(data: bytes) -> bytes:
    """The first 500 KiB, and of a longer file without the line that is cut there.

    Edge   one line of more than 500 KiB is cut: it has no other end.
    """
    if len(data) <= PARSED_BYTES:
        return data
    # A line end right behind makes the last line a whole one.
    kept = data[: PARSED_BYTES + 1]
    end = max(kept.rfind(b"\n"), kept.rfind(b"\r"))
    return kept[: min(end + 1, PARSED_BYTES)] if end >= 0 else kept[:PARSED_BYTES]


def agent_token(agent: str) -> str:
    """The name under which an agent's group is looked up: "CCBot/2.0" gives "ccbot", "*" itself.

    Edge     "" when what stands before a "/" is no product token ("Foo Bar"): no group is called so.
    """
    name = agent.strip().partition("/")[0]
    return name.lower() if _TOKEN.fullmatch(name) else ""


def _lines(data: bytes) -> Iterator[bytes]:
    kept = whole_lines(data)
    for octet in _BYTE_ORDER_MARK:
        if kept[:1] != bytes([octet]):
            break
        kept = kept[1:]
    for line in kept.splitlines():
        yield line[:_LONGEST_LINE].partition(b"\0")[0]


def _key_and_value(line: bytes) -> tuple[bytes, bytes]:
    bare = line.partition(b"#")[0].strip()
    key, colon, value = bare.partition(b":")
    if not colon:
        words = [word for word in bare.replace(b"\t", b" ").split(b" ") if word]
        key, value = words if len(words) == 2 else (b"", b"")
    return key.strip(), value.strip()


def _names(value: bytes) -> set[str]:
    """What an agent may be called to be meant by a User-agent line."""
    if value[:1] == b"*" and (len(value) == 1 or value[1:2].isspace()):
        return {"*"}
    found = (_LETTERS.match(value), _LETTERS_AND_DIGITS.match(value))
    return {name[0].decode().lower() for name in found if name}
