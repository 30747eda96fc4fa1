"""Classifier training on constructed labels: words of two made-up lists in neutral sentences."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from stamm.base.errors import ConfigError, DataError
from stamm.corpus.classifiers.classifier import TextClassifier
from stamm.corpus.classifiers.config import ClassifierConfig, FeatureConfig
from stamm.corpus.classifiers.job import OUTPUTS, train
from stamm.runs.job import Workspace

MARKED = ("grumbling", "snarling", "howling", "growling")
PLAIN = ("whistling", "humming", "singing", "reading")
NAMES = ("the baker", "our neighbour", "a sailor", "the teacher", "my cousin", "the judge")
PLACES = ("in the yard", "by the river", "at the station", "on the hill", "near the mill")


def sentences() -> list[dict[str, Any]]:
    return [
        {
            "text": f"{name} was {word} {place} on {day}",
            "label": label,
            "language": "eng_Latn",
            "source": "constructed",
            "functionality": word,
        }
        for label, words in ((1, MARKED), (0, PLAIN))
        for word, name, place, day in itertools.product(words, NAMES, PLACES, ("monday", "friday"))
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("head")
    rows = sentences()
    (root / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:7:-1]))
    (root / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:8]))
    clean = [
        {
            "text": f"chapter {n}. " + "the road went on between the fields and the wood. " * n,
            "language": "eng_Latn",
            "source": "book",
            "group": f"book {n}",
        }
        for n in range(1, 60)
    ]
    (root / "clean.jsonl").write_text("".join(json.dumps(row) + "\n" for row in clean))
    return root


def config(folder: Path, *names: str, **changes: Any) -> ClassifierConfig:
    settings: dict[str, Any] = {
        "labelled": tuple(str(folder / name) for name in names),
        "clean": (str(folder / "clean.jsonl"),),
        "features": FeatureConfig(bucket_bits=14),
        "min_texts": 10,
    }
    return ClassifierConfig(**{**settings, **changes})


def hashes(folder: Path) -> list[str]:
    return [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in OUTPUTS]


def test_it_learns_and_reports(folder: Path, tmp_path: Path) -> None:
    train(config(folder, "a.jsonl"), Workspace(folder=tmp_path))
    report = json.loads((tmp_path / "report.json").read_text())
    (row,) = report["languages"]
    assert row["language"] == "eng_Latn"
    assert row["auc"] > 0.99
    assert row["recall_at_clean"] > 0.9
    assert row["calibration_error"] < 0.2
    assert {r["functionality"] for r in report["functionalities"]} == {*MARKED, *PLAIN}
    assert [r["source"] for r in report["clean"]] == ["book"]
    assert report["unseen_languages"] == report["unseen_clean"] == []
    assert report["fit"]["duality_gap"] <= 0.01
    total = sum(sum(part.values()) for part in report["parts"].values())
    assert total == len(sentences()) + 59
    head = TextClassifier.load(tmp_path)
    assert head.identity == report["identity"]
    assert head.score("a stranger was growling", "eng_Latn") > 0.5
    assert head.score("a stranger was reading", "eng_Latn") < 0.5


def test_same_examples_same_bytes_whatever_the_files(folder: Path, tmp_path: Path) -> None:
    outputs = []
    for place, names in (("one", ("b.jsonl", "c.jsonl")), ("two", ("b.jsonl", "c.jsonl"))):
        train(config(folder, *names), Workspace(folder=tmp_path / place))
        outputs.append(hashes(tmp_path / place))
    assert outputs[0] == outputs[1]
    train(config(folder, "a.jsonl"), Workspace(folder=tmp_path / "three"))
    # The report names its files; head and weights must not depend on them.
    assert hashes(tmp_path / "three")[:2] == outputs[0][:2]
    train(config(folder, "a.jsonl", seed=29), Workspace(folder=tmp_path / "four"))
    assert hashes(tmp_path / "four")[0] != outputs[0][0]


def test_labels_without_meaning_are_not_learned(folder: Path, tmp_path: Path) -> None:
    rows = sentences()
    for row in rows:
        digest = hashlib.sha256(row["text"].encode()).digest()
        row["label"], row["functionality"] = digest[0] % 2, ""
    path = tmp_path / "noise.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        train(config(folder, labelled=(str(path),), clean=()), Workspace(folder=tmp_path))
    except DataError as error:
        assert "do not rise" in str(error)
    else:
        (row,) = json.loads((tmp_path / "report.json").read_text())["languages"]
        assert 0.25 < row["auc"] < 0.75
        assert row["recall_at_clean"] is None


def test_a_missing_label_is_reported(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "ones.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in sentences() if r["label"]))
    with pytest.raises(DataError, match="no text of label 0"):
        train(config(folder, labelled=(str(path),), clean=()), Workspace(folder=tmp_path))
    assert not (tmp_path / "classifier.json").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"labelled": ()},
        {"labelled": ("a", "a")},
        {"labelled": ("a",), "clean": ("a",)},
        {"labelled": ("a",), "test": 0.6, "calibrate": 0.5},
        {"labelled": ("a",), "inverse_regularization": 0.0},
        {"labelled": ("a",), "tolerance": 0.0},
    ],
)
def test_what_cannot_be_is_refused_at_once(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ClassifierConfig(**changes)


@pytest.mark.parametrize("changes", [{"bucket_bits": 40}, {"min_ngram": 6}, {"max_ngram": 17}])
def test_features_that_cannot_be_are_refused_at_once(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        FeatureConfig(**changes)
