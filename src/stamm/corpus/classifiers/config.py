"""Configuration of text classifiers: features, training and evaluation data, thresholds.

Torch-free and light: the command line imports these classes to print a recipe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stamm.base.config import validate
from stamm.corpus.limits import LARGEST_SEED

CLASSIFIER_FILES = ("classifier.json", "weights.safetensors")
"""The files of a classifier, in its folder."""
Pooling = Literal["maximum", "first", "mean"]


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """Features: hashed character n-grams of `min_ngram` to `max_ngram` characters.

    bucket_bits        2^bucket_bits buckets; a classifier has twice as many bytes
    window_characters  length of the windows of a longer text, which overlap by half. Short windows
                       find a sentence in a page (docs/log/2026-11-22-heads.md)
    """

    bucket_bits: int = 20
    min_ngram: int = 2
    max_ngram: int = 5
    window_characters: int = 60

    def __post_init__(self) -> None:
        validate(
            self,
            ("bucket_bits", 8 <= self.bucket_bits <= 28, "must lie in 8 to 28"),
            ("min_ngram", self.min_ngram >= 1, "must be at least 1 character"),
            (
                "max_ngram",
                self.max_ngram >= self.min_ngram,
                f"is below min_ngram = {self.min_ngram}",
            ),
            ("max_ngram", self.max_ngram <= 16, "must be at most 16 characters"),
            ("window_characters", 20 <= self.window_characters <= 8192, "must lie in 20 to 8,192"),
        )


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig:
    """A linear classifier on hashed n-grams: its training and evaluation data.

    labelled         JSONL: text, label (0 or 1), language; group, source, functionality if known.
                     Texts of one group (a template, a book) stay on one side of the split
    clean            JSONL of documents that all count as label 0. Without them a toxicity
                     classifier trained on posts calls most books toxic
    unseen_labelled  for evaluation only, as `labelled`
    unseen_clean     for evaluation only: sources without any training text
    pooling          a document's score from its windows: maximum (toxicity), first or mean
                     (quality)
    windows_per_text training windows of a longer text, evenly spaced
    inverse_regularization  cost of an error relative to the L2 penalty of the weights
    max_weight       in each language label 1, label 0 and clean documents have equal weight; a
                     window weighs at most this many times the average
    test, calibrate  shares of the groups, held out by hash
    min_texts        texts of each label that a language needs for its own calibration, and clean
                     documents for its own row; below, those of all languages are used
    tolerance        training ends when the duality gap is below this share of the objective
    """

    labelled: tuple[str, ...]
    clean: tuple[str, ...] = ()
    unseen_labelled: tuple[str, ...] = ()
    unseen_clean: tuple[str, ...] = ()
    features: FeatureConfig = field(default_factory=FeatureConfig)
    pooling: Pooling = "maximum"
    windows_per_text: int = 16
    inverse_regularization: float = 1.0
    max_weight: float = 10.0
    test: float = 0.2
    calibrate: float = 0.1
    min_texts: int = 100
    tolerance: float = 0.01
    max_passes: int = 100
    seed: int = 28

    def __post_init__(self) -> None:
        files = self.labelled + self.clean + self.unseen_labelled + self.unseen_clean
        validate(
            self,
            ("labelled", len(self.labelled) > 0, "is empty: name at least one file"),
            ("labelled", len(set(files)) == len(files), "and the other lists name a file twice"),
            ("windows_per_text", self.windows_per_text >= 1, "must be at least 1"),
            (
                "inverse_regularization",
                0.0 < self.inverse_regularization <= 1e6,
                "must lie in (0, 1e6]",
            ),
            ("max_weight", 1.0 <= self.max_weight <= 1e6, "must lie in 1 to 1e6"),
            ("test", 0.0 < self.test < 1.0, "must lie in (0, 1)"),
            ("calibrate", 0.0 < self.calibrate < 1.0, "must lie in (0, 1)"),
            ("calibrate", self.test + self.calibrate < 1.0, "and test leave nothing to train on"),
            ("min_texts", self.min_texts >= 10, "must be at least 10"),
            ("tolerance", 1e-6 <= self.tolerance < 1.0, "must lie in [1e-6, 1)"),
            ("max_passes", self.max_passes >= 1, "must be at least 1"),
            ("seed", 0 <= self.seed <= LARGEST_SEED, "must lie in [0, 2^63)"),
        )


@dataclass(frozen=True, kw_only=True)
class ThresholdConfig:
    """Share of the highest scores of a language that is selected.

    share          Apertus removed the most toxic 0.05, and kept the best 0.33 or 0.10 by quality
    min_documents  documents that a language needs for a threshold; with fewer nothing of it is
                   selected. Thresholds of other languages are not used: scores are not comparable
                   between them
    """

    share: float = 0.05
    min_documents: int = 1000

    def __post_init__(self) -> None:
        validate(
            self,
            ("share", 0.0 <= self.share <= 1.0, "must lie in [0, 1]"),
            ("min_documents", self.min_documents >= 1, "must be at least 1"),
        )
