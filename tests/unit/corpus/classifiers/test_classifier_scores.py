"""Classifier scores: windows against plain Python, stored, damaged and hostile input."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stamm.base.errors import DataError
from stamm.corpus.classifiers.classifier import ANY, CalibrationCurve, TextClassifier, quantize
from stamm.corpus.classifiers.config import FeatureConfig, Pooling
from stamm.corpus.classifiers.features import blocks, hash_ngrams, windows

FEATURES = FeatureConfig(bucket_bits=12, window_characters=30)


def make(pooling: Pooling = "maximum", features: FeatureConfig = FEATURES) -> TextClassifier:
    random = np.random.default_rng(11)
    return TextClassifier(
        features=features,
        pooling=pooling,
        weights=random.integers(-32_767, 32_767, 2**features.bucket_bits).astype(np.int16),
        scale=1e-4,
        bias=0.125,
        curves={
            ANY: CalibrationCurve(slope=1.0, offset=0.0),
            "deu_Latn": CalibrationCurve(slope=2.0, offset=-0.5),
        },
    )


def plain_margin(head: TextClassifier, window: str) -> float:
    buckets = [b for length in hash_ngrams(window, head.features) for b in length.tolist()]
    if not buckets:
        return head.bias
    total = sum(int(head.weights[b]) for b in buckets)
    return head.scale * total / math.sqrt(len(buckets)) + head.bias


@given(st.text(st.characters(exclude_categories=()), max_size=200), st.integers(1, 3))
def test_running_sums_give_the_margin_of_every_window(text: str, times: int) -> None:
    head = make()
    found = [m for block in blocks(text * times) for m in head.window_margins(block).tolist()]
    assert found == [plain_margin(head, window) for window in windows(text * times, FEATURES)]


def test_pooling() -> None:
    text = "All human beings are born free and equal in dignity and rights. " * 200
    margins = [plain_margin(make(), window) for window in windows(text, FEATURES)]
    assert make("maximum").margin(text) == max(margins)
    assert make("first").margin(text) == margins[0]
    assert math.isclose(make("mean").margin(text), math.fsum(margins) / len(margins))


def test_a_language_has_its_own_curve() -> None:
    head, text = make(), "a text"
    margin = head.margin(text)
    assert head.score(text, "pol_Latn") == 1 / (1 + math.exp(-margin))
    assert math.isclose(head.score(text, "deu_Latn"), 1 / (1 + math.exp(-(2 * margin - 0.5))))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\ud800",
        "\0" * 10_000,
        "a" * 100_000,
        "e" + "\u0301" * 30_000,
        "\ufdfa" * 9000,  # one character that its normal form writes with eighteen
        "@" * 30_000,
        "https://" * 5000,
        "\u200b" * 20_000,
    ],
)
def test_hostile_text_has_a_score(text: str) -> None:
    assert 0.0 <= make().score(text, "und") <= 1.0


def test_a_word_is_found_at_any_position() -> None:
    features = FeatureConfig(bucket_bits=16, window_characters=30)
    weights = np.zeros(2**16, dtype=np.int16)
    for buckets in hash_ngrams(" kumquat ", features):
        weights[buckets] = 20_000
    head = make(features=features)
    marked = TextClassifier(
        features=features,
        pooling="maximum",
        weights=weights,
        scale=1e-4,
        bias=-3.0,
        curves=head.curves,
    )
    filler = "zzz yyy " * 3000
    lowest = min(
        marked.score(filler[:at] + " kumquat " + filler[at:], "") for at in range(0, 20_000, 997)
    )
    assert lowest > 10 * marked.score(filler, "")


def test_stored_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    head = make()
    head.store(tmp_path)
    loaded = TextClassifier.load(tmp_path)
    assert loaded.identity == head.identity
    assert (loaded.weights == head.weights).all()
    assert loaded.score("Ein Satz.", "deu_Latn") == head.score("Ein Satz.", "deu_Latn")
    again = pickle.loads(pickle.dumps(loaded))
    assert again.score("Ein Satz.", "deu_Latn") == head.score("Ein Satz.", "deu_Latn")


def test_whatever_decides_a_score_changes_the_identity() -> None:
    head = make()
    other = head.calibrated({**head.curves, "deu_Latn": CalibrationCurve(slope=2.0, offset=-0.25)})
    assert len({head.identity, other.identity, make("mean").identity}) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"weights_sha256": "0" * 64},
        {"pooling": "median"},
        {"scale": math.nan},
        {"bias": "high"},
        {"curves": {}},
        {"curves": {"": {"slope": 1}}},
        {"features": {"bucket_bits": 13}},
        {"features": {"bucket_bits": 60}},
        {"kind": "other"},
    ],
)
def test_a_damaged_description_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    make().store(tmp_path)
    path = tmp_path / "classifier.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match="not a usable classifier"):
        TextClassifier.load(tmp_path)


def test_damaged_or_missing_weights_are_refused(tmp_path: Path) -> None:
    make().store(tmp_path)
    path = tmp_path / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match="another hash"):
        TextClassifier.load(tmp_path)
    path.unlink()
    with pytest.raises(DataError):
        TextClassifier.load(tmp_path)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.7e-5, 1e8])
def test_quantized_weights_are_within_half_a_step(value: float) -> None:
    weights = np.array([value, value / 3, -value / 7, 0.0])
    numbers, scale = quantize(weights)
    assert np.abs(numbers * scale - weights).max() <= scale / 2 + abs(value) * 1e-12
    assert numbers.dtype == np.int16


def test_scoring_loads_neither_torch_nor_a_solver() -> None:
    code = (
        "import sys, stamm.corpus.classifiers.classifier; "
        "print([m for m in ('torch', 'scipy', 'sklearn', 'fasttext', 'transformers') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
