"""A linear text classifier on hashed n-grams, with the same score for a text on every machine.

The weights are integers, so a sum does not depend on its order; one division, one root and one
exponential follow. Needs numpy and safetensors only, and two bytes a bucket.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from stamm.base.config import from_plain, to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json, sha256_bytes, sha256_value, write_bytes, write_json
from stamm.corpus.classifiers.config import FeatureConfig, Pooling
from stamm.corpus.classifiers.features import blocks, hash_ngrams, padded_block, window_starts

Vector = NDArray[np.float64]
_STEPS = 100


@dataclass(frozen=True, kw_only=True)
class CalibrationCurve:
    """probability = sigmoid(slope * margin + offset)."""

    slope: float
    offset: float

    def probability(self, margin: float) -> float:
        """The probability of label 1 at even odds, in [0, 1]."""
        return sigmoid(self.slope * margin + self.offset)


def sigmoid(value: float) -> float:
    """1 / (1 + exp(-value)), without overflow."""
    if value >= 0:
        return 1.0 / (1.0 + math.exp(-value))
    return math.exp(value) / (1.0 + math.exp(value))


def fit_calibration(margins: Vector, labels: NDArray[np.int8]) -> CalibrationCurve | None:
    """Fit the maximum-likelihood curve with both labels weighted equally; None if it would fall.

    Equal weights make scores comparable between languages whose labelled sets have very different
    shares of label 1; in a corpus where label 1 is rarer, a score overstates its probability.

    Source   Platt 1999 (targets smoothed by one pseudo-count each), Lin, Lin and Weng
             2007 (Newton's method with halved steps).
    Edge     None when a label is missing, or when the slope is not positive: margins that do not
             rise with the label are useless in that language.
    Checked  tests/unit/corpus/classifiers/test_classifier_calibration.py
    """
    ones, zeros = int((labels == 1).sum()), int((labels == 0).sum())
    if ones == 0 or zeros == 0:
        return None
    targets = np.where(labels == 1, (ones + 1) / (ones + 2), 1 / (zeros + 2))
    weights = np.where(labels == 1, 0.5 / ones, 0.5 / zeros)

    def loss(slope: float, offset: float) -> float:
        value = slope * margins + offset
        return float((weights * (np.logaddexp(0.0, value) - targets * value)).sum())

    slope, offset = 0.0, 0.0
    best = loss(slope, offset)
    for _ in range(_STEPS):
        value = np.clip(slope * margins + offset, -500, 500)
        chance = 1 / (1 + np.exp(-value))
        error = weights * (chance - targets)
        bend = weights * chance * (1 - chance)
        g0, g1 = float((error * margins).sum()), float(error.sum())
        h00 = float((bend * margins * margins).sum()) + 1e-12
        h01, h11 = float((bend * margins).sum()), float(bend.sum()) + 1e-12
        if max(abs(g0), abs(g1)) < 1e-10:
            break
        determinant = h00 * h11 - h01 * h01
        down = ((h11 * g0 - h01 * g1) / determinant, (h00 * g1 - h01 * g0) / determinant)
        step = 1.0
        while (tried := loss(slope - step * down[0], offset - step * down[1])) >= best:
            step /= 2
            if step < 1e-10:
                return _rising(slope, offset)
        slope, offset, best = slope - step * down[0], offset - step * down[1], tried
    return _rising(slope, offset)


def _rising(slope: float, offset: float) -> CalibrationCurve | None:
    return CalibrationCurve(slope=slope, offset=offset) if slope > 0 else None


SCHEMA = 1
KIND = "hashed n-grams, linear"
WEIGHTS = "weights.safetensors"
DESCRIPTION = "classifier.json"
ANY = ""  # the calibration of languages without one
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, OSError)
_LARGEST = 32_767
_POOLINGS = ("maximum", "first", "mean")


class TextClassifier:
    """A linear classifier, such as a toxicity classifier.

    margin of a window     scale * sum(weights[buckets]) / sqrt(number of n-grams) + bias
    margin of a document   maximum, first or mean over its windows
    score                  sigmoid(slope * margin + offset), with the curve of the language

    weights   [2^bucket_bits], int16
    curves    language -> curve; ANY for all other languages
    identity  hash of everything that decides a score
    """

    def __init__(
        self,
        *,
        features: FeatureConfig,
        pooling: Pooling,
        weights: NDArray[np.int16],
        scale: float,
        bias: float,
        curves: dict[str, CalibrationCurve],
    ) -> None:
        self.features, self.pooling, self.weights = features, pooling, weights
        self.scale, self.bias, self.curves = scale, bias, curves
        self._weights_sha256 = sha256_bytes(save({"weights": weights}))
        self.identity = sha256_value(self._description())

    @classmethod
    def load(cls, folder: Path) -> TextClassifier:
        """Load the classifier that `store` wrote.

        Raises   DataError when a file is missing, damaged, or has another hash than recorded.
        """
        path = folder / DESCRIPTION
        plain = read_json(path)
        try:
            if plain["schema"] != SCHEMA or plain["kind"] != KIND:
                raise ValueError(f"schema {plain['schema']!r}, kind {plain['kind']!r}")
            data = (folder / WEIGHTS).read_bytes()
            if sha256_bytes(data) != plain["weights_sha256"]:
                raise ValueError(f"{WEIGHTS} has another hash than recorded")
            classifier = cls(
                features=from_plain(FeatureConfig, plain["features"]),
                pooling=plain["pooling"],
                weights=load(data)["weights"],
                scale=float(plain["scale"]),
                bias=float(plain["bias"]),
                curves={
                    name: CalibrationCurve(
                        **{key: float(curve[key]) for key in ("slope", "offset")}
                    )
                    for name, curve in plain["curves"].items()
                },
            )
            classifier._check()
        except (*_DAMAGE, SafetensorError, ConfigError) as error:
            raise DataError(
                f"{path} is not a usable classifier: {error}", fix="Train the classifier again"
            ) from None
        return classifier

    def store(self, folder: Path) -> None:
        """Write weights.safetensors and classifier.json."""
        write_bytes(folder / WEIGHTS, save({"weights": self.weights}))
        write_json(folder / DESCRIPTION, {**self._description(), "identity": self.identity})

    def calibrated(self, curves: dict[str, CalibrationCurve]) -> TextClassifier:
        """The same classifier with other curves."""
        names = ("features", "pooling", "weights", "scale", "bias")
        return TextClassifier(curves=curves, **{name: getattr(self, name) for name in names})

    def margin(self, text: str) -> float:
        """The margin of a document, positive for label 1, before calibration."""
        margins = (self.window_margins(block) for block in blocks(text))
        if self.pooling == "first":
            return float(next(margins)[0])
        if self.pooling == "maximum":
            return max(float(block.max()) for block in margins)
        total, count = 0.0, 0
        for block in margins:
            total, count = total + math.fsum(block), count + block.size
        return total / count

    def window_margins(self, block: str) -> NDArray[np.float64]:
        """The margin of each window of a block, from running sums: one look-up for each n-gram.

        Shapes   [windows], at least one.
        Edge     without n-grams the margin is the bias.
        """
        normalized = padded_block(block)
        starts = np.array(list(window_starts(len(normalized), self.features.window_characters)))
        stops = np.minimum(starts + self.features.window_characters, len(normalized))
        totals, counts = np.zeros_like(starts), np.zeros_like(starts)
        for length, buckets in enumerate(
            hash_ngrams(normalized, self.features), self.features.min_ngram
        ):
            sums = np.concatenate(([0], np.cumsum(self.weights[buckets], dtype=np.int64)))
            ends = np.maximum(stops - length + 1, starts)
            totals += sums[ends] - sums[np.minimum(starts, ends)]
            counts += ends - starts
        scaled = self.scale * totals / np.sqrt(np.maximum(counts, 1))
        return np.asarray(scaled + self.bias, dtype=np.float64)

    def score(self, text: str, language: str) -> float:
        """The probability of label 1 at even odds, in [0, 1]; one block of the text is held at a time.

        Checked  tests/unit/corpus/classifiers/test_classifier_scores.py
        """
        curve = self.curves.get(language, self.curves[ANY])
        return curve.probability(self.margin(text))

    def _check(self) -> None:
        if self.weights.dtype != np.int16 or self.weights.shape != (2**self.features.bucket_bits,):
            raise ValueError(f"weights are {self.weights.dtype} {self.weights.shape}")
        if self.pooling not in _POOLINGS or ANY not in self.curves:
            raise ValueError(f"pooling {self.pooling!r}, or no calibration for other languages")
        numbers = [self.scale, self.bias]
        numbers += [n for curve in self.curves.values() for n in (curve.slope, curve.offset)]
        if not all(math.isfinite(number) for number in numbers):
            raise ValueError("a non-finite number")

    def _description(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "kind": KIND,
            "features": to_plain(self.features),
            "pooling": self.pooling,
            "scale": self.scale,
            "bias": self.bias,
            "curves": {name: to_plain(curve) for name, curve in sorted(self.curves.items())},
            "weights_sha256": self._weights_sha256,
        }


def quantize(weights: NDArray[np.float64]) -> tuple[NDArray[np.int16], float]:
    """16-bit integers and a scale with weights = scale * integers, to half of max |weight| / 32,767."""
    largest = float(np.abs(weights).max(initial=0.0))
    scale = largest / _LARGEST if largest else 1.0
    return np.rint(weights / scale).astype(np.int16), scale
