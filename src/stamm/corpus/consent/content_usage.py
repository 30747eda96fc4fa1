"""Parser of Content-Usage, a structured field dictionary of usage preferences, and of Content-Signal.

Source   draft-ietf-aipref-attach-05, "HTTP Content-Usage Header Field"; draft-ietf-aipref-vocab,
         "Exemplary Serialization Format"; the dictionary is that of RFC 9651, 3.2 and 4.2.2 (the
         successor of RFC 8941). Content-Signal: Cloudflare, "Content Signals Policy", 2025-09-24,
         contentsignals.org; draft-romm-aipref-contentsignals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

# RFC 9651 requires support for 1,024 members; a longer field is ignored.
LONGEST_FIELD = 16 * 1024
_KEY = re.compile(r"[a-z*][a-z0-9_.*-]*")
_BLANK = re.compile(r"[ \t]*")
_TOKEN = re.compile(r"[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*")
# The other bare items are not preferences; only their end matters. In order: decimal,
# integer or date, string, byte sequence, boolean, display string.
_OTHER_ITEM = re.compile(
    r"-?[0-9]{1,12}\.[0-9]{1,3}(?![0-9])"
    r"|@?-?[0-9]{1,15}(?![0-9.])"
    r'|"(?:[ !#-\[\]-~]|\\["\\])*"'
    r"|:[A-Za-z0-9+/]*={0,2}:"
    r"|\?[01]"
    r'|%"(?:[ !#$&-~]|%[0-9a-f]{2})*"'
)


_SIGNAL = re.compile(r"(?:^|[,;\s])ai-train\s*=\s*no(?=$|[,;\s])", re.IGNORECASE)

USAGE_LABELS = ("train-ai", "ai-use", "train-genai", "genai", "ai", "tdm", "bots")
"""The usage labels checked. Those after the first are of earlier drafts of draft-ietf-aipref-vocab and
include training; sites that still deny them are honoured."""
_AROUND_EQUALS = re.compile(r"[ \t]*=[ \t]*")


def signal_refuses(value: str) -> bool:
    """Whether a Content-Signal ("search=yes, ai-train=no") denies training."""
    return _SIGNAL.search(value[:LONGEST_FIELD]) is not None


class _NoDictionaryError(Exception):
    """The text is not a dictionary."""


def refused_use(values: Iterable[str], labels: tuple[str, ...]) -> str | None:
    """Return the first of `labels` that one of the field lines denies ("train-ai"), or None.

    values   the field's lines, each parsed by itself
    Edge     a line that is not a dictionary is ignored, and so is a value other than the token n.
             Blanks around "=" and capital letters, which the draft does not allow, are common: such an
             opt-out counts.
             Of several values of one label the most restrictive holds, also within a line, where
             the vocabulary takes the last: a proxy may have joined two lines into one.
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
    if len(value) > LONGEST_FIELD:
        return []
    try:
        return list(_Parser(value).members())
    except _NoDictionaryError:
        return []


class _Parser:
    """Reads a dictionary from left to right (RFC 9651, 4.2.2), each character once."""

    def __init__(self, text: str) -> None:
        self._text = text.strip(" ")
        self._at = 0

    def members(self) -> Iterator[tuple[str, str]]:
        while self._at < len(self._text):
            key = self._must(_KEY)
            token = self._member_value() if self._take("=") else ""
            self._parameters()
            yield key, token
            self._must(_BLANK)
            if self._at == len(self._text):
                return
            if not self._take(","):
                raise _NoDictionaryError
            self._must(_BLANK)
            if self._at == len(self._text):
                raise _NoDictionaryError

    def _member_value(self) -> str:
        if not self._take("("):
            return self._item()
        while True:
            while self._take(" "):
                pass
            if self._take(")"):
                return ""
            self._item()
            self._parameters()
            if self._text[self._at : self._at + 1] not in (" ", ")"):
                raise _NoDictionaryError

    def _item(self) -> str:
        token = _TOKEN.match(self._text, self._at)
        if token is None:
            other = self._must(_OTHER_ITEM)
            if other.startswith("%"):
                _must_be_utf8(other)
            return ""
        self._at = token.end()
        return token[0]

    def _parameters(self) -> None:
        while self._take(";"):
            while self._take(" "):
                pass
            self._must(_KEY)
            if self._take("="):
                self._item()

    def _take(self, character: str) -> bool:
        if not self._text.startswith(character, self._at):
            return False
        self._at += 1
        return True

    def _must(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise _NoDictionaryError
        self._at = found.end()
        return found[0]


def _must_be_utf8(display_string: str) -> None:
    try:
        unquote(display_string, errors="strict")
    except UnicodeDecodeError:
        raise _NoDictionaryError from None
