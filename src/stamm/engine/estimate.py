"""What a pretraining run will need, from its configuration alone: no torch, no GPU, no data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from stamm.base.errors import ConfigError
from stamm.models.config import DecoderConfig, GatedFFN
from stamm.models.count import count_parameters
from stamm.optim.config import AdamW, AdEMAMix

# Dense bf16 peak of one device in FLOP/s, by the makers' data sheets.
PEAK_FLOPS = {"A100": 312e12, "H100": 989e12, "H200": 989e12, "GH200": 989e12, "B200": 2250e12}
ASSUMED_UTILISATION = 0.38  # Apertus 8B: 6.96k tokens/s per GH200 (arXiv 2509.14233, recomputed)
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Devices:
    """A number of equal accelerators ("1024xGH200")."""

    count: int
    name: str

    @property
    def peak_flops(self) -> float:
        """Dense bf16 FLOP/s of all of them together."""
        return self.count * PEAK_FLOPS[self.name]


def parse_devices(text: str) -> Devices:
    """Devices from "8xH200".

    Raises   ConfigError for another form or an unknown device.
    """
    match = re.fullmatch(r"([1-9]\d*)x([A-Za-z0-9]+)", text)
    if not match or match.group(2).upper() not in PEAK_FLOPS:
        raise ConfigError(
            f"--gpus {text!r} is not a number and a known device",
            fix=f"Write for example 8xH200. Known: {', '.join(sorted(PEAK_FLOPS))}",
        )
    return Devices(int(match.group(1)), match.group(2).upper())


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of a training step over all devices together, by part.

    activations   kept for the backward pass of one micro-batch per device, nothing recomputed
    """

    weights: int
    gradients: int
    master_weights: int
    moments: int
    activations: int

    @property
    def total(self) -> int:
        """All parts."""
        return self.weights + self.gradients + self.master_weights + self.moments + self.activations


def estimate_memory(
    model: DecoderConfig,
    optimizer: AdamW | AdEMAMix,
    sequences: int,
    context: int,
    precision: Precision,
) -> Memory:
    """Memory of one step that has `sequences` sequences in flight over all devices.

    precision   "float32": everything in 4 bytes. "bfloat16": weights and activations in 2 bytes,
                gradients, moments and a second copy of the weights in 4
    """
    parameters = count_parameters(model).total
    wide = precision == "float32"
    return Memory(
        weights=parameters * (4 if wide else 2),
        gradients=parameters * 4,
        master_weights=0 if wide else parameters * 4,
        moments=parameters * 4 * optimizer.moments,
        activations=sequences * context * _activation_bytes(model, 4 if wide else 2),
    )


def checkpoint_bytes(model: DecoderConfig, optimizer: AdamW | AdEMAMix) -> int:
    """Size of one checkpoint: weights and moments in float32."""
    return count_parameters(model).total * 4 * (1 + optimizer.moments)


def _activation_bytes(model: DecoderConfig, width: int) -> int:
    """Bytes a token leaves for the backward pass.

    Per layer: two norm inputs and outputs, queries and keys before and after the rotation, values,
    the attended values, and the feed-forward's inner tensors: pre- and post-activation, or gate,
    up and product. Then the last hidden state and its gradient; logits are never kept.
    """
    d, e = model.d_model, model.head_width
    queries, keys = model.num_heads * e, model.num_kv_heads * e
    inner = (3 if isinstance(model.ffn, GatedFFN) else 2) * model.ffn.width
    layer = 4 * d + 3 * queries + 3 * keys + inner
    return width * (model.num_layers * layer + 3 * d)
