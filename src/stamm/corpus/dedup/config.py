"""Configuration of deduplication. Light: the command line imports it."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class DedupConfig:
    """Near-duplicate detection: MinHash with bands over shingles of words.

    shingle_words   words in a shingle; in scripts without blanks, characters
    bands           two documents are compared when all hashes of one band agree: with Jaccard
                    similarity s this happens with probability 1 - (1 - s^band_hashes)^bands
    band_hashes     hashes in a band; a signature has bands * band_hashes of them
    threshold       estimated Jaccard similarity from which compared documents are near-duplicates
    neighbours      in a band that many documents share, each is compared with this many before
                    it, so that boilerplate of every page costs no more than other text
    """

    shingle_words: int = 5
    bands: int = 14
    band_hashes: int = 8
    threshold: float = 0.75
    neighbours: int = 8

    def __post_init__(self) -> None:
        validate(
            self,
            ("shingle_words", 1 <= self.shingle_words <= 100, "must lie in 1 to 100"),
            ("bands", 1 <= self.bands <= 1000, "must lie in 1 to 1000"),
            ("band_hashes", 2 <= self.band_hashes <= 100, "must lie in 2 to 100"),
            ("threshold", 0.0 < self.threshold <= 1.0, "must lie in (0, 1]"),
            ("neighbours", 1 <= self.neighbours <= 1000, "must lie in 1 to 1000"),
        )

    @property
    def hashes(self) -> int:
        """Values in a signature, each of 32 bits."""
        return self.bands * self.band_hashes
