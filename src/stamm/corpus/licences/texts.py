"""Which licences a text holds, by comparison with the licences' own words."""

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
_WORDS_TOGETHER = 4
_HELD = 0.75  # share of a licence's words, in order, that a text must hold
_FEWEST_STRANGE = 100  # words that no licence explains; fewer are names, dates and headings
_MOST_FOUND = 12  # licences told apart in one text; the words of further ones count as strange
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
    """The licences whose text a file holds, sorted, and the words that none of them explains."""

    licences: tuple[str, ...]
    strange_words: int

    @property
    def has_more(self) -> bool:
        """Whether so much is left that it may be terms of its own."""
        return self.strange_words >= _FEWEST_STRANGE


def identify(text: str) -> IdentifiedTexts:
    """The licences that a text holds word by word, layout, case and copyright lines aside.

    Words are compared in runs of four. The licence that resembles the text most (Dice's
    coefficient), if three quarters of it is there, explains its runs; then the rest is compared again.

    Edge     the words of GPL-3.0-or-later are those of GPL-3.0-only, which is what is said;
             beyond 400,000 characters a text is not read, and all of it is strange.
    Checked  tests/unit/corpus/licences/test_repository.py
    """
    if len(text) > LONGEST_TEXT:
        return IdentifiedTexts(licences=(), strange_words=len(text) // 6)
    left = grams(text)
    found: list[str] = []
    for _ in range(_MOST_FOUND):
        best, name = 0.0, ""
        total = left.total()
        for candidate, own in _known().items():
            size = own.total()
            # No more can be shared than the text has left.
            if total < _HELD * size:
                continue
            shared = (own & left).total() if own.keys() & left.keys() else 0
            alike = 2 * shared / (size + total)
            if shared >= _HELD * size and alike > best:
                best, name = alike, candidate
        if not name:
            break
        found.append(name)
        left -= _known()[name]
    return IdentifiedTexts(licences=tuple(sorted(set(found))), strange_words=left.total())


def grams(text: str) -> Grams:
    """How often each run of four words stands in a text, copyright lines left out."""
    plain = _COPYRIGHT.sub(" ", text.translate(_SAME)).lower().replace("licence", "license")
    words = _WORD.findall(_HOLDER.sub("holder", plain))
    return Counter(zip(*(words[i:] for i in range(_WORDS_TOGETHER)), strict=False))


@cache
def _known() -> dict[str, Grams]:
    packed = resources.files("stamm.corpus.licences") / "texts.jsonl.zst"
    with zstandard.open(io.BytesIO(packed.read_bytes()), "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return {row["id"]: grams(row["text"]) for row in rows}
