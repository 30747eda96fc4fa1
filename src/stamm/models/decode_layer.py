"""A step of decoding through a decoder's layers by torch's operations, and the weights that it reads.

Letters: B rows (sequences), C columns of the cache, H heads, K key-value heads, E head width, D model,
F features of queries, keys and values together, (H + 2 K) E, V vocabulary.

Checked  tests/unit/models/test_decode_step.py, tests/unit/models/test_decode_kernel.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stamm.activations.module import Activation, GatedActivation
from stamm.base.errors import ConfigError
from stamm.models.decoder import Decoder, DecoderLayer
from stamm.models.ffn import GatedFeedForward, PlainFeedForward
from stamm.models.norm import RMSNorm
from stamm.models.rope import rotation


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
    """What a step reads of a layer.

    projections   of queries, keys and values; with their biases, or none
    gate          None in a plain block
    """

    attention_norm: Norm
    projections: Sequence[Tensor]
    biases: Sequence[Tensor]
    qk_norm: Norm | None
    out: Tensor
    ffn_norm: Norm
    gate: Tensor | None
    up: Tensor
    down: Tensor
    activation: Activation | GatedActivation

    @classmethod
    def of(cls, layer: DecoderLayer, shape: HeadShape, dtype: torch.dtype) -> LayerWeights:
        """The weights themselves; norms and biases in the dtype of the matrices."""
        attention = layer.self_attn
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        biases = [p.bias for p in projections if p.bias is not None]
        block: Any = layer.mlp
        assert isinstance(block, (PlainFeedForward, GatedFeedForward))
        gate = _weight(block.gate_proj) if isinstance(block, GatedFeedForward) else None
        return cls(
            attention_norm=_norm(layer.attention_layernorm, dtype),
            projections=[_weight(projection) for projection in projections],
            biases=[bias.detach().to(dtype) for bias in biases],
            qk_norm=_qk_norm(layer, shape, dtype),
            out=_weight(attention.o_proj),
            ffn_norm=_norm(layer.feedforward_layernorm, dtype),
            gate=gate,
            up=_weight(block.up_proj),
            down=_weight(block.down_proj),
            activation=block.act_fn,
        )


@dataclass(frozen=True, kw_only=True)
class StackWeights:
    """What a step reads of a decoder.

    frequencies   radians per token, (E / 2,)
    """

    shape: HeadShape
    layers: Sequence[LayerWeights]
    norm: Norm
    head: Tensor
    frequencies: Tensor

    @classmethod
    def of(cls, decoder: Decoder) -> StackWeights:
        """The weights of a decoder.

        Raises   ConfigError for a matrix with an adapter
        """
        config, dtype = decoder.config, decoder.lm_head.weight.dtype
        shape = HeadShape(config.num_heads, config.num_kv_heads, config.head_width)
        layers = []
        for layer in decoder.model.layers:
            assert isinstance(layer, DecoderLayer)
            layers.append(LayerWeights.of(layer, shape, dtype))
        return cls(
            shape=shape,
            layers=layers,
            norm=_norm(decoder.model.norm, dtype),
            head=decoder.lm_head.weight.detach(),
            frequencies=decoder.model.frequencies,
        )


class DecodeStack(Protocol):
    """A step of decoding through all layers."""

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
    """The step by torch's operations, on any device and in any dtype."""

    def __init__(self, weights: StackWeights) -> None:
        shape, frequencies = weights.shape, weights.frequencies
        self._weights, self._frequencies = weights, frequencies
        self._layers = [_TorchLayer(layer, shape) for layer in weights.layers]
        self._sign_E = torch.ones(shape.width, device=frequencies.device)
        self._sign_E[: shape.width // 2] = -1

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
        return F.linear(_normal(x_BD, self._weights.norm), self._weights.head)


class _TorchLayer:
    """A decoder layer for one new token of each row, with its cache."""

    keys: Tensor
    values: Tensor

    def __init__(self, weights: LayerWeights, shape: HeadShape) -> None:
        self._weights, self._shape = weights, shape
        self._qkv = torch.cat(list(weights.projections))
        self._bias = torch.cat(list(weights.biases)) if weights.biases else None
        self._function: Callable[..., Tensor] = weights.activation.frozen()

    def __call__(
        self, x_BD: Tensor, turn: tuple[Tensor, Tensor], mask_BGC: Tensor, seen: slice
    ) -> Tensor:
        """The layer's output."""
        weights = self._weights
        qkv_BF = F.linear(_normal(x_BD, weights.attention_norm), self._qkv, self._bias)
        x_BD = x_BD + F.linear(self._attended(qkv_BF, turn, mask_BGC, seen), weights.out)
        normal_BD = _normal(x_BD, weights.ffn_norm)
        inputs = [F.linear(normal_BD, w) for w in (weights.gate, weights.up) if w is not None]
        return x_BD + F.linear(self._function(*inputs), weights.down)

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


def _normal(x_BD: Tensor, norm: Norm) -> Tensor:
    return F.rms_norm(x_BD, norm.weight.shape, norm.weight, norm.eps)


def _norm(norm: RMSNorm, dtype: torch.dtype) -> Norm:
    return Norm(norm.weight.detach().to(dtype), norm.eps)


def _qk_norm(layer: DecoderLayer, shape: HeadShape, dtype: torch.dtype) -> Norm | None:
    """Weights of all heads of queries and keys."""
    queries, keys = layer.self_attn.q_norm, layer.self_attn.k_norm
    if queries is None or keys is None:
        return None
    weights: list[Tensor] = [queries.weight] * shape.heads
    weights += [keys.weight] * shape.kv_heads
    return Norm(torch.stack(weights).detach().to(dtype), queries.eps)


def _weight(linear: nn.Module) -> Tensor:
    """The weight of a dense matrix; a merged decoder has only dense ones.

    Raises   ConfigError for any other module, such as one with an adapter
    """
    if type(linear) is not nn.Linear:
        raise ConfigError(
            f"a matrix is a {type(linear).__name__}", fix="Merge the adapters, then sample"
        )
    return linear.weight.detach()
