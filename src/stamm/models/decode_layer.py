"""A step of decoding through a decoder's layers by torch's operations, and the weights that it reads.

Letters: B rows (sequences), C columns of the cache, H heads, K key-value heads, E head width, D model,
F features of queries, keys and values together, (H + 2 K) E, V vocabulary.

Checked  tests/unit/models/test_decode_step.py, tests/unit/models/test_decode_kernel.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.activations.module import Activation, GatedActivation
from stamm.models.experts import ExpertStep, Router
from stamm.models.rope import rotation

_PACKED_MATRIX = 2**18  # numbers of the smallest matrix that torch packs
_PACKED_MODEL = 2**27  # numbers in matrices of the largest model that is packed: a copy in memory


Factors = tuple[Tensor, ...]
"""A matrix, or the two of a matrix of low rank, in the order in which they multiply."""


class Norm(NamedTuple):
    """Weight of an RMS norm, or weights of the heads of queries and keys, (H + K, E); and epsilon."""

    weight: Tensor
    eps: float


@dataclass(frozen=True)
class HeadShape:
    """Heads of attention: of queries, of keys and values, and their width."""

    heads: int
    kv_heads: int
    width: int


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """Weights of a layer that a step reads.

    projections   of queries, keys and values; with their biases, or none
    gate          None in a plain block
    router        of a block with experts
    steering      vector added to the output; None: nothing
    """

    attention_norm: Norm
    projections: Sequence[Tensor]
    biases: Sequence[Tensor]
    qk_norm: Norm | None
    out: Tensor
    ffn_norm: Norm
    gate: Factors | None
    up: Factors
    down: Factors
    activation: Activation | GatedActivation
    router: Router | None = None
    steering: Tensor | None = None

    @property
    def width(self) -> int:
        """Hidden neurons of the block, or of all its experts."""
        return len(self.up[-1])

    @property
    def rank(self) -> int:
        """Of its matrices of low rank; 0 without any."""
        return max(len(factors[0]) if len(factors) > 1 else 0 for factors in (self.up, self.down))

    @property
    def blocks(self) -> list[tuple[Factors | None, Factors, Factors]]:
        """Gate, up and down of each expert, or of the whole block."""
        if self.router is None:
            return [(self.gate, self.up, self.down)]
        count = self.router.experts.count
        (up,), (down,), gate = self.up, self.down, self.gate
        gates = [None] * count if gate is None else [(part,) for part in gate[0].chunk(count)]
        halves = zip(up.chunk(count), down.chunk(count, dim=1), strict=True)
        return [(g, (u,), (d,)) for g, (u, d) in zip(gates, halves, strict=True)]


@dataclass(frozen=True, kw_only=True)
class StackWeights:
    """Weights of a decoder that a step reads.

    frequencies   radians per token, (E / 2,)
    """

    shape: HeadShape
    layers: Sequence[LayerWeights]
    norm: Norm
    head: Tensor
    frequencies: Tensor

    @property
    def matrices(self) -> list[Tensor]:
        """All matrices but the embedding."""
        matrices = [self.head]
        for layer in self.layers:
            matrices += [*layer.projections, layer.out]
            matrices += [] if layer.router is None else [layer.router.weight.detach()]
            matrices += [w for block in layer.blocks for factors in block for w in factors or ()]
        return matrices

    @property
    def is_small(self) -> bool:
        """Whether a step copies the matrices into another order."""
        return sum(w.numel() for w in self.matrices) <= _PACKED_MODEL


class DecodeStack(Protocol):
    """A step of decoding through all layers."""

    @property
    def multiplied_experts(self) -> int:
        """Experts multiplied so far, over all rows, steps and layers; 0 without experts."""
        ...

    def bind(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Use this KV cache, which stays where it is in memory: for each layer (B, K, C, E)."""

    def __call__(
        self, x_BD: Tensor, position_B: Tensor, mask_BC: Tensor, column: int, longest: int
    ) -> Tensor:
        """Append to the caches and return the logits, (B, V).

        x_BD         embeddings of the new tokens; may be overwritten
        position_B   number of earlier tokens of each row, so of earlier columns that it attends to
        mask_BC      the same, added to scores: 0 or -inf
        column       of the cache, to be written
        longest      the most tokens of a row before this one
        """
        ...


