"""Where to cut a list of scores so that a share of the documents, and never more, lies above."""

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
    """The cut of one language.

    value       a document is set apart when its score lies above; None: too few to make one
    documents   how many it was made from
    above       how many of them lie above
    """

    value: float | None
    documents: int
    above: int


def quantile_threshold(scores: ArrayLike, share: float) -> float:
    """The smallest of `scores` that at most floor(share * count) of them lie above.

    A document is set apart when its score is greater than the threshold. So ties at the threshold
    all stay together on the lower side, the share is never exceeded, and the order of the scores is
    of no consequence. `share` counts as the decimal it is written as: 0.29 of 100 is 29.

    Edge     a share of 1 gives minus infinity: all lie above.
    Raises   DataError for no scores, a score that is no number, or a share outside [0, 1].
    Checked  tests/unit/corpus/classifiers/test_head_thresholds.py
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
    """A threshold for each language with enough documents, in the order of the languages' names."""
    found = {}
    for language in sorted(scores):
        values = np.asarray(scores[language], dtype=np.float64).ravel()
        value, above = None, 0
        if values.size >= config.fewest:
            value = quantile_threshold(values, config.share)
            above = int((values > value).sum())
        found[language] = ScoreThreshold(value=value, documents=int(values.size), above=above)
    return found
