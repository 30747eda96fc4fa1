"""Terms of use beside the opt-out signals: RSL licences, and lines of robots.txt that are not read.

A robots.txt, a Link header or a link element may name an RSL licence (`License: https://…`), which is
in another file and is not fetched: terms that were not read. They are counted, or refuse the document
(`corpus.consent.unread_terms`). A licence inside a page is read.

Source   Really Simple Licensing (RSL) 1.0, 2025-11-06, rslstandard.org/rsl, and its guide
         "Adding RSL to robots.txt": a License line applies to every crawler, in or outside a group
Checked  tests/unit/corpus/consent/test_terms.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from xml.etree import ElementTree

from stamm.corpus.consent.robots_parser import Rule
from stamm.corpus.documents import clean_field

RSL_TYPE = "application/rsl+xml"
LONGEST_RSL = 65_536
_LINES = re.compile(rb"\n([ \t]*([A-Za-z][\w -]{0,40}?)[ \t]*:[ \t]*([^\n#]*))")
_ABOUT_USE = re.compile(
    rb"licen[cs]e|permits|prohibits|compensation|(?:^|[\W_])(?:ai|no_?ai|tdm|train\w*|rsl)(?:$|[\W_])|"
    rb"usage|robots-tag|rights|noai",
    re.IGNORECASE,
)
# Keys that are read, and those that begin as rules do (robots_parser.py).
_READ = re.compile(
    rb"(?:dis)?allow|dissallow|dissalow|disalow|diasllow|disallaw|user[- ]?agent|"
    rb"content-usage$|content-signal$|sitemap",
    re.IGNORECASE,
)
_TRAINING = re.compile(
    r"(?:^|[\s,;])(?:all|ai-all|ai-train(?:ing)?|train-ai|train)(?=$|[\s,;])", re.I
)
_FROM_ROBOTS = re.compile(r"robots\.txt, line \d+, ([^:]{1,60}):")
_ADDRESS = re.compile(r"(?<=RSL licence).*", re.DOTALL)
_FREE = ("", "free")


def usage_lines(lines: bytes) -> Iterator[Rule]:
    """The lines about the use of content that no parser here reads: number, key and value.

    lines   of a robots.txt (`read_lines`)
    """
    if _ABOUT_USE.search(lines) is None:
        return
    end = number = 0
    for match in _LINES.finditer(lines):
        key, value = match[2], match[3].strip()
        number += lines.count(b"\n", end, match.end())
        end = match.end()
        if value and _ABOUT_USE.search(key) and not _READ.match(key):
            yield number, key.decode("ascii", "replace").lower(), value


def terms_kind(terms: str) -> str:
    """Kind of the first of a document's unread terms: "license in robots.txt", "ai.txt in …"."""
    first = terms.partition(";")[0]
    line = _FROM_ROBOTS.match(first)
    return f"{line[1]} in robots.txt" if line else _ADDRESS.sub("", first)


def prohibits_training(key: str, value: bytes) -> bool:
    """Whether a Prohibits line of robots.txt prohibits ai-train."""
    return key == "prohibits" and _TRAINING.search(value.decode("utf-8", "replace")) is not None


def linked_licences(headers: Iterable[str]) -> Iterator[str]:
    """The addresses of RSL licences in Link headers."""
    for header in headers:
        for link in re.split(r",\s*(?=<)", header[: 16 * 1024]):
            if RSL_TYPE in link.lower():
                yield clean_field(link.partition("<")[2].partition(">")[0])


def rsl_refusal(text: str) -> str:
    """Reason why an RSL licence does not grant training to everyone free of charge; "" if it does.

    A licence grants it where its permissions name it or there are none, its prohibitions do not, it
    asks for no payment (also not attribution), user or place, and no licence server is named.
    """
    if len(text) > LONGEST_RSL or "<!" in text.replace("<!--", ""):
        return "cannot be read"
    try:
        root = ElementTree.fromstring(text.strip())
    except (ElementTree.ParseError, ValueError):
        return "cannot be read"
    reasons = []
    for content in _named(root, "content"):
        if server := content.get("server"):
            reasons.append(f"licence server {server}")
            continue
        for licence in _named(content, "license"):
            reason = _refuses(licence)
            if not reason:
                return ""
            reasons.append(reason)
    return clean_field(reasons[0])[:300] if reasons else "no licence in it"


def _refuses(licence: ElementTree.Element) -> str:
    for name in ("permits", "prohibits"):
        stated = {"usage": "", "user": "", "geo": ""}
        for element in _named(licence, name):
            kind = element.get("type", "usage").lower()
            stated[kind] = f"{stated.get(kind, '')} {element.text or ''}".strip()
        names_training = _TRAINING.search(stated["usage"]) is not None
        if stated["usage"] and names_training == (name == "prohibits"):
            return f"{name} {stated['usage']}"
        for kind in ("user", "geo"):
            if stated[kind]:
                return f"{name} {kind} {stated[kind]}"
    for payment in _named(licence, "payment"):
        kind = payment.get("type", "").lower()
        if kind not in _FREE or len(payment):
            return f"payment {kind}".strip()
    return ""


def _named(element: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """The elements of a name below an element, whatever their namespace."""
    return [below for below in element.iter() if below.tag.rpartition("}")[2] == name]
