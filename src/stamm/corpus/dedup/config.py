"""Configuration of deduplication. Light: the command line imports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stamm.base.bounds import PositiveShare, within
from stamm.base.config import Bounded


@dataclass(frozen=True, kw_only=True)
class DedupConfig(Bounded):
    """Near-duplicate detection: MinHash with bands over shingles of words.

    shingle_words   words in a shingle; in scripts without blanks, characters
    bands           two documents are compared when all hashes of one band agree: with Jaccard
                    similarity s this happens with probability 1 - (1 - s^band_hashes)^bands
    band_hashes     hashes in a band; a signature has bands * band_hashes of them
    threshold       estimated Jaccard similarity from which compared documents are near-duplicates
    neighbours      in a band that many documents share, each is compared with this many before
                    it, so that boilerplate of every page costs no more than other text
    """

    shingle_words: Annotated[int, within("[1, 100]")] = 5
    bands: Annotated[int, within("[1, 1000]")] = 14
    band_hashes: Annotated[int, within("[2, 100]")] = 8
    threshold: PositiveShare = 0.75
    neighbours: Annotated[int, within("[1, 1000]")] = 8

    @property
    def hashes(self) -> int:
        """Values in a signature, each of 32 bits."""
        return self.bands * self.band_hashes
