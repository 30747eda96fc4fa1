"""Apertus' kind of head: a frozen encoder reads each chunk, a small perceptron judges its mean state.

No encoder is loaded here, for this floor knows no torch: whoever builds a head hands in a function
that gives one vector for each chunk of a text. The head records what it was told the encoder is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from stamm.base.config import from_plain, to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json, sha256_bytes, sha256_value, write_bytes, write_json
from stamm.corpus.classifiers.calibration import sigmoid
from stamm.corpus.classifiers.config import EncoderHeadConfig
from stamm.corpus.classifiers.examples import Example
from stamm.corpus.classifiers.perceptron import Layers, Matrix, Trained, train_perceptron

Embed = Callable[[str], Matrix]  # text -> [chunks, width], float32, at least one chunk

SCHEMA = 1
KIND = "frozen encoder, perceptron"
WEIGHTS = "weights.safetensors"
DESCRIPTION = "head.json"


class EncoderHead:
    """score = pool over chunks of softmax(logits)[label 1].

    encoder   identity of the encoder: the hash of its weights, as whoever loads it computes it
    embed     the mean state of each chunk of `config.chunk_tokens` tokens; the same for a chunk
              whatever is beside it
    """

    def __init__(
        self, *, config: EncoderHeadConfig, encoder: str, layers: Layers, embed: Embed
    ) -> None:
        self.config, self.encoder, self.layers, self._embed = config, encoder, layers, embed
        stored = {field.name: getattr(layers, field.name) for field in fields(Layers)}
        self._stored = save(stored)
        self._plain = {
            "schema": SCHEMA,
            "kind": KIND,
            "config": to_plain(config),
            "encoder": encoder,
            "weights_sha256": sha256_bytes(self._stored),
        }
        self.identity = sha256_value(self._plain)

    @classmethod
    def load(cls, folder: Path, encoder: str, embed: Embed) -> EncoderHead:
        """The head that `store` wrote, reading with the encoder that it was trained with.

        Raises   DataError when a file is missing or damaged, or for another encoder.
        """
        path = folder / DESCRIPTION
        plain = read_json(path)
        try:
            if plain["schema"] != SCHEMA or plain["kind"] != KIND:
                raise ValueError(f"schema {plain['schema']!r}, kind {plain['kind']!r}")
            if plain["encoder"] != encoder:
                raise ValueError(
                    f"it was trained with encoder {plain['encoder']}, this is {encoder}"
                )
            data = (folder / WEIGHTS).read_bytes()
            if sha256_bytes(data) != plain["weights_sha256"]:
                raise ValueError(f"{WEIGHTS} is not the file that it names")
            config = from_plain(EncoderHeadConfig, plain["config"])
            layers = Layers(**load(data))
            _check(layers, config.hidden)
        except (LookupError, TypeError, ValueError, OSError, SafetensorError, ConfigError) as error:
            raise DataError(
                f"{path} describes no head that can be used: {error}",
                fix="Train the head again, or name the encoder it was trained with",
            ) from None
        return cls(config=config, encoder=encoder, layers=layers, embed=embed)

    def store(self, folder: Path) -> None:
        """Write weights.safetensors and head.json."""
        write_bytes(folder / WEIGHTS, self._stored)
        write_json(folder / DESCRIPTION, {**self._plain, "identity": self.identity})

    def score(self, text: str, language: str) -> float:
        """How probable label 1 is, in [0, 1]. One head serves one language, or all alike."""
        logits = self.layers.logits(_pooled_input(self._embed(text), self.config))
        margins = [float(row[1]) - float(row[0]) for row in logits]
        chances = [sigmoid(margin) for margin in margins]
        if self.config.pooling == "maximum":
            return max(chances)
        return math.fsum(chances) / len(chances)


def train_encoder_head(
    config: EncoderHeadConfig,
    encoder: str,
    embed: Embed,
    train: Sequence[Example],
    held_out: Sequence[Example],
) -> tuple[EncoderHead, Trained]:
    """A head trained on every chunk of `train`, its epoch chosen by accuracy on `held_out`.

    Raises   DataError when either side lacks a label.
    """
    for name, side in (("train", train), ("held-out", held_out)):
        if {example.label for example in side} != {0, 1}:
            raise DataError(f"the {name} side lacks a label", fix="Add texts of both labels")
    x_NW, labels_N = _chunk_rows(config, embed, train)
    held_out_NW, held_out_labels_N = _chunk_rows(config, embed, held_out)
    trained = train_perceptron(config, x_NW, labels_N, held_out_NW, held_out_labels_N)
    head = EncoderHead(config=config, encoder=encoder, layers=trained.layers, embed=embed)
    return head, trained


def _check(layers: Layers, hidden: int) -> None:
    width = layers.first_WH.shape[0]
    expected = ((width, hidden), (hidden,), (hidden, 2), (2,))
    for field, shape in zip(fields(Layers), expected, strict=True):
        value = getattr(layers, field.name)
        if value.shape != shape or value.dtype != np.float32 or not np.isfinite(value).all():
            raise ValueError(f"{field.name} is {value.dtype} {value.shape}, or not finite")


def _chunk_rows(
    config: EncoderHeadConfig, embed: Embed, examples: Sequence[Example]
) -> tuple[Matrix, NDArray[np.int8]]:
    rows, labels = [], []
    for example in examples:
        vectors = _pooled_input(embed(example.text), config)
        rows.append(vectors)
        labels.extend([example.label] * len(vectors))
    return np.concatenate(rows), np.array(labels, dtype=np.int8)


def _pooled_input(vectors: Matrix, config: EncoderHeadConfig) -> Matrix:
    """The chunks that count: all, or the first."""
    if vectors.ndim != 2 or len(vectors) == 0 or not np.isfinite(vectors).all():
        raise DataError(
            f"the encoder gave {vectors.shape} for a text, or a number that is not finite",
            fix="It must give one finite vector for each chunk, and at least one",
        )
    return vectors[:1] if config.pooling == "first" else vectors
