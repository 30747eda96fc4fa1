"""What a head can be told: what it looks at, what it learns from, how its scores become thresholds.

Torch-free and light: the command line reads these classes to print a recipe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stamm.base.config import validate

CLASSIFIER_FILES = ("classifier.json", "weights.safetensors")
"""What a head is made of, in its folder."""
Pooling = Literal["maximum", "first", "mean"]
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """What of a text is counted: every run of `shortest` to `longest` characters, hashed.

    bucket_bits         2^bucket_bits buckets; a head is twice as many bytes
    window_characters   a longer text is seen through windows of this length that overlap by half.
                        Short windows find a sentence in a page (docs/log/2026-11-22-heads.md)
    """

    bucket_bits: int = 20
    shortest: int = 2
    longest: int = 5
    window_characters: int = 60

    def __post_init__(self) -> None:
        validate(
            self,
            ("bucket_bits", 8 <= self.bucket_bits <= 28, "must lie in 8 to 28"),
            ("shortest", self.shortest >= 1, "must be at least 1 character"),
            ("longest", self.longest >= self.shortest, f"is below shortest = {self.shortest}"),
            ("longest", self.longest <= 16, "must be at most 16 characters"),
            ("window_characters", 20 <= self.window_characters <= 8192, "must lie in 20 to 8,192"),
        )


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig:
    """A linear head on hashed n-grams: what it learns from, and what it is measured on.

    labelled         JSONL: text, label (0 or 1), language; group, source, functionality if known.
                     Texts of one group (a template, a book) stay on one side of the split
    clean            JSONL of documents that all count as label 0. Without them a toxicity head
                     learned from posts calls most books toxic
    unseen_labelled  measured only, as `labelled`
    unseen_clean     measured only: sources that no part of training has seen
    pooling          a document's score from its windows: maximum (toxicity), first or mean (quality)
    windows_per_text a longer text gives training this many windows, evenly spaced
    strength         cost of an error against the size of the weights
    heaviest         in each language label 1, label 0 and clean documents weigh the same; a window
                     weighs at most so many times the average
    test, calibrate  shares of the groups, set apart by hash
    fewest           texts of each label that a language needs for a calibration of its own, and
                     clean documents for a row of its own; below, all languages together serve
    tolerance        training ends when the objective is provably so close to its minimum, as a share
    """

    labelled: tuple[str, ...]
    clean: tuple[str, ...] = ()
    unseen_labelled: tuple[str, ...] = ()
    unseen_clean: tuple[str, ...] = ()
    features: FeatureConfig = field(default_factory=FeatureConfig)
    pooling: Pooling = "maximum"
    windows_per_text: int = 16
    strength: float = 1.0
    heaviest: float = 10.0
    test: float = 0.2
    calibrate: float = 0.1
    fewest: int = 100
    tolerance: float = 0.01
    most_passes: int = 100
    seed: int = 28

    def __post_init__(self) -> None:
        files = self.labelled + self.clean + self.unseen_labelled + self.unseen_clean
        validate(
            self,
            ("labelled", len(self.labelled) > 0, "is empty: name at least one file"),
            ("labelled", len(set(files)) == len(files), "and the other lists name a file twice"),
            ("windows_per_text", self.windows_per_text >= 1, "must be at least 1"),
            ("strength", 0.0 < self.strength <= 1e6, "must lie in (0, 1e6]"),
            ("heaviest", 1.0 <= self.heaviest <= 1e6, "must lie in 1 to 1e6"),
            ("test", 0.0 < self.test < 1.0, "must lie in (0, 1)"),
            ("calibrate", 0.0 < self.calibrate < 1.0, "must lie in (0, 1)"),
            ("calibrate", self.test + self.calibrate < 1.0, "and test leave nothing to train on"),
            ("fewest", self.fewest >= 10, "must be at least 10"),
            ("tolerance", 1e-6 <= self.tolerance < 1.0, "must lie in [1e-6, 1)"),
            ("most_passes", self.most_passes >= 1, "must be at least 1"),
            ("seed", 0 <= self.seed <= LARGEST_SEED, "must lie in [0, 2^63)"),
        )


@dataclass(frozen=True, kw_only=True)
class ThresholdConfig:
    """How many of the highest scores of a language are set apart.

    share    Apertus removed the most toxic 0.05, and kept the best 0.33 or 0.10 by quality
    fewest   documents that a language needs for a threshold; with fewer it has none, and nothing
             of it is set apart by score. The scores of other languages do not stand in: what is
             high in one language is not in another
    """

    share: float = 0.05
    fewest: int = 1000

    def __post_init__(self) -> None:
        validate(
            self,
            ("share", 0.0 <= self.share <= 1.0, "must lie in [0, 1]"),
            ("fewest", self.fewest >= 1, "must be at least 1"),
        )
