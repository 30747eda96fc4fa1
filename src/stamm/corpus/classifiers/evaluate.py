"""Evaluation of classifier scores: AUC, recall at a bound on clean text, calibration error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stamm.base.errors import DataError
from stamm.corpus.classifiers.examples import LabelledText


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
    index = values.size - 1 - above
    return float(np.partition(values, index)[index])


Scores = NDArray[np.float64]
Labels = NDArray[np.int8]
CLEAN_SHARE = 0.01  # of clean documents are above the threshold of the reported recall
_BINS = 10


@dataclass(frozen=True, kw_only=True)
class ScoredTexts:
    """Examples with their scores, in one order."""

    examples: Sequence[LabelledText]
    scores: Scores

    def only(self, keep: Iterable[bool]) -> ScoredTexts:
        """The part for which `keep` holds."""
        chosen = [index for index, holds in enumerate(keep) if holds]
        return ScoredTexts(
            examples=[self.examples[index] for index in chosen],
            scores=self.scores[np.array(chosen, dtype=np.int64)],
        )

    @property
    def labels(self) -> Labels:
        """Labels of the examples, in the same order."""
        return np.array([example.label for example in self.examples], dtype=np.int8)


def auc(labels: Labels, scores: Scores) -> float | None:
    """Share of pairs (label 1, label 0) in which label 1 has the higher score; ties count half.

    Edge   None when a label is missing.
    """
    ones, zeros = scores[labels == 1], np.sort(scores[labels == 0])
    if ones.size == 0 or zeros.size == 0:
        return None
    below = np.searchsorted(zeros, ones, side="left")
    ties = np.searchsorted(zeros, ones, side="right") - below
    wins = 2 * int(below.sum()) + int(ties.sum())
    return float(wins / (2 * ones.size * zeros.size))


def calibration_error(labels: Labels, scores: Scores) -> float | None:
    """Mean distance between score and share of label 1 in ten equal bins, at even odds.

    Both labels have equal weight, as in the calibration, so the share of label 1 in a set does not
    count as an error.
    Edge   None when a label is missing.
    """
    ones, zeros = int((labels == 1).sum()), int((labels == 0).sum())
    if ones == 0 or zeros == 0:
        return None
    weights = np.where(labels == 1, 0.5 / ones, 0.5 / zeros)
    bins = np.minimum((scores * _BINS).astype(np.int64), _BINS - 1)
    error = 0.0
    for bin_number in range(_BINS):
        inside = bins == bin_number
        if inside.any():
            error += abs(float((weights[inside] * (scores[inside] - labels[inside])).sum()))
    return error


def language_table(scored: ScoredTexts, cuts: Mapping[str, float]) -> list[dict[str, Any]]:
    """A row for each language with labelled texts: AUC, recall above the cut, calibration error.

    AUC, recall and label_0_above are over labelled texts alone: clean documents differ in style.
    The calibration error is over both, as the calibration is.

    cuts   language -> the threshold that CLEAN_SHARE of clean documents exceed; "" for the others
    """
    rows = []
    labelled = scored.only(not example.clean for example in scored.examples)
    for language in _names(labelled, "language"):
        part = labelled.only(e.language == language for e in labelled.examples)
        of_language = scored.only(e.language == language for e in scored.examples)
        labels, cut = part.labels, cuts.get(language, cuts.get(""))
        above = None if cut is None else part.scores > cut
        rows.append(
            {
                "language": language,
                "label_1": int((labels == 1).sum()),
                "label_0": int((labels == 0).sum()),
                "clean": len(of_language.examples) - len(part.examples),
                "auc": _short(auc(labels, part.scores)),
                "recall_at_clean": None if above is None else _share(above[labels == 1]),
                "label_0_above": None if above is None else _share(above[labels == 0]),
                "calibration_error": _short(
                    calibration_error(of_language.labels, of_language.scores)
                ),
                "cut": cut,
                "cut_of": language if language in cuts else "all languages",
            }
        )
    return rows


def functionality_table(scored: ScoredTexts, cut: float | None) -> list[dict[str, Any]]:
    """A row for each functionality: cases, label, share above 0.5 and above the cut."""
    part = scored.only(bool(e.functionality) for e in scored.examples)
    rows = []
    for name in _names(part, "functionality"):
        cases = part.only(e.functionality == name for e in part.examples)
        rows.append(
            {
                "functionality": name,
                "cases": len(cases.examples),
                "label_1": _share(cases.labels == 1),
                "above_half": _share(cases.scores > 0.5),
                "above_cut": None if cut is None else _share(cases.scores > cut),
            }
        )
    return rows


def clean_table(scored: ScoredTexts, cuts: Mapping[str, float]) -> list[dict[str, Any]]:
    """A row for each source of clean documents: shares above 0.5 and above the cut."""
    rows = []
    for source in _names(scored, "source"):
        part = scored.only(e.source == source for e in scored.examples)
        over = [
            float(score) > cut
            for example, score in zip(part.examples, part.scores, strict=True)
            if (cut := cuts.get(example.language, cuts.get(""))) is not None
        ]
        rows.append(
            {
                "source": source,
                "documents": len(part.examples),
                "above_half": _share(part.scores > 0.5),
                "above_cut": _share(np.array(over, dtype=bool)) if over else None,
            }
        )
    return rows


def clean_thresholds(clean: ScoredTexts, min_documents: int) -> dict[str, float]:
    """The score that CLEAN_SHARE of clean documents exceed, for each language with enough of them.

    "" is the cut over all languages together, for the others; empty without clean documents.
    """
    if not clean.examples:
        return {}
    cuts = {"": quantile_threshold(clean.scores, CLEAN_SHARE)}
    for language in _names(clean, "language"):
        scores = clean.only(e.language == language for e in clean.examples).scores
        if scores.size >= min_documents:
            cuts[language] = quantile_threshold(scores, CLEAN_SHARE)
    return cuts


def _names(scored: ScoredTexts, field: str) -> list[str]:
    return sorted({getattr(example, field) for example in scored.examples})


def _share(holds: NDArray[np.bool_]) -> float | None:
    return _short(float(holds.sum()) / holds.size) if holds.size else None


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
