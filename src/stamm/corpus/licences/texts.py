"""Licence texts in a file, identified by comparison with the texts of the SPDX list."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib import resources

import zstandard

LONGEST_TEXT = 400_000  # characters; the longest licence shipped has 43,000
_GRAM_WORDS = 4
_REQUIRED_SHARE = 0.75  # share of a licence's n-grams that a text must contain
_FEWEST_UNMATCHED = 100  # words outside known licences; fewer are names, dates and headings
_MOST_FOUND = 12  # licences found in one text; the words of further ones count as unmatched
_COPYRIGHT = re.compile(
    r"^\W*(?:portions )?(?:copyright\s*(?:\(c\)|©|[12][0-9]{3}|<)|©|\(c\)\s*[12]).*$",
    re.IGNORECASE | re.MULTILINE,
)
# A disclaimer names its holder: the author, the copyright holders or contributors, ISC.
_HOLDER = re.compile(
    r"\b(?:the )?(?:isc|authors?|copyright (?:holders?|owners?)|contributors?)"
    r"(?: (?:or|and) (?:the )?(?:copyright (?:holders?|owners?)|contributors?))?\b"
)
_WORD = re.compile(r"[a-z0-9]+")
_SAME = str.maketrans({"’": "'", "‘": "'", "–": "-", "—": "-"})
Grams = Counter[tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class IdentifiedTexts:
    """The licences whose text a file contains, sorted, and the number of other words."""

    licences: tuple[str, ...]
    unmatched_words: int

    @property
    def has_more(self) -> bool:
        """Whether the other words may be terms of their own."""
        return self.unmatched_words >= _FEWEST_UNMATCHED


def identify_licences(text: str) -> IdentifiedTexts:
    """Identify the licences in a text, ignoring layout, case and copyright lines.

    Words are compared as 4-grams. The licence most similar to the text (Dice's coefficient), if
    three quarters of it occur, is found and its n-grams removed; then the rest is compared again.

    Edge     the text of GPL-3.0-or-later is that of GPL-3.0-only, which is returned;
             a text beyond 400,000 characters is not read, and all of it is unmatched.
    Checked  tests/unit/corpus/licences/test_repository.py
    """
    if len(text) > LONGEST_TEXT:
        return IdentifiedTexts(licences=(), unmatched_words=len(text) // 6)
    left = word_grams(text)
    found: list[str] = []
    for _ in range(_MOST_FOUND):
        best, name = 0.0, ""
        total = left.total()
        for candidate, own in _known().items():
            size = own.total()
            # At most the rest of the text can be shared.
            if total < _REQUIRED_SHARE * size:
                continue
            shared = (own & left).total() if own.keys() & left.keys() else 0
            similarity = 2 * shared / (size + total)
            if shared >= _REQUIRED_SHARE * size and similarity > best:
                best, name = similarity, candidate
        if not name:
            break
        found.append(name)
        left -= _known()[name]
    return IdentifiedTexts(licences=tuple(sorted(set(found))), unmatched_words=left.total())


def word_grams(text: str) -> Grams:
    """Counts of the word 4-grams of a text without copyright lines."""
    plain = _COPYRIGHT.sub(" ", text.translate(_SAME)).lower().replace("licence", "license")
    words = _WORD.findall(_HOLDER.sub("holder", plain))
    return Counter(zip(*(words[i:] for i in range(_GRAM_WORDS)), strict=False))


@cache
def _known() -> dict[str, Grams]:
    packed = resources.files("stamm.corpus.licences") / "texts.jsonl.zst"
    with zstandard.open(io.BytesIO(packed.read_bytes()), "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return {row["id"]: word_grams(row["text"]) for row in rows}
