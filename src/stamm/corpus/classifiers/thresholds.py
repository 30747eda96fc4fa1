"""Score thresholds by language: at most a given share of the documents is above."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from stamm.base.errors import DataError
from stamm.corpus.classifiers.config import ThresholdConfig


@dataclass(frozen=True, kw_only=True)
class ScoreThreshold:
    """The threshold of one language.

    value       documents with a higher score are selected; None with too few documents
    documents   number of documents it was computed from
    above       number of them above the threshold
    """

    value: float | None
    documents: int
    above: int


def quantile_threshold(scores: ArrayLike, share: float) -> float:
    """The smallest of `scores` with at most floor(share * count) of them above.

    Documents with a score greater than the threshold are selected. Ties at the threshold are all
    below, so the share is never exceeded, whatever the order of the scores. `share` counts as the
    decimal it is written as: 0.29 of 100 is 29.

    Edge     a share of 1 gives minus infinity.
    Raises   DataError without scores, for a NaN score, or a share outside [0, 1].
    Checked  tests/unit/corpus/classifiers/test_classifier_thresholds.py
    """
    values = np.asarray(scores, dtype=np.float64).ravel()
    if not 0.0 <= share <= 1.0:
        raise DataError(f"a share of {share!r} is not in [0, 1]", fix="Give a share in [0, 1]")
    if values.size == 0:
        raise DataError("no scores: there is no threshold", fix="Score at least one document")
    if np.isnan(values).any():
        raise DataError(
            f"{int(np.isnan(values).sum())} of {values.size} scores are not numbers",
            fix="Leave out documents without a score",
        )
    above = int(Fraction(repr(float(share))) * values.size)
    if above == values.size:
        return float("-inf")
    place = values.size - 1 - above
    return float(np.partition(values, place)[place])


def language_thresholds(
    scores: Mapping[str, ArrayLike], config: ThresholdConfig
) -> dict[str, ScoreThreshold]:
    """A threshold for each language with enough documents, sorted by language."""
    found = {}
    for language in sorted(scores):
        values = np.asarray(scores[language], dtype=np.float64).ravel()
        value, above = None, 0
        if values.size >= config.min_documents:
            value = quantile_threshold(values, config.share)
            above = int((values > value).sum())
        found[language] = ScoreThreshold(value=value, documents=int(values.size), above=above)
    return found
