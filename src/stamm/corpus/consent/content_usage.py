"""Parser of Content-Usage, a structured field dictionary of usage preferences, and of Content-Signal.

Source   draft-ietf-aipref-attach-05, "HTTP Content-Usage Header Field"; draft-ietf-aipref-vocab,
         "Exemplary Serialization Format"; the dictionary is that of RFC 9651, 3.2 and 4.2.2 (the
         successor of RFC 8941). Content-Signal: Cloudflare, "Content Signals Policy", 2025-09-24,
         contentsignals.org; draft-romm-aipref-contentsignals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

# RFC 9651 requires support for 1,024 members; a longer field is ignored.
LONGEST_FIELD = 16 * 1024
_KEY = r"[a-z*][a-z0-9_.*-]*+"
_TOKEN = r"[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*+"
# The other bare items are not preferences; only their end matters. In order: decimal,
# integer or date, string, byte sequence, boolean, display string.
_OTHER_ITEM = (
    r"(?>-?[0-9]{1,12}\.[0-9]{1,3}(?![0-9])"
    r"|@?-?[0-9]{1,15}(?![0-9.])"
    r'|"(?:[ !#-\[\]-~]|\\["\\])*"'
    r"|:[A-Za-z0-9+/]*={0,2}:"
    r"|\?[01]"
    r'|%"(?:[ !#$&-~]|%[0-9a-f]{2})*")'
)
_PARAMETERS = rf"(?:; *+{_KEY}(?:=(?:{_TOKEN}|{_OTHER_ITEM}))?+)*+"
_INNER_LIST = rf"\( *+(?:(?:{_TOKEN}|{_OTHER_ITEM}){_PARAMETERS}(?=[ )]) *+)*+\)"
# A member of a dictionary with its token, and what follows it (RFC 9651, 4.2.2).
_MEMBER = re.compile(
    rf"({_KEY})(?:=(?:({_TOKEN})|{_OTHER_ITEM}|{_INNER_LIST}))?+{_PARAMETERS}"
    r"[ \t]*+(?:,[ \t]*+(?!\Z)|\Z)"
)
_DISPLAY_STRING = re.compile(r'%"[^"]*"')


_SIGNAL = re.compile(r"(?:^|[,;\s])ai-train\s*=\s*no(?=$|[,;\s])", re.IGNORECASE)

USAGE_LABELS = ("train-ai", "ai-use", "train-genai", "genai", "ai", "tdm", "bots")
"""The usage labels checked. Those after the first are of earlier drafts of draft-ietf-aipref-vocab and
include training; sites that still deny them are honoured."""
_AROUND_EQUALS = re.compile(r"[ \t]*=[ \t]*")


def signal_refuses(value: str) -> bool:
    """Whether a Content-Signal ("search=yes, ai-train=no") denies training."""
    return _SIGNAL.search(value[:LONGEST_FIELD]) is not None


def refused_use(values: Iterable[str], labels: tuple[str, ...]) -> str | None:
    """The first of `labels` that one of the field lines denies ("train-ai"), or None.

    Edge     a line that is not a dictionary, and a value other than the token n, are ignored. Blanks
             around "=" and capitals count, which the draft does not allow. The most restrictive of
             several values holds: a proxy may have joined two lines into one.
    Checked  tests/unit/corpus/consent/test_signals.py
    """
    denied = {
        key
        for value in values
        for key, token in _members(_AROUND_EQUALS.sub("=", value[: LONGEST_FIELD + 1].lower()))
        if token == "n"
    }
    return next((label for label in labels if label in denied), None)


def _members(value: str) -> list[tuple[str, str]]:
    """Key and token of each member of a dictionary; "" for a value that is not a token."""
    text, at = value.strip(" "), 0
    members = []
    while len(value) <= LONGEST_FIELD and at < len(text):
        member = _MEMBER.match(text, at)
        if member is None or not all(map(_is_utf8, _DISPLAY_STRING.findall(member[0]))):
            return []
        members.append((member[1], member[2] or ""))
        at = member.end()
    return members


def _is_utf8(display_string: str) -> bool:
    try:
        unquote(display_string, errors="strict")
    except UnicodeDecodeError:
        return False
    return True
