"""Outliers of feed-forward layers: channel ratios and quantization noise of the matrices' inputs, massive activations.

Letters: N tokens that are not padding, C channels of an input, D width of the residual stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stamm.models.decoder import Decoder
from stamm.models.padding import length_batches, padded
from stamm.observe.records import MassiveActivation
from stamm.observe.taps import Hook, tapped

MASSIVE, MASSIVE_RATIO, MOST_MASSIVE = 100.0, 1000.0, 10
INT8, FP8 = 127.0, 448.0
"""Largest magnitudes of symmetric INT8 and of FP8 E4M3."""


class InputStatistics:
    """Statistics of the inputs of one matrix over all tokens.

    channel_ratio    largest over median of the channels' maxima of |v|; None where the median is 0
    int8_tensor_db   SQNR, 10 log10 of the sum of v^2 over the sum of squared errors, of INT8 with one
                     symmetric scale, the largest |v| of the text over 127, rounded to nearest
    int8_token_db    the same with a scale for each token
    fp8_tensor_db    of FP8 E4M3 with one scale, the largest |v| over 448

    None where there is no error or no signal. The second pass needs the maxima of the first.

    Checked  tests/unit/observe/test_outliers.py
    """

    def __init__(self) -> None:
        self._largest = torch.zeros(())
        self._sums = torch.zeros(4, dtype=torch.float64)

    def add_maxima(self, v_NC: Tensor) -> None:
        """Add the inputs of a batch, in the first pass."""
        self._largest = torch.maximum(self._largest, v_NC.abs().amax(0).double())

    def add_errors(self, v_NC: Tensor) -> None:
        """Add the inputs of a batch, in the second pass."""
        v = v_NC.double()
        largest = self._largest.max().clamp(min=_SMALLEST)
        of_token = v.abs().amax(1, keepdim=True).clamp(min=_SMALLEST)
        eight_bits = (v * (FP8 / largest)).float().to(torch.float8_e4m3fn)
        rounded = (
            (v * (INT8 / largest)).round() * (largest / INT8),
            (v * (INT8 / of_token)).round() * (of_token / INT8),
            eight_bits.double() * (largest / FP8),
        )
        squares = [v.square().sum(), *((v - q).square().sum() for q in rounded)]
        self._sums += torch.stack(squares)

    def result(self, name: str) -> dict[str, float | None]:
        """The numbers, with `name` before each."""
        middle = float(self._largest.median())
        signal, *errors = self._sums.tolist()
        decibels = [
            10 * math.log10(signal / error) if signal > 0 and error > 0 else None
            for error in errors
        ]
        return {
            f"{name}_channel_ratio": float(self._largest.max()) / middle if middle > 0 else None,
            **{
                f"{name}_{kind}_db": value
                for kind, value in zip(
                    ("int8_tensor", "int8_token", "fp8_tensor"), decibels, strict=True
                )
            },
        }


_SMALLEST = 1e-30


class MassiveActivations:
    """Numbers r of the residual stream behind a layer with |r| > MASSIVE and |r| > MASSIVE_RATIO times the
    median magnitude of their token, by token id and dimension.

    Source   Sun et al. 2024, arXiv 2402.17762
    Checked  tests/unit/observe/test_outliers.py
    """

    def __init__(self) -> None:
        self.count = 0
        self._by_place: dict[tuple[int, int], tuple[int, float]] = {}

    def add(self, ids_N: Tensor, residual_ND: Tensor) -> None:
        """Add the residual stream of a batch."""
        size_ND = residual_ND.abs()
        median_N1 = size_ND.median(dim=1, keepdim=True).values
        massive_ND = (size_ND > MASSIVE) & (size_ND > MASSIVE_RATIO * median_N1)
        self.count += int(massive_ND.sum())
        for row, dimension in massive_ND.nonzero().tolist():
            position = (int(ids_N[row]), dimension)
            number, largest = self._by_place.get(position, (0, 0.0))
            value = float(residual_ND[row, dimension])
            self._by_place[position] = (number + 1, max(largest, value, key=abs))

    def result(self, decode: Callable[[Sequence[int]], str]) -> tuple[MassiveActivation, ...]:
        """The MOST_MASSIVE places with the largest magnitudes."""
        places = sorted(self._by_place.items(), key=lambda item: (-abs(item[1][1]), item[0]))
        return tuple(
            MassiveActivation(
                token_id=token, token=decode([token]), dimension=dimension, count=count, value=value
            )
            for (token, dimension), (count, value) in places[:MOST_MASSIVE]
        )


@torch.no_grad()
def observe_outliers(
    decoder: Decoder,
    sequences: Sequence[Sequence[int]],
    decode: Callable[[Sequence[int]], str],
    batch_tokens: int,
) -> list[dict[str, Any]]:
    """Fields of `LayerObservation` for each layer: two forward passes over the text.

    The first matrix is that of the gate and of up, which have one input; the last reads the features.

    decode   text of token ids
    """
    layers = decoder.model.layers
    first, last = ([InputStatistics() for _ in layers] for _ in range(2))
    massive = [MassiveActivations() for _ in layers]
    ids_BT, own_BT = torch.zeros(0), torch.zeros(0, dtype=torch.bool)
    errors = False

    def add(into: InputStatistics, value_BTC: Tensor) -> None:
        (into.add_errors if errors else into.add_maxima)(value_BTC[own_BT])

    def add_residual(into: MassiveActivations, output_BTD: Tensor) -> None:
        if not errors:
            into.add(ids_BT[own_BT], output_BTD[own_BT])

    hooks: dict[str, Hook] = {}
    for number in range(len(layers)):
        name = f"layers.{number}"
        hooks[f"{name}.mlp"] = lambda inputs, _, into=first[number]: add(into, inputs[0])  # type: ignore[misc]
        hooks[f"{name}.mlp.act_fn"] = lambda _, out, into=last[number]: add(into, out)  # type: ignore[misc]
        hooks[name] = lambda _, out, into=massive[number]: add_residual(into, out)  # type: ignore[misc]
    with tapped(decoder, hooks):
        for errors in (False, True):  # noqa: B007  # the hooks read it
            for rows in length_batches([len(s) - 1 for s in sequences], batch_tokens):
                tokens_BT, present_BT = padded([sequences[row] for row in rows])
                ids_BT, own_BT = tokens_BT[:, :-1], present_BT[:, 1:]
                decoder.model(ids_BT)
    return [
        {
            **first[number].result("first"),
            **last[number].result("last"),
            "massive_count": massive[number].count,
            "massive": massive[number].result(decode),
        }
        for number in range(len(layers))
    ]
