"""Classifier training job: logistic regression on labelled texts and clean documents, and its evaluation.

Reads    the files that the configuration names
Outputs  weights.safetensors, classifier.json, report.json
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stamm.base.config import to_plain
from stamm.base.console import Progress
from stamm.base.errors import DataError
from stamm.base.files import write_json
from stamm.corpus.classifiers.classifier import (
    ANY,
    DESCRIPTION,
    WEIGHTS,
    CalibrationCurve,
    TextClassifier,
    fit_calibration,
    quantize,
)
from stamm.corpus.classifiers.config import ClassifierConfig, FeatureConfig
from stamm.corpus.classifiers.evaluate import (
    CLEAN_SHARE,
    ScoredTexts,
    clean_table,
    clean_thresholds,
    functionality_table,
    language_table,
)
from stamm.corpus.classifiers.examples import (
    LabelledText,
    SplitName,
    balanced_weights,
    read_examples,
    split_of,
)
from stamm.corpus.classifiers.features import hash_ngrams, windows
from stamm.corpus.shuffle import permutation
from stamm.runs.job import Workspace

Vector = NDArray[np.float64]
_NEWTON_STEPS = 30


@dataclass(frozen=True, kw_only=True)
class SparseRows:
    """Rows of a sparse matrix (CSR): row i has columns[starts[i]:starts[i + 1]]."""

    starts: NDArray[np.int64]
    columns: NDArray[np.int32]
    values: NDArray[np.float32]
    width: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.starts.size - 1


@dataclass(frozen=True, kw_only=True)
class LogisticFit:
    """A solution.

    weights   [width]
    bias      weight of a feature that every row has with value 1
    passes    over all rows
    gap       upper bound of (objective - minimum) / objective
    """

    weights: Vector
    bias: float
    passes: int
    gap: float


def fit_logistic(
    rows: SparseRows,
    signs: NDArray[np.int8],
    costs: Vector,
    *,
    tolerance: float,
    max_passes: int,
    seed: int,
) -> LogisticFit:
    """Minimize  |w|^2 / 2 + sum_i costs[i] log(1 + exp(-signs[i] (w . x_i + bias))).

    The bias counts as one more weight. Stops when the duality gap is below `tolerance` of the
    objective, or after `max_passes`.

    Shapes   signs [rows], +1 or -1; costs [rows], positive.
    Source   Yu, Huang and Lin 2011, "Dual coordinate descent methods for logistic regression and
             maximum entropy models", Machine Learning 85; the one-dimensional problem is solved here
             in the logit of the dual variable, where Newton's method cannot leave its bracket.
    Checked  tests/unit/corpus/classifiers/test_classifier_logistic.py: against a dense solver, and the gap at optimum.
    """
    weights = np.zeros(rows.width + 1, dtype=np.float64)
    dual = np.zeros(rows.rows, dtype=np.float64)
    # The dual variable starts at a small share of its bound: at zero the slope of its entropy is
    # infinite.
    dual += 1e-3 * costs
    squares = np.ones(rows.rows, dtype=np.float64)
    for i in range(rows.rows):
        columns, values = _row(rows, i)
        squares[i] += float((values * values).sum())
        step = float(dual[i]) * int(signs[i])
        weights[columns] += step * values
        weights[-1] += step
    gap, passes = math.inf, 0
    while passes < max_passes and gap > tolerance:
        for i in permutation(rows.rows, seed + passes):
            columns, values = _row(rows, int(i))
            sign = int(signs[i])
            margin = float((weights[columns] * values).sum() + weights[-1])
            old = float(dual[i])
            new = _best(float(costs[i]), float(squares[i]), sign * margin, old)
            dual[i] = new
            step = (new - old) * sign
            weights[columns] += step * values
            weights[-1] += step
        passes += 1
        gap = _gap(rows, signs, costs, weights, dual)
    return LogisticFit(weights=weights[:-1], bias=float(weights[-1]), passes=passes, gap=gap)


def margins(rows: SparseRows, weights: Vector, bias: float) -> Vector:
    """w . x + bias of every row."""
    row_margins = np.empty(rows.rows, dtype=np.float64)
    for i in range(rows.rows):
        columns, values = _row(rows, i)
        row_margins[i] = (weights[columns] * values).sum() + bias
    return row_margins


def _row(rows: SparseRows, i: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    part = slice(int(rows.starts[i]), int(rows.starts[i + 1]))
    return rows.columns[part], rows.values[part]


def _best(cost: float, square: float, signed: float, old: float) -> float:
    """The dual variable a in (0, cost) that maximizes the dual along this coordinate.

    Where its slope is zero:  log(a / (cost - a)) + signed + square (a - old) = 0; with
    a = cost sigmoid(t) the left side rises with t at a slope of at least 1.
    """
    low, high = -signed - square * (cost - old), -signed + square * old
    t = min(max(math.log(old / (cost - old)) if 0 < old < cost else 0.0, low), high)
    for _ in range(_NEWTON_STEPS):
        share = _sigmoid(t)
        value = t + signed + square * (cost * share - old)
        if abs(value) < 1e-9:
            break
        if value > 0:
            high = t
        else:
            low = t
        t -= value / (1.0 + square * cost * share * (1.0 - share))
        if not low <= t <= high:
            t = (low + high) / 2
    return cost * _sigmoid(t)


def _sigmoid(t: float) -> float:
    return 1.0 / (1.0 + math.exp(-t)) if t >= 0 else math.exp(t) / (1.0 + math.exp(t))


def _gap(
    rows: SparseRows, signs: NDArray[np.int8], costs: Vector, weights: Vector, dual: Vector
) -> float:
    signed = signs * margins(rows, weights[:-1], float(weights[-1]))
    norm = float((weights * weights).sum()) / 2
    primal = norm + float((costs * np.logaddexp(0.0, -signed)).sum())
    share = np.clip(dual / costs, 1e-300, 1.0)
    rest = np.clip(1.0 - share, 1e-300, 1.0)
    entropy = -float((costs * (share * np.log(share) + rest * np.log(rest))).sum())
    return (primal - (entropy - norm)) / primal


SCHEMA = 1
REPORT = "report.json"
OUTPUTS = (WEIGHTS, DESCRIPTION, REPORT)


def train(config: ClassifierConfig, workspace: Workspace) -> None:
    """Write weights.safetensors, classifier.json and report.json.

    The same examples and configuration give the same bytes, whatever the files and their order.
    Raises   DataError for an invalid line, or a part of the split without one of the labels.
    Checked  tests/unit/corpus/classifiers/test_classifier_job.py
    """
    examples = _read(config.labelled, labelled=True) + _read(config.clean, labelled=False)
    parts: dict[SplitName, list[LabelledText]] = {"train": [], "calibrate": [], "test": []}
    for example in examples:
        parts[split_of(example.group, config.seed, config.test, config.calibrate)].append(example)
    for name, members in parts.items():
        _require_both(name, members)
    fit = _fit(config, parts["train"], workspace.progress)
    weights, scale = quantize(fit.weights)
    bare = TextClassifier(
        features=config.features,
        pooling=config.pooling,
        weights=weights,
        scale=scale,
        bias=fit.bias,
        curves={ANY: CalibrationCurve(slope=1.0, offset=0.0)},
    )
    classifier = bare.calibrated(_curves(bare, parts["calibrate"], config.min_texts))
    measured = {
        "test": parts["test"],
        "unseen_labelled": _read(config.unseen_labelled, labelled=True),
        "unseen_clean": _read(config.unseen_clean, labelled=False),
    }
    report = {
        "schema": SCHEMA,
        "identity": classifier.identity,
        "config": to_plain(config),
        "parts": {name: _counts(members) for name, members in parts.items()},
        "fit": {"passes": fit.passes, "duality_gap": fit.gap},
        **_tables(config, classifier, measured, workspace.progress),
    }
    classifier.store(workspace.folder)
    write_json(workspace.folder / REPORT, report)


def _read(names: Sequence[str], *, labelled: bool) -> list[LabelledText]:
    return read_examples([Path(name) for name in names], labelled=labelled)


def _require_both(name: str, examples: Sequence[LabelledText]) -> None:
    for label in (0, 1):
        if not any(example.label == label for example in examples):
            raise DataError(
                f"the {name} split has no text of label {label} among {len(examples)}",
                fix="Add labelled texts, or change the shares of the split or the seed",
            )


def _fit(
    config: ClassifierConfig, examples: Sequence[LabelledText], progress: Progress
) -> LogisticFit:
    seen = [
        (example, window)
        for example in examples
        for window in _training_windows(example.text, config)
    ]
    rows = feature_rows([window for _, window in seen], config.features)
    owners = [example for example, _ in seen]
    signs = np.array([1 if owner.label else -1 for owner in owners], dtype=np.int8)
    costs = config.inverse_regularization * np.array(
        balanced_weights(owners, config.max_weight), dtype=np.float64
    )
    progress.begin("classifier", 1, "fits")
    fit = fit_logistic(
        rows,
        signs,
        costs,
        tolerance=config.tolerance,
        max_passes=config.max_passes,
        seed=config.seed,
    )
    progress.end(f"{rows.rows} windows, {fit.passes} passes, duality gap {fit.gap:.4f}")
    return fit


def _training_windows(text: str, config: ClassifierConfig) -> list[str]:
    """The training windows of a text: those that pooling uses, evenly spaced."""
    if config.pooling == "first":
        return [next(windows(text, config.features))]
    every = list(windows(text, config.features))
    num_windows = min(len(every), config.windows_per_text)
    return [every[index * len(every) // num_windows] for index in range(num_windows)]


def feature_rows(normalized: Sequence[str], features: FeatureConfig) -> SparseRows:
    """The feature rows of windows: bucket counts over the root of the number of n-grams."""
    starts, columns, values = [0], [], []
    for window in normalized:
        ngram_buckets = np.concatenate(hash_ngrams(window, features))
        buckets, counts = np.unique(ngram_buckets, return_counts=True)
        columns.append(buckets.astype(np.int32))
        values.append((counts / np.sqrt(max(1, ngram_buckets.size))).astype(np.float32))
        starts.append(starts[-1] + buckets.size)
    return SparseRows(
        starts=np.array(starts, dtype=np.int64),
        columns=np.concatenate(columns),
        values=np.concatenate(values),
        width=2**features.bucket_bits,
    )


def _curves(
    bare: TextClassifier, examples: Sequence[LabelledText], min_texts: int
) -> dict[str, CalibrationCurve]:
    """A calibration for all languages together, and one for each with enough texts of both labels."""
    margins = np.array([bare.margin(example.text) for example in examples])
    labels = np.array([example.label for example in examples], dtype=np.int8)
    languages = np.array([example.language for example in examples])
    overall = fit_calibration(margins, labels)
    if overall is None:
        raise DataError(
            "scores do not rise with the label on the calibration texts",
            fix="Check the labels; more or cleaner texts are needed",
        )
    curves = {ANY: overall}
    for language in sorted(set(languages.tolist())):
        is_language = languages == language
        counts = [int((labels[is_language] == label).sum()) for label in (0, 1)]
        curve = (
            fit_calibration(margins[is_language], labels[is_language])
            if min(counts) >= min_texts
            else None
        )
        if curve is not None:
            curves[language] = curve
    return curves


def _counts(examples: Sequence[LabelledText]) -> dict[str, int]:
    return {
        "label_1": sum(e.label for e in examples),
        "label_0": sum(not e.label and not e.clean for e in examples),
        "clean": sum(e.clean for e in examples),
    }


def _tables(
    config: ClassifierConfig,
    classifier: TextClassifier,
    groups: Mapping[str, Sequence[LabelledText]],
    progress: Progress,
) -> dict[str, Any]:
    """Evaluation tables, on the test split and on sources without training texts."""
    progress.begin("scores", sum(len(examples) for examples in groups.values()), "texts")
    num_done, scored = 0, {}
    for name, examples in groups.items():
        scores = [classifier.score(example.text, example.language) for example in examples]
        scored[name] = ScoredTexts(examples=examples, scores=np.array(scores, dtype=np.float64))
        num_done += len(examples)
        progress.advance(num_done, name)
    progress.end(f"{num_done} texts scored")
    test, unseen = scored["test"], scored["unseen_labelled"]
    clean = test.only(example.clean for example in test.examples)
    cuts = clean_thresholds(clean, config.min_texts)
    return {
        "clean_share": CLEAN_SHARE,
        "languages": language_table(test, cuts),
        "functionalities": functionality_table(test, cuts.get("")),
        "clean": clean_table(clean, cuts),
        "unseen_languages": language_table(unseen, cuts),
        "unseen_functionalities": functionality_table(unseen, cuts.get("")),
        "unseen_clean": clean_table(scored["unseen_clean"], cuts),
    }
