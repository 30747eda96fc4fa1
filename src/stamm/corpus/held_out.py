"""Which documents are kept from training: a pure function of seed and document, by language."""

from __future__ import annotations

import hashlib
from array import array

TRAIN, HELD_OUT, CONTROL = "train", "held_out", "control"
_BITS = 53


def draw(seed: int, document_id: str) -> float:
    """A number in [0, 1) that belongs to a document under a seed."""
    digest = hashlib.sha256(f"held out {seed} {document_id}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> (64 - _BITS)) / 2.0**_BITS


class HeldOut:
    """Splits documents once all have been seen.

    Of a language's n documents those with the max(1, round(share * n)) lowest draws are held out,
    but never all of them. 8 bytes per document are remembered.

    Edge     share 0 holds nothing out; a language with one document is never held out.
    Checked  tests/unit/corpus/test_split.py
    """

    def __init__(self, share: float, seed: int) -> None:
        self._share = share
        self._seed = seed
        self._draws: dict[str, array[float]] = {}
        self._borders: dict[str, float] = {}

    def see(self, document_id: str, language: str) -> None:
        """Take note of one document."""
        draws = self._draws.setdefault(language, array("d"))
        draws.append(draw(self._seed, document_id))
        self._borders.pop(language, None)

    def split(self, document_id: str, language: str) -> str:
        """The split of a document that was seen: "train" or "held_out"."""
        if language not in self._borders:
            self._borders[language] = self._border(self._draws[language])
        below = draw(self._seed, document_id) <= self._borders[language]
        return HELD_OUT if below else TRAIN

    def _border(self, draws: array[float]) -> float:
        if self._share == 0.0 or len(draws) < 2:
            return -1.0
        wanted = min(len(draws) - 1, max(1, round(self._share * len(draws))))
        return sorted(draws)[wanted - 1]
