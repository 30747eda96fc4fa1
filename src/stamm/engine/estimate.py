"""What a pretraining run will need, from its configuration alone: no torch, no GPU, no data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from stamm.base.errors import ConfigError
from stamm.models.config import DecoderConfig
from stamm.models.count import count_parameters, inner_bytes
from stamm.optim.config import AdamW, AdEMAMix

# Dense bf16 peak of one device in FLOP/s, by the makers' data sheets.
PEAK_FLOPS = {"A100": 312e12, "H100": 989e12, "H200": 989e12, "GH200": 989e12, "B200": 2250e12}
# Apertus 8B: 6.96k tokens/s per GH200 (arXiv 2509.14233) times the 48.3 GFLOP that training_flops
# counts a token, over the peak. With the masked half of attention and the embedding it is 0.385.
ASSUMED_UTILISATION = 0.34
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

    activations   kept for the backward pass of one micro-batch per device, run eagerly, nothing
                  recomputed but what the feed-forward's memory policy says. Compiled layers keep
                  fewer: 0.84 of it for the demo's decoder on a CPU (torch 2.13)
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
    devices: int = 1,
) -> Memory:
    """Memory of one step that has `sequences` sequences in flight over all devices.

    precision   "float32": everything in 4 bytes. "bfloat16": weights and activations in 2 bytes,
                gradients, moments and a second copy of the weights in 4
    devices     how many share the sequences; each keeps the output matrix's gradient, which the
                loss forms in its forward pass, in float32 and whole
    Checked     tests/unit/engine/test_estimate.py (activations against what autograd keeps)
    """
    width = 4 if precision == "float32" else 2
    parameters = count_parameters(model).total
    return Memory(
        weights=parameters * width,
        gradients=parameters * 4,
        master_weights=0 if precision == "float32" else parameters * 4,
        moments=parameters * 4 * optimizer.moments,
        activations=sequences * context * _activation_bytes(model, context, width)
        + devices * 4 * model.vocab_size * model.d_model,
    )


def checkpoint_bytes(model: DecoderConfig, optimizer: AdamW | AdEMAMix) -> int:
    """Size of one checkpoint: weights and moments in float32, a tied matrix once.

    Checked  tests/unit/engine/test_estimate.py (against the files that are written)
    """
    return count_parameters(model).total * 4 * (1 + optimizer.moments)


def _activation_bytes(model: DecoderConfig, context: int, width: int) -> int:
    """Bytes a token of a sequence of `context` tokens leaves for the backward pass, run eagerly.

    Numbers take `width` bytes unless said otherwise. Per layer: two norms of the hidden state and
    what each hands to its matrices; the norms of queries and keys; rotated queries and keys,
    values, attended values, a float32 log-sum a head and this token's row of the mask, as wide as
    the context, since attention turns the document mask into numbers layer by layer; the
    feed-forward's inner tensors. Then the last norm, the gradient of the last hidden state and
    the token's id. Logits are never kept, and cosines are too few to count.
    """
    d, e = model.d_model, model.head_width
    queries, keys = model.num_heads * e, model.num_kv_heads * e
    layer = 2 * (_norm_bytes(d, 1, width) + width * d)
    if model.qk_norm:
        layer += _norm_bytes(queries + keys, model.num_heads + model.num_kv_heads, width)
    layer += width * (2 * queries + 2 * keys + context) + 4 * model.num_heads
    layer += inner_bytes(model.ffn, width)
    return model.num_layers * layer + _norm_bytes(d, 1, width) + width * d + 8


def _norm_bytes(numbers: int, rows: int, width: int) -> int:
    """RMSNorm keeps its input and one scale a row in float32, and the normalised input."""
    return 4 * numbers + 4 * rows + width * numbers
