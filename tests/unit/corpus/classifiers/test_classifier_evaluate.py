"""Evaluation measures of classifiers, against counts by hand."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stamm.corpus.classifiers.evaluate import (
    ScoredTexts,
    auc,
    calibration_error,
    clean_table,
    clean_thresholds,
    functionality_table,
    language_table,
)
from stamm.corpus.classifiers.examples import LabelledText

PAIRS = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.sampled_from([0.0, 0.25, 0.5, 1.0])), max_size=30
)


def example(label: int, language: str = "deu_Latn", **more: object) -> LabelledText:
    fields = {"text": "", "group": "", "source": "posts", "functionality": "", "clean": False}
    return LabelledText(**{**fields, "label": label, "language": language, **more})  # type: ignore[arg-type]


@given(PAIRS)
def test_auc_counts_pairs(pairs: list[tuple[int, float]]) -> None:
    ones = [score for label, score in pairs if label]
    zeros = [score for label, score in pairs if not label]
    labels = np.array([label for label, _ in pairs], dtype=np.int8)
    found = auc(labels, np.array([score for _, score in pairs], dtype=np.float64))
    if not ones or not zeros:
        assert found is None
        return
    wins = sum((one > zero) + (one == zero) / 2 for one in ones for zero in zeros)
    assert found is not None
    assert math.isclose(found, wins / (len(ones) * len(zeros)))


def test_calibration_error_is_zero_for_right_scores_and_large_for_wrong_ones() -> None:
    # At even odds a third of label 1 and all of label 0 share the low score: 1/4 of it is label 1.
    labels = np.array([1, 1, 1, 0], dtype=np.int8)
    right = np.array([0.25, 0.999, 0.999, 0.25])
    error = calibration_error(labels, right)
    assert error is not None
    assert error < 0.001
    wrong = calibration_error(labels, 1 - labels.astype(np.float64))
    assert wrong is not None
    assert math.isclose(wrong, 1.0)
    assert calibration_error(np.ones(3, dtype=np.int8), right[:3]) is None


def test_tables() -> None:
    examples = [
        *[example(0, source="books", clean=True) for _ in range(100)],
        example(1, functionality="plain"),
        example(1, functionality="hidden"),
        example(0, "fra_Latn"),
        example(1, "fra_Latn"),
    ]
    scores = np.array([i / 200 for i in range(100)] + [0.9, 0.1, 0.2, 0.8])
    scored = ScoredTexts(examples=examples, scores=scores)
    clean = scored.only(e.clean for e in examples)
    cuts = clean_thresholds(clean, min_documents=100)
    # One of a hundred may lie above: the highest does.
    assert cuts == {"": 98 / 200, "deu_Latn": 98 / 200}
    assert clean_thresholds(clean, min_documents=101) == {"": 98 / 200}
    german, french = language_table(scored, cuts)
    assert (german["label_1"], german["label_0"], german["clean"]) == (2, 0, 100)
    assert (german["auc"], german["recall_at_clean"], german["cut_of"]) == (None, 0.5, "deu_Latn")
    assert (french["auc"], french["recall_at_clean"], french["label_0_above"]) == (1.0, 1.0, 0.0)
    assert french["cut_of"] == "all languages"
    hidden, plain = functionality_table(scored, cuts[""])
    assert (hidden["functionality"], hidden["above_half"], hidden["above_cut"]) == ("hidden", 0, 0)
    assert (plain["functionality"], plain["above_half"], plain["above_cut"]) == ("plain", 1, 1)
    (books,) = clean_table(clean, cuts)
    assert books == {"source": "books", "documents": 100, "above_half": 0.0, "above_cut": 0.01}


def test_without_data_measures_are_none() -> None:
    none = ScoredTexts(examples=[], scores=np.array([]))
    assert clean_thresholds(none, 10) == {}
    assert (
        language_table(none, {}) == functionality_table(none, None) == clean_table(none, {}) == []
    )
    (row,) = language_table(ScoredTexts(examples=[example(1)], scores=np.array([0.4])), {})
    assert row["cut"] is row["recall_at_clean"] is row["auc"] is None
