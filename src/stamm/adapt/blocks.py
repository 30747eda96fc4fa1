"""Feed-forward blocks on a text: what goes in and what the units compute, and losses with units weighted.

Letters: B rows, T tokens, N tokens without padding, C units, D model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stamm.adapt.sample import token_batches
from stamm.base.errors import DataError
from stamm.models.decoder import Decoder
from stamm.observe.taps import Hook, tapped

_LARGEST = 2 * 2**30  # bytes of the samples of one pass over the text


@dataclass(frozen=True, kw_only=True)
class BlockSample:
    """A block on calibration tokens: its input (N, D), the outputs of its units (N, C), its last matrix (D, C)."""

    x: Tensor
    h: Tensor
    down: Tensor

    @property
    def strength(self) -> Tensor:
        """|h_i| times the norm of column i of the last matrix, (N, C)."""
        strength_NC: Tensor = self.h.abs() * self.down.norm(dim=0)
        return strength_NC


def block_samples(
    decoder: Decoder, sequences: Sequence[Sequence[int]], batch_tokens: int
) -> Iterator[BlockSample]:
    """Inputs and units of every block on the tokens of `sequences`, layer by layer.

    Memory   2 GiB; the text is read again for each 2 GiB of samples
    Raises   DataError when an output is not finite
    """
    tokens = sum(len(sequence) - 1 for sequence in sequences)
    config = decoder.config
    together = max(1, _LARGEST // (4 * tokens * (config.d_model + config.ffn.width)))
    for first in range(0, config.num_layers, together):
        kept: dict[str, list[Tensor]] = {}
        hooks: dict[str, Hook] = {}
        for layer in range(first, min(first + together, config.num_layers)):
            for name in (f"layers.{layer}.mlp", f"layers.{layer}.mlp.act_fn"):
                kept[name], hooks[name] = [], partial(_keep, kept, name)
        with tapped(decoder, hooks), torch.no_grad():
            for batch_BT, real_BT in token_batches(sequences, batch_tokens):
                decoder.model(batch_BT[:, :-1])
                for parts in kept.values():
                    parts[-1] = parts[-1][real_BT]
        for layer in range(first, min(first + together, config.num_layers)):
            x_ND, h_NC = (torch.cat(kept.pop(f"layers.{layer}.mlp{at}")) for at in ("", ".act_fn"))
            if not bool(torch.isfinite(h_NC).all()):
                raise DataError(
                    f"layer {layer} has activations that are not finite",
                    fix="The model diverged, or its weights are damaged",
                )
            block: Any = decoder.model.layers[layer].mlp
            yield BlockSample(x=x_ND, h=h_NC, down=block.down_proj.weight.detach())


def _keep(kept: dict[str, list[Tensor]], name: str, inputs: tuple[Any, ...], out: Tensor) -> None:
    """Keep the outputs of the units, or the input of the block."""
    kept[name].append(out if name.endswith("act_fn") else inputs[0])


@contextmanager
def weighted(decoder: Decoder, weigh: Sequence[Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Multiply the units of each block by what its function returns from them."""

    def times(function: Callable[[Tensor], Tensor], _: Any, units: Tensor) -> Tensor:
        return units * function(units)

    hooks: dict[str, Hook] = {
        f"layers.{number}.mlp.act_fn": partial(times, function)
        for number, function in enumerate(weigh)
    }
    with tapped(decoder, hooks):
        yield
