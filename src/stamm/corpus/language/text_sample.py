"""Word characters, and the bounded sample of a document for language identification."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_LAST_MARK: Final = 0x1E94A  # Adlam; beyond it are only variation selectors


def _marks() -> str:
    """A character class of all combining marks, which Python's `\\w` leaves out.

    Without them a Hindi or Tamil word is split at each vowel sign. The two joiners shape letters
    inside Persian and Indic words.
    """
    spans: list[list[int]] = []
    for point in range(0x300, _LAST_MARK + 1):
        if unicodedata.category(chr(point))[0] == "M":
            if spans and spans[-1][1] == point - 1:
                spans[-1][1] = point
            else:
                spans.append([point, point])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in spans) + "\u200c\u200d"


MARKS: Final = _marks()
_NO_PROSE = re.compile(
    r"[a-zA-Z][a-zA-Z0-9+.-]{1,15}://\S{1,500}|\S{1,64}@\S{1,255}|`[^`\n]{1,80}`"
)
_LETTERS = re.compile(rf"(?:[^\W\d_][{MARKS}]*)+")
_CHUNKS = 6


def evenly_spaced_sample(text: str, most: int) -> str:
    """At most `most` characters of `text`: all of it, or six pieces from start to end.

    The pieces are one per line, each cut back to whole words where it has blanks.
    """
    if len(text) <= most:
        return text
    size = most // _CHUNKS
    step = (len(text) - size) // (_CHUNKS - 1)
    pieces = [text[i * step : i * step + size] for i in range(_CHUNKS)]
    return "\n".join(_whole_words(piece) for piece in pieces)


def plain_letters(text: str) -> str:
    """The words of `text` in lower case, joined by blanks: no addresses, digits or punctuation."""
    text = unicodedata.normalize("NFC", _NO_PROSE.sub(" ", text))
    return " ".join(_LETTERS.findall(text.lower()))


def _whole_words(piece: str) -> str:
    first, last = piece.find(" "), piece.rfind(" ")
    return piece[first + 1 : last] if -1 < first < last else piece
