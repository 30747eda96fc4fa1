"""A sample of the pre-activations of every layer, and the loss of a decoder on a text.

Letters: B batch, T tokens, N tokens of a batch without padding, C units of a feed-forward block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.fit import up_factor
from stamm.activations.module import ActivationModule, GatedActivation
from stamm.activations.spec import Gated, Spec
from stamm.base.errors import DataError
from stamm.models.decoder import Decoder
from stamm.models.padding import length_batches, padded
from stamm.observe.taps import tapped

_SAMPLE = 32_768
_SEED = 7


@dataclass(frozen=True)
class LayerSample:
    """Pre-activations x of one layer, f(x), and the weight of an error there, each (sample,), float64.

    An error e of unit i changes the block's output by e times column i of the last matrix, and by up
    too in a gated block: the weight is the square of both, as if errors of units were independent.

    up   u, where a gate times a function h of up is fitted: f is then f(x) h(u), and the weight has no up
    """

    x: Tensor
    f: Tensor
    weight: Tensor
    up: Tensor | None = None


@torch.no_grad()
def sample_layers(
    decoder: Decoder, spec: Spec, sequences: Sequence[Sequence[int]], batch_tokens: int
) -> list[LayerSample]:
    """About 32,768 random pre-activations of each layer, over all of `sequences`, to fit `spec` to.

    Raises   DataError when one is not finite
    """
    tokens = sum(len(sequence) - 1 for sequence in sequences)
    collectors = [
        _Collector(number, layer.mlp, spec, tokens)
        for number, layer in enumerate(decoder.model.layers)
    ]
    hooks = {f"layers.{number}.mlp.act_fn": c.keep for number, c in enumerate(collectors)}
    with tapped(decoder, hooks):
        for batch_BT, real_BT in token_batches(sequences, batch_tokens):
            for collector in collectors:
                collector.real_BT = real_BT
            decoder.model(batch_BT[:, :-1])
    return [collector.result() for collector in collectors]


def multiplies_function(spec: Spec) -> bool:
    """Whether the gate multiplies a function of up, not up itself."""
    return isinstance(spec.arity, Gated) and spec.arity.up is not None


@torch.no_grad()
def mean_loss(decoder: Decoder, sequences: Sequence[Sequence[int]], batch_tokens: int) -> float:
    """Mean loss in nats per token, of all tokens after the first of each sequence."""
    total, tokens = 0.0, 0
    for batch_BT, real_BT in token_batches(sequences, batch_tokens):
        loss = decoder.losses(batch_BT[:, :-1], batch_BT[:, 1:], real_BT.float(), kept=1.0).loss
        total += float(loss)
        tokens += int(real_BT.sum())
    return total / tokens


class _Collector:
    """The hook of one block's activation that keeps random pre-activations.

    real_BT   the inputs of the next batch that are not padding
    """

    def __init__(self, layer: int, block: Any, spec: Spec, tokens: int) -> None:
        self.real_BT = torch.zeros(0, 0, dtype=torch.bool)
        self._layer, self._module = layer, block.act_fn
        self._joint = any(multiplies_function(s) for s in (spec, block.act_fn.spec))
        self._column_C = block.down_proj.weight.double().square().sum(0)
        self._share = min(1.0, _SAMPLE / (tokens * len(self._column_C)))
        self._random = torch.Generator().manual_seed(_SEED + layer)
        self._parts: list[tuple[Tensor, ...]] = []

    def keep(self, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        """Add the pre-activations of a batch."""
        module: ActivationModule = self._module
        x_NC = inputs[0][self.real_BT]
        count = x_NC.numel()
        chosen = torch.rand(count, generator=self._random) < self._share
        unit = chosen.nonzero().squeeze(1) % x_NC.shape[1]
        x = x_NC.flatten()[chosen].double()
        weight = self._column_C[unit]
        f = kernel_of(module.spec).value(x, _parameters(module, unit))
        parts = [x, f, weight]
        if isinstance(module, GatedActivation):
            u = inputs[1][self.real_BT].flatten()[chosen].double()
            by_up = (x, f * up_factor(module.spec, u), weight, u)
            parts = list(by_up) if self._joint else [x, f, weight * u.square()]
        if not bool(all(torch.isfinite(part).all() for part in parts)):
            raise DataError(
                f"layer {self._layer} has activations that are not finite",
                fix="The model diverged, or its weights are damaged",
            )
        self._parts.append(tuple(parts))

    def result(self) -> LayerSample:
        """The sample, over all batches."""
        return LayerSample(*(torch.cat(parts) for parts in zip(*self._parts, strict=True)))


def _parameters(module: ActivationModule, unit: Tensor) -> tuple[Tensor | float, ...]:
    """Effective values of the spec's parameters at each number of the sample."""
    trained = (tensor.detach().double() for tensor in module.effective_tensors())
    values = iter([t.reshape(()) if t.numel() == 1 else t[unit] for t in trained])
    return tuple(next(values) if p.trainable else p.initial for p in module.spec.parameters)


def token_batches(
    sequences: Sequence[Sequence[int]], batch_tokens: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Token ids (B, T + 1), padded on the right, which causal attention ignores; True for real inputs (B, T)."""
    for rows in length_batches([len(sequence) - 1 for sequence in sequences], batch_tokens):
        tokens_BT, own_BT = padded([sequences[row] for row in rows])
        yield tokens_BT, own_BT[:, 1:]
