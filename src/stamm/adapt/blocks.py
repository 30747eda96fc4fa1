"""Feed-forward blocks on a text: what goes in and what the units compute, and losses with units weighted.

Letters: B rows, T tokens, N tokens without padding, C units, D model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stamm.adapt.sample import token_batches
from stamm.base.errors import DataError
from stamm.models.decoder import Decoder
from stamm.observe.taps import Hook, tapped

_LARGEST = 2 * 2**30  # bytes of the samples of one pass over the text
Weigh = Callable[[Tensor, Tensor], Tensor | None]
"""Input and units of a block to factors of its units; None: all 1."""


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
        layers = range(first, min(first + together, config.num_layers))
        kept: dict[int, tuple[list[Tensor], list[Tensor]]] = {layer: ([], []) for layer in layers}

        def keep(layer: int, x_ND: Tensor, h_NC: Tensor, kept: Any = kept) -> None:
            if layer in kept:
                kept[layer][0].append(x_ND)
                kept[layer][1].append(h_NC)

        with _observed(decoder, keep) as mask:
            for batch_BT, real_BT in token_batches(sequences, batch_tokens):
                mask(real_BT)
                with torch.no_grad():
                    decoder.model(batch_BT[:, :-1])
        for layer in layers:
            x_ND, h_NC = (torch.cat(parts) for parts in kept.pop(layer))
            if not bool(torch.isfinite(h_NC).all()):
                raise DataError(
                    f"layer {layer} has activations that are not finite",
                    fix="The model diverged, or its weights are damaged",
                )
            block: Any = decoder.model.layers[layer].mlp
            yield BlockSample(x=x_ND, h=h_NC, down=block.down_proj.weight.detach())


@contextmanager
def _observed(
    decoder: Decoder, keep: Callable[[int, Tensor, Tensor], None]
) -> Iterator[Callable[[Tensor], None]]:
    """Hooks that hand over inputs and units of each block; the caller states which tokens are real."""
    real: list[Tensor] = []

    def weigh(layer: int, x_BTD: Tensor, h_BTC: Tensor) -> Tensor | None:
        keep(layer, x_BTD[real[0]], h_BTC[real[0]])
        return None

    with weighted(decoder, [partial(weigh, n) for n in range(decoder.config.num_layers)]):
        yield lambda real_BT: real.__setitem__(slice(None), [real_BT])


@contextmanager
def weighted(decoder: Decoder, weigh: Sequence[Weigh]) -> Iterator[None]:
    """Multiply the units of each block by what its function returns from the block's input and its units."""
    hooks: dict[str, Hook] = {}
    with ExitStack() as handles:
        for number, (layer, function) in enumerate(zip(decoder.model.layers, weigh, strict=True)):
            block: Any = layer.mlp
            entered: list[Tensor] = []

            def enter(_: nn.Module, given: Any, entered: list[Tensor] = entered) -> None:
                entered[:] = [given[0]]

            def weigh_units(
                _: Any, units: Tensor, entered: Any = entered, function: Any = function
            ) -> Tensor | None:
                factors = function(entered[0], units)
                return None if factors is None else units * factors

            handles.callback(block.register_forward_pre_hook(enter).remove)
            hooks[f"layers.{number}.mlp.act_fn"] = weigh_units
        handles.enter_context(tapped(decoder, hooks))
        yield
