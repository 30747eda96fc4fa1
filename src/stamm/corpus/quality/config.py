"""Configuration of the quality filter and of its fitting. Torch-free and light."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stamm.base.bounds import AtLeastOne, Natural, Share, at_least, not_empty, within
from stamm.base.config import Bounded, validate

SHIPPED_THRESHOLDS = "package:quality.json"


@dataclass(frozen=True, kw_only=True)
class QualityConfig(Bounded):
    """Bounds of the quality filter.

    thresholds  a file written by `quality.fit`, or the one shipped with stamm
    min_words   documents with fewer words are dropped; in scripts without blanks a word is one
                letter, and twice as many are required
    skip        names of rules that are not applied ("repeated_10")
    """

    thresholds: Annotated[str, not_empty("name a file")] = SHIPPED_THRESHOLDS
    min_words: Natural = 30
    skip: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QualityFitConfig:
    """Bounds for each language, fitted on clean texts.

    inputs       files of JSON lines with "text" and "language" (deu_Latn)
    tail         share of clean samples that one bound may cut off, before the slack
    slack        the share of its distance to the median by which a bound is moved outwards
    min_samples  languages with fewer samples share the bounds of their script
    max_samples  most samples of one language, chosen by hash
    piece        characters of the excerpt that is the second sample of a longer document
    stop_words   number of most frequent words that are stop words
    orders       most pairs of frequent words whose order is learned
    """

    inputs: Annotated[tuple[str, ...], not_empty("name at least one file")]
    tail: Annotated[float, within("[0, 0.5)")] = 0.002
    slack: Share = 0.25
    min_samples: Annotated[int, at_least(10)] = 60
    max_samples: AtLeastOne = 3000
    piece: Annotated[int, at_least(200, " characters")] = 2000
    stop_words: AtLeastOne = 200
    orders: Natural = 600

    def __post_init__(self) -> None:
        validate(
            self, ("max_samples", self.max_samples >= self.min_samples, "is below min_samples")
        )
