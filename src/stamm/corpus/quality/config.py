"""Configuration of the quality filter and of its fitting. Torch-free and light."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.base.config import validate

SHIPPED_THRESHOLDS = "package:quality.json"


@dataclass(frozen=True, kw_only=True)
class QualityConfig:
    """Bounds of the quality filter.

    thresholds  a file written by `quality.fit`, or the one shipped with stamm
    min_words   documents with fewer words are dropped; in scripts without blanks a word is one
                letter, and twice as many are required
    skip        names of rules that are not applied ("repeated_10")
    """

    thresholds: str = SHIPPED_THRESHOLDS
    min_words: int = 30
    skip: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        validate(
            self,
            ("thresholds", bool(self.thresholds.strip()), "is empty: name a file"),
            ("min_words", self.min_words >= 0, "must not be negative"),
        )


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

    inputs: tuple[str, ...]
    tail: float = 0.002
    slack: float = 0.25
    min_samples: int = 60
    max_samples: int = 3000
    piece: int = 2000
    stop_words: int = 200
    orders: int = 600

    def __post_init__(self) -> None:
        validate(
            self,
            ("inputs", len(self.inputs) > 0, "is empty: name at least one file"),
            ("tail", 0.0 <= self.tail < 0.5, "must lie in [0, 0.5)"),
            ("slack", 0.0 <= self.slack <= 1.0, "must lie in [0, 1]"),
            ("min_samples", self.min_samples >= 10, "must be at least 10"),
            (
                "max_samples",
                self.max_samples >= self.min_samples,
                "is below min_samples",
            ),
            ("piece", self.piece >= 200, "must be at least 200 characters"),
            ("stop_words", self.stop_words >= 1, "must be at least 1"),
            ("orders", self.orders >= 0, "must not be negative"),
        )
