"""The sparsity ruler: the share of feed-forward units that can be skipped at a given perplexity.

Letters: B sequences, T tokens, N tokens that are not padding, C units, D width of the residual stream.

The magnitude of unit i at a token is m_i = |h_i| * |w_i|: h the outputs of the activation, w_i column i of
the last matrix. CETT (cumulative errors of tail truncation) of a threshold is the mean over tokens of
|sum of h_i w_i over the units with m_i <= threshold| / |sum over all units|, in the dense model. One CETT
gives every layer its threshold, and the CETT is bisected until the perplexity of the calibration text
has grown by the given factor. It works for any activation, and for other magnitudes.

Source   CETT: Zhang et al. 2024, arXiv 2402.03804; bisected to a perplexity: Luo et al. 2024, arXiv 2411.02335
Checked  tests/unit/observe/test_ruler.py
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stamm.base.errors import ConfigError, DataError
from stamm.models.decoder import Decoder
from stamm.models.padding import length_batches, padded
from stamm.observe.taps import Hook, tapped

PERPLEXITY = 1.01
HALVINGS = 14
OCTAVES = tuple(step / 2 for step in range(-24, 9))
"""Candidates of a threshold: these powers of 2, times the root mean square of the layer's magnitudes.
CETT is measured at them and interpolated linearly between them."""


Magnitude = Callable[[int, tuple[Tensor, ...], Tensor, Tensor], Tensor]
"""A layer, the inputs (N, C) of its activation, its outputs (N, C) and its last matrix (D, C) to (N, C)."""


def of_outputs(_: int, __: tuple[Tensor, ...], h_NC: Tensor, weight_DC: Tensor) -> Tensor:
    """|h_i| |w_i|."""
    magnitude_NC: Tensor = h_NC.abs() * weight_DC.norm(dim=0)
    return magnitude_NC


@dataclass(frozen=True, kw_only=True)
class SparsityThresholds:
    """Magnitudes up to which the units of each layer are skipped.

    cett     of the dense model on the calibration text, the same for every layer
    values   thresholds by layer; 0 skips only units that add nothing
    """

    cett: float
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class SkippedUnits:
    """The effect of thresholds on a text.

    share    skipped units of all layers, over all tokens and units
    shares   the same of each layer
    loss     mean of the nats of a token with them skipped
    """

    share: float
    shares: tuple[float, ...]
    loss: float


def find_thresholds(
    decoder: Decoder,
    sequences: Sequence[Sequence[int]],
    *,
    perplexity: float = PERPLEXITY,
    share: float | None = None,
    batch_tokens: int = 4096,
    magnitude: Magnitude = of_outputs,
) -> SparsityThresholds:
    """The thresholds at which the perplexity of a calibration text is at most `perplexity` times the dense one.

    sequences      token ids of the calibration text, at most max_context + 1 each
    share          instead of a perplexity: the share of units, over all layers, to skip on that text
    magnitude      that is compared with the thresholds
    batch_tokens   of one forward pass, padding included

    Cost     about 30 forward passes; memory does not grow with the text
    Raises   ConfigError for a perplexity of at most 1, or a share outside (0, 1); DataError when the
             text has fewer tokens than a layer has units
    """
    if not (perplexity > 1 and math.isfinite(perplexity)):
        raise ConfigError(f"perplexity = {perplexity:g}", fix="Set a factor above 1, such as 1.01")
    if share is not None and not 0 < share < 1:
        raise ConfigError(f"share = {share:g}", fix="Set a share between 0 and 1")
    tokens, units = tokens_of(sequences), widest(decoder)
    if tokens < units:
        raise DataError(
            f"the calibration text has {tokens:,} tokens, and a layer {units:,} units",
            fix=f"Give at least {units:,} tokens",
        )
    decoder = decoder.merged()
    curves = _cett_curves(decoder, sequences, batch_tokens, magnitude)

    def thresholds(cett: float) -> SparsityThresholds:
        values = (float(np.interp(cett, errors, candidates)) for candidates, errors in curves)
        return SparsityThresholds(cett=cett, values=tuple(values))

    dense = SparsityThresholds(cett=0.0, values=(0.0,) * len(curves))
    before = skipped_units(decoder, sequences, dense, batch_tokens, magnitude)
    most = before.loss + math.log(perplexity)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        result = skipped_units(decoder, sequences, thresholds(middle), batch_tokens, magnitude)
        fits = result.loss <= most if share is None else result.share <= share
        low, high = (middle, high) if fits else (low, middle)
    return thresholds(low)


def skipped_units(
    decoder: Decoder,
    sequences: Sequence[Sequence[int]],
    thresholds: SparsityThresholds,
    batch_tokens: int = 4096,
    magnitude: Magnitude = of_outputs,
) -> SkippedUnits:
    """The loss of a text with the units below the thresholds skipped, and the shares of these units."""
    decoder = decoder.merged()
    skipped = [0] * len(thresholds.values)

    def skip(layer: int, h_NC: Tensor, magnitude_NC: Tensor, _: Tensor) -> Tensor:
        below_NC = magnitude_NC <= thresholds.values[layer]
        skipped[layer] += int(below_NC.sum())
        return h_NC.masked_fill(below_NC, 0.0)

    loss = _pass(decoder, sequences, batch_tokens, skip, magnitude)
    tokens = tokens_of(sequences)
    units = [tokens * decoder.config.ffn_of(layer).width for layer in range(len(skipped))]
    return SkippedUnits(
        share=sum(skipped) / sum(units),
        shares=tuple(
            count / units_of_layer for count, units_of_layer in zip(skipped, units, strict=True)
        ),
        loss=loss,
    )


def tokens_of(sequences: Sequence[Sequence[int]]) -> int:
    """Tokens that layers see: all but the last of each sequence."""
    return sum(len(sequence) - 1 for sequence in sequences)


def widest(decoder: Decoder) -> int:
    """Units of the widest feed-forward layer."""
    return max(decoder.config.ffn_of(layer).width for layer in range(decoder.config.num_layers))


def _cett_curves(
    decoder: Decoder, sequences: Sequence[Sequence[int]], batch_tokens: int, magnitude: Magnitude
) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """For each layer candidates of the threshold, from 0, and their CETT, which does not fall."""
    layers, tokens = decoder.config.num_layers, tokens_of(sequences)
    squares = torch.zeros(layers, dtype=torch.float64)
    sums = torch.zeros(layers, len(OCTAVES), dtype=torch.float64)
    candidates = torch.zeros(layers, len(OCTAVES))

    def add_squares(layer: int, h_NC: Tensor, magnitude_NC: Tensor, _: Tensor) -> Tensor:
        squares[layer] += magnitude_NC.square().mean(1).sum(dtype=torch.float64)
        return h_NC

    def add_errors(layer: int, h_NC: Tensor, magnitude_NC: Tensor, weight_DC: Tensor) -> Tensor:
        whole_N = (h_NC @ weight_DC.T).norm(dim=1)
        for index, threshold in enumerate(candidates[layer].tolist()):
            tail_NC = h_NC.masked_fill(magnitude_NC > threshold, 0.0)
            error_N = (tail_NC @ weight_DC.T).norm(dim=1) / whole_N
            # A token to which the layer adds nothing has no error.
            sums[layer, index] += error_N.nan_to_num(nan=0.0, posinf=0.0).sum(dtype=torch.float64)
        return h_NC

    _pass(decoder, sequences, batch_tokens, add_squares, magnitude)
    scale_L = (squares / tokens).sqrt().float()
    candidates.copy_(scale_L[:, None] * torch.tensor(OCTAVES).exp2())
    _pass(decoder, sequences, batch_tokens, add_errors, magnitude)
    errors = np.maximum.accumulate((sums / tokens).numpy(), axis=1)
    return [
        (np.concatenate([[0.0], of_layer]), np.concatenate([[0.0], error]))
        for of_layer, error in zip(candidates.double().numpy(), errors, strict=True)
    ]


@torch.no_grad()
def _pass(
    decoder: Decoder,
    sequences: Sequence[Sequence[int]],
    batch_tokens: int,
    change: Callable[[int, Tensor, Tensor, Tensor], Tensor],
    magnitude: Magnitude,
) -> float:
    """Mean nats of a token, with the outputs of every activation changed by `change`.

    change   of a layer, its outputs (N, C), their magnitudes (N, C) and its last matrix (D, C)
    """
    nats = 0.0
    own_BT = torch.zeros(0, 0, dtype=torch.bool)
    hooks: dict[str, Hook] = {}
    for number, layer in enumerate(decoder.model.layers):
        block: Any = layer.mlp

        def changed(
            inputs: tuple[Tensor, ...],
            output_BTC: Tensor,
            number: int = number,
            weight_DC: Tensor = block.down_proj.weight,
        ) -> Tensor:
            result_BTC = output_BTC.clone()
            given, h_NC = tuple(x[own_BT] for x in inputs), output_BTC[own_BT]
            m_NC = magnitude(number, given, h_NC, weight_DC)
            result_BTC[own_BT] = change(number, h_NC, m_NC, weight_DC)
            return result_BTC

        hooks[f"layers.{number}.mlp.act_fn"] = changed
    with tapped(decoder, hooks):
        for rows in length_batches([len(s) - 1 for s in sequences], batch_tokens):
            tokens_BT, present_BT = padded([sequences[row] for row in rows])
            own_BT = present_BT[:, 1:]
            losses = decoder.losses(tokens_BT[:, :-1], tokens_BT[:, 1:], own_BT.float(), kept=1.0)
            nats += float(losses.loss)
    return nats / tokens_of(sequences)
