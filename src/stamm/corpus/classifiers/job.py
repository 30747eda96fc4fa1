"""Classifier training job: trains on labelled texts and clean documents, and evaluates.

Reads    the files that the configuration names
Outputs  weights.safetensors, classifier.json, report.json
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stamm.base.config import to_plain
from stamm.base.console import Progress
from stamm.base.errors import DataError
from stamm.base.files import write_json
from stamm.corpus.classifiers.calibration import CalibrationCurve, fit_calibration
from stamm.corpus.classifiers.classifier import ANY, DESCRIPTION, WEIGHTS, TextClassifier, quantize
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
from stamm.corpus.classifiers.logistic import LogisticFit, SparseRows, fit_logistic
from stamm.runs.job import Workspace

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
    taken = min(len(every), config.windows_per_text)
    return [every[place * len(every) // taken] for place in range(taken)]


def feature_rows(normalized: Sequence[str], features: FeatureConfig) -> SparseRows:
    """The feature rows of windows: bucket counts over the root of the number of n-grams."""
    starts, columns, values = [0], [], []
    for window in normalized:
        found = np.concatenate(hash_ngrams(window, features))
        buckets, counts = np.unique(found, return_counts=True)
        columns.append(buckets.astype(np.int32))
        values.append((counts / np.sqrt(max(1, found.size))).astype(np.float32))
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
        here = languages == language
        counts = [int((labels[here] == label).sum()) for label in (0, 1)]
        curve = fit_calibration(margins[here], labels[here]) if min(counts) >= min_texts else None
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
    done, scored = 0, {}
    for name, examples in groups.items():
        scores = [classifier.score(example.text, example.language) for example in examples]
        scored[name] = ScoredTexts(examples=examples, scores=np.array(scores, dtype=np.float64))
        done += len(examples)
        progress.advance(done, name)
    progress.end(f"{done} texts scored")
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
