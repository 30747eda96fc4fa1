"""Configuration of text classifiers: features, training and evaluation data, thresholds.

Torch-free and light: the command line imports these classes to print a recipe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from stamm.base.bounds import AtLeastOne, Seed, Share, at_least, not_empty, within
from stamm.base.config import Bounded, validate

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

    bucket_bits: Annotated[int, within("[8, 28]")] = 20
    min_ngram: Annotated[int, at_least(1, " character")] = 2
    max_ngram: Annotated[int, within("[1, 16]", " characters")] = 5
    window_characters: Annotated[int, within("[20, 8192]")] = 60

    def __post_init__(self) -> None:
        validate(
            self,
            (
                "max_ngram",
                self.max_ngram >= self.min_ngram,
                f"is below min_ngram = {self.min_ngram}",
            ),
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

    labelled: Annotated[tuple[str, ...], not_empty("name at least one file")]
    clean: tuple[str, ...] = ()
    unseen_labelled: tuple[str, ...] = ()
    unseen_clean: tuple[str, ...] = ()
    features: FeatureConfig = field(default_factory=FeatureConfig)
    pooling: Pooling = "maximum"
    windows_per_text: AtLeastOne = 16
    inverse_regularization: Annotated[float, within("(0, 1e6]")] = 1.0
    max_weight: Annotated[float, within("[1, 1e6]")] = 10.0
    test: Annotated[float, within("(0, 1)")] = 0.2
    calibrate: Annotated[float, within("(0, 1)")] = 0.1
    min_texts: Annotated[int, at_least(10)] = 100
    tolerance: Annotated[float, within("[1e-6, 1)")] = 0.01
    max_passes: AtLeastOne = 100
    seed: Seed = 28

    def __post_init__(self) -> None:
        files = self.labelled + self.clean + self.unseen_labelled + self.unseen_clean
        validate(
            self,
            ("labelled", len(set(files)) == len(files), "and the other lists name a file twice"),
            ("calibrate", self.test + self.calibrate < 1.0, "and test leave nothing to train on"),
        )


@dataclass(frozen=True, kw_only=True)
class ThresholdConfig(Bounded):
    """Share of the highest scores of a language that is selected.

    share          Apertus removed the most toxic 0.05, and kept the best 0.33 or 0.10 by quality
    min_documents  documents that a language needs for a threshold; with fewer nothing of it is
                   selected. Thresholds of other languages are not used: scores are not comparable
                   between them
    """

    share: Share = 0.05
    min_documents: AtLeastOne = 1000
