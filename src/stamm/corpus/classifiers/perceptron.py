"""A perceptron with one hidden layer on given vectors, trained with AdamW. numpy only, no torch.

Its random numbers come from base.mixing, so that no release of a library can change them; its
products come from the linear algebra library, so the last bits may differ between machines.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from stamm.base.hashing import splitmix64
from stamm.corpus.classifiers.config import EncoderHeadConfig
from stamm.corpus.shuffle import permutation

# Legend: N rows, W width of a vector, H hidden, 2 logits (label 0, label 1).
Matrix = NDArray[np.float32]

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True, kw_only=True)
class Layers:
    """logits = relu(x @ first + first_bias) @ second + second_bias."""

    first_WH: Matrix
    first_bias_H: Matrix
    second_H2: Matrix
    second_bias_2: Matrix

    def logits(self, x_NW: Matrix) -> Matrix:
        """Logits of both labels, [N, 2]; each row alone, so that its neighbours cannot change it."""
        return np.stack([self._row(x_W) for x_W in x_NW])

    def _row(self, x_W: Matrix) -> Matrix:
        hidden_H = np.maximum(x_W @ self.first_WH + self.first_bias_H, 0)
        return np.asarray(hidden_H @ self.second_H2 + self.second_bias_2)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The layers of the best epoch, and the share of held-out rows it got right, by epoch."""

    layers: Layers
    epoch: int
    accuracy: tuple[float, ...]


def initial_layers(width: int, config: EncoderHeadConfig) -> Layers:
    """Uniform in ±1/sqrt(inputs), as torch's Linear draws them, from the seed alone."""
    shapes = ((width, config.hidden), (config.hidden,), (config.hidden, 2), (2,))
    inputs = (width, width, config.hidden, config.hidden)
    drawn = [
        ((2 * _uniform(config.seed, stream, shape) - 1) / np.sqrt(size)).astype(np.float32)
        for stream, (shape, size) in enumerate(zip(shapes, inputs, strict=True))
    ]
    return Layers(
        first_WH=drawn[0], first_bias_H=drawn[1], second_H2=drawn[2], second_bias_2=drawn[3]
    )


def train_perceptron(
    config: EncoderHeadConfig,
    x_NW: Matrix,
    labels_N: NDArray[np.int8],
    held_out_NW: Matrix,
    held_out_labels_N: NDArray[np.int8],
) -> Trained:
    """Layers after the epoch with the highest held-out accuracy; of equals the first.

    AdamW with linear warm-up and linear decay to zero; weight decay on all but the biases.
    Source   the settings of Apertus' toxicity heads, without softmax before the cross-entropy.
    Checked  tests/unit/corpus/classifiers/test_encoder_head.py::test_gradients_are_those_of_torch
    """
    layers = initial_layers(x_NW.shape[1], config)
    values = [getattr(layers, field.name).copy() for field in fields(Layers)]
    first = [np.zeros_like(value) for value in values]
    second = [np.zeros_like(value) for value in values]
    batches = -(-len(x_NW) // config.batch)
    steps, step = config.epochs * batches, 0
    accuracy: list[float] = []
    best = layers
    for epoch in range(config.epochs):
        order = permutation(len(x_NW), config.seed + epoch)
        for batch in range(batches):
            rows = order[batch * config.batch : (batch + 1) * config.batch]
            mask_NH = _dropout(config, step, len(rows))
            step += 1
            _, slopes = loss_and_slopes(
                Layers(**_named(values)), x_NW[rows], labels_N[rows], mask_NH
            )
            rate = config.rate * _pace(step, config.warm_up, steps)
            for place, slope in enumerate(slopes):
                first[place] = _BETA1 * first[place] + (1 - _BETA1) * slope
                second[place] = _BETA2 * second[place] + (1 - _BETA2) * slope * slope
                root = np.sqrt(second[place] / (1 - _BETA2**step)) + _EPSILON
                if values[place].ndim == 2:
                    values[place] = values[place] * np.float32(1 - rate * config.weight_decay)
                move = rate * (first[place] / (1 - _BETA1**step)) / root
                values[place] = (values[place] - move).astype(np.float32)
        now = Layers(**_named(values))
        guessed = now.logits(held_out_NW).argmax(axis=1)
        accuracy.append(float((guessed == held_out_labels_N).mean()))
        if accuracy[-1] > max(accuracy[:-1], default=-1.0):
            best = now
    return Trained(layers=best, epoch=accuracy.index(max(accuracy)), accuracy=tuple(accuracy))


def loss_and_slopes(
    layers: Layers, x_NW: Matrix, labels_N: NDArray[np.int8], mask_NH: Matrix
) -> tuple[float, list[Matrix]]:
    """Mean cross-entropy of the logits in nats, and its gradient for each field of `layers`.

    mask_NH   what each hidden value is multiplied by: 0, or 1 / (1 - dropout)
    """
    before_NH = x_NW @ layers.first_WH + layers.first_bias_H
    hidden_NH = np.maximum(before_NH, 0) * mask_NH
    logits_N2 = hidden_NH @ layers.second_H2 + layers.second_bias_2
    shifted_N2 = logits_N2 - logits_N2.max(axis=1, keepdims=True)
    log_N2 = shifted_N2 - np.log(np.exp(shifted_N2).sum(axis=1, keepdims=True))
    rows = np.arange(len(x_NW))
    loss = -float(log_N2[rows, labels_N].mean())
    slope_N2 = np.exp(log_N2)
    slope_N2[rows, labels_N] -= 1
    slope_N2 /= len(x_NW)
    slope_NH = (slope_N2 @ layers.second_H2.T) * mask_NH * (before_NH > 0)
    return loss, [
        x_NW.T @ slope_NH,
        slope_NH.sum(axis=0),
        hidden_NH.T @ slope_N2,
        slope_N2.sum(axis=0),
    ]


def _named(values: list[Matrix]) -> dict[str, Matrix]:
    return {field.name: value for field, value in zip(fields(Layers), values, strict=True)}


def _pace(step: int, warm_up: int, steps: int) -> float:
    if step <= warm_up:
        return step / warm_up
    return max(0.0, (steps - step) / max(1, steps - warm_up))


def _dropout(config: EncoderHeadConfig, step: int, rows: int) -> Matrix:
    kept = _uniform(config.seed, 4 + step, (rows, config.hidden)) >= config.dropout
    return (kept / (1 - config.dropout)).astype(np.float32)


def _uniform(seed: int, stream: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Numbers in [0, 1), a function of seed, stream and place."""
    start = splitmix64(np.array([seed], dtype=np.uint64))[0] ^ np.uint64(stream)
    states = np.arange(int(np.prod(shape)), dtype=np.uint64)
    mixed = splitmix64(splitmix64(np.array([start]))[0] ^ states)
    return ((mixed >> np.uint64(11)) / 2.0**53).reshape(shape)