class TorchStack:
    """The step by torch's operations, on any device and in any dtype.

    rows     of the step

    Memory   the matrices of queries, keys and values again; of a model that `is_small`, in float32 on a
             CPU, all matrices again, rearranged for few rows
    """

    def __init__(self, weights: StackWeights, rows: int) -> None:
        shape, frequencies = weights.shape, weights.frequencies
        packed_rows = rows if weights.is_small else 0
        self._norm, self._frequencies = weights.norm, frequencies
        self._head = _product(weights.head, packed_rows)
        self._layers = [_TorchLayer(layer, shape, packed_rows) for layer in weights.layers]
        self._sign_E = torch.ones(shape.width, device=frequencies.device)
        self._sign_E[: shape.width // 2] = -1

    @property
    def multiplied_experts(self) -> int:
        """Experts multiplied so far, over all rows, steps and layers."""
        blocks = (layer.feed_forward for layer in self._layers)
        return sum(block.multiplied for block in blocks if isinstance(block, ExpertStep))

    def bind(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Use this KV cache: for each layer (B, K, C, E)."""
        for layer, layer_keys, layer_values in zip(self._layers, keys, values, strict=True):
            layer.keys, layer.values = layer_keys, layer_values

    def __call__(
        self, x_BD: Tensor, position_B: Tensor, mask_BC: Tensor, column: int, longest: int
    ) -> Tensor:
        """The logits, as in `DecodeStack`."""
        seen = slice(column - longest, column + 1)
        mask_BGC = mask_BC[:, None, None, seen]
        cosine_BE, sine_BE = rotation(self._frequencies, position_B, mask_BC.dtype)
        turn = cosine_BE[:, None], (sine_BE * self._sign_E.to(sine_BE.dtype))[:, None]
        for layer in self._layers:
            x_BD = layer(x_BD, turn, mask_BGC, seen)
        return self._head(_normal(x_BD, self._norm))


class _TorchLayer:
    """A decoder layer for one new token of each row, with its cache."""

    keys: Tensor
    values: Tensor

    def __init__(self, weights: LayerWeights, shape: HeadShape, packed_rows: int) -> None:
        self._weights, self._shape = weights, shape
        bias = torch.cat(list(weights.biases)) if weights.biases else None
        self._qkv = _product(torch.cat(list(weights.projections)), packed_rows, bias)
        self._out = _product(weights.out, packed_rows)
        self.feed_forward = _feed_forward(weights, packed_rows)

    def __call__(
        self, x_BD: Tensor, turn: tuple[Tensor, Tensor], mask_BGC: Tensor, seen: slice
    ) -> Tensor:
        """The layer's output."""
        weights = self._weights
        qkv_BF = self._qkv(_normal(x_BD, weights.attention_norm))
        x_BD = x_BD + self._out(self._attended(qkv_BF, turn, mask_BGC, seen))
        x_BD = x_BD + self.feed_forward(_normal(x_BD, weights.ffn_norm))
        return x_BD if weights.steering is None else x_BD + weights.steering

    def _attended(
        self, qkv_BF: Tensor, turn: tuple[Tensor, Tensor], mask_BGC: Tensor, seen: slice
    ) -> Tensor:
        """Append to the cache and attend, (B, H E)."""
        rows, shape, column = qkv_BF.shape[0], self._shape, seen.stop - 1
        qkv_BHE = qkv_BF.view(rows, -1, shape.width)
        qk_BHE = qkv_BHE[:, : shape.heads + shape.kv_heads]
        norm = self._weights.qk_norm
        if norm is not None:
            qk_BHE = F.rms_norm(qk_BHE, (shape.width,), None, norm.eps) * norm.weight
        cosine, sine = turn
        qk_BHE = torch.addcmul(qk_BHE * cosine, qk_BHE.roll(shape.width // 2, -1), sine)
        self.keys[:, :, column] = qk_BHE[:, shape.heads :]
        self.values[:, :, column] = qkv_BHE[:, shape.heads + shape.kv_heads :]
        y_BKGE = F.scaled_dot_product_attention(
            qk_BHE[:, : shape.heads].view(rows, shape.kv_heads, -1, shape.width),
            self.keys[:, :, seen],
            self.values[:, :, seen],
            attn_mask=mask_BGC,
        )
        return y_BKGE.reshape(rows, -1)


def _feed_forward(weights: LayerWeights, packed_rows: int) -> Callable[[Tensor], Tensor]:
    """The block with its present shape parameters."""
    blocks = [
        [_products(factors, packed_rows) for factors in block if factors is not None]
        for block in weights.blocks
    ]
    function = weights.activation.frozen()
    if weights.router is not None:
        return ExpertStep(weights.router, function, blocks)
    *inputs, down = blocks[0]
    return lambda x_BD: down(function(*(multiply(x_BD) for multiply in inputs)))


def _products(factors: Factors, packed_rows: int) -> Callable[[Tensor], Tensor]:
    """The product with a matrix, or with both of its factors."""
    *first, last = [_product(w.contiguous(), packed_rows) for w in factors]
    if not first:
        return last
    return lambda x_BD: last(first[0](x_BD))


def _product(
    weight: Tensor, packed_rows: int, bias: Tensor | None = None
) -> Callable[[Tensor], Tensor]:
    """x W' (+ bias) for few rows x, with W rearranged for float32 on a CPU: for oneDNN where W is large.

    packed_rows   rows of x that the matrix is packed for; 0: no copy of it, which takes no memory
    """
    large = weight.numel() >= _PACKED_MATRIX
    built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch's
    if not (packed_rows and weight.is_cpu and weight.dtype == torch.float32):
        return lambda x_BD: F.linear(x_BD, weight, bias)
    if not (large and built):
        turned = weight.t().contiguous()
        if bias is not None:
            return lambda x_BD: torch.addmm(bias, x_BD, turned)
        return lambda x_BD: torch.mm(x_BD, turned)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, packed_rows)
    multiply = torch.ops.mkldnn._linear_pointwise
    return lambda x_BD: multiply(x_BD, packed, bias, "none", [], "")


def _normal(x_BD: Tensor, norm: Norm) -> Tensor:
    return F.rms_norm(x_BD, norm.weight.shape, norm.weight, norm.eps)
