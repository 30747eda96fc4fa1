"""Splitting of a text into words in any script, fast enough for every document.

A word is a run of letters, combining marks, digits and underscores. Chinese, Japanese, Thai, Lao,
Khmer and Burmese put no blanks between words: there each letter with its marks counts as a word.
Tibetan divides syllables by a sign of its own, so its words are syllables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import numpy as np

from stamm.corpus.language.codes import script_of
from stamm.corpus.language.text_sample import MARKS

WITHOUT_BLANKS: Final = frozenset(("Hani", "Jpan", "Thai", "Laoo", "Khmr", "Mymr"))

# Kana, Han with its extensions, Thai, Lao, Burmese and Khmer. Hangul is written with blanks.
_NO_BLANKS: Final = (
    "\u0e01-\u0e30\u0e32\u0e33\u0e40-\u0e46\u0e81-\u0eb0\u0eb2\u0eb3\u0ebd-\u0ec6\u0edc-\u0edf"
    "\u1000-\u102a\u103f\u1050-\u1055\u105a-\u105d\u1061\u1065\u1066\u106e-\u1070\u1075-\u1081"
    "\u1780-\u17b3\u17dc\u3005-\u3007\u3021-\u3029\u3041-\u3096\u309d-\u309f\u30a1-\u30fa"
    "\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U000323af"
)
_WORD = re.compile(rf"\w[\w{MARKS}]*")
_LETTER_OR_WORD = re.compile(
    rf"[{_NO_BLANKS}][{MARKS}]*|[^\W{_NO_BLANKS}][{MARKS}]*(?:[^\W{_NO_BLANKS}][{MARKS}]*)*"
)
_IN_WORD = re.compile(rf"[\w{MARKS}]")
_MARK = re.compile(rf"[{MARKS}]")
_BLANKED = bytes(
    code if code >= 0x80 or chr(code).isalnum() or code == ord("_") else ord(" ")
    for code in range(256)
)
# Each non-ASCII sign costs a pass over the text; with more of them the pattern is faster.
_MOST_PASSES = 32


def count_characters(text: str) -> dict[str, int]:
    """Counts of the characters of `text`, in the order of their code points."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    counts = np.bincount(points) if len(points) else points
    present = np.flatnonzero(counts)
    return {
        chr(point): n for point, n in zip(present.tolist(), counts[present].tolist(), strict=True)
    }


def split_words(text: str, characters: Iterable[str]) -> list[str]:
    """The words of `text` in order, as written.

    characters   the distinct characters of the text, to choose the fastest method
    Edge         a mark without a letter before it belongs to no word. All methods are linear in the
                 text.
    Checked      tests/unit/corpus/quality/test_word_split.py
    """
    beyond = [c for c in characters if c > "\x7f"]
    if any(script_of(c) in WITHOUT_BLANKS for c in beyond):
        return _LETTER_OR_WORD.findall(text)
    signs = [c for c in beyond if not _IN_WORD.match(c)]
    if len(signs) > _MOST_PASSES or any(map(_MARK.match, beyond)):
        return _WORD.findall(text)
    for sign in signs:
        text = text.replace(sign, " ")
    # Replacing signs by blanks and splitting is six times as fast as a pattern.
    return text.encode("utf-8", "surrogatepass").translate(_BLANKED).decode("utf-8").split()
