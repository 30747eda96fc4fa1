"""Decoding of several sequences, one token each per step, with one preallocated KV cache.

Sequences are aligned at their newest token: all write the same column of the cache, whatever their
lengths, so a step writes with one copy and never changes the attention mask. When no column is
free, the cache is moved, and enlarged if necessary.

Shape parameters of activations are evaluated once. The layers are computed by `decode_kernel`, or by
torch (`decode_layer`).

Letters: B rows (sequences), C columns of the cache, H heads, K key-value heads, E head width, D model,
V vocabulary, P prompts, T tokens of a prompt.

Checked  tests/unit/models/test_decode_step.py, tests/unit/models/test_sampling.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stamm.base.errors import ConfigError
from stamm.models.attention import KVCache
from stamm.models.attention_mask import cache_mask
from stamm.models.config import LowRank
from stamm.models.decode_kernel import build_stack
from stamm.models.decode_layer import Factors, HeadShape, LayerWeights, Norm, StackWeights
from stamm.models.decoder import Decoder, DecoderLayer
from stamm.models.ffn import GatedFeedForward
from stamm.models.linear import StructuredLinear
from stamm.models.norm import RMSNorm
from stamm.models.padding import padded

_SPARE = 128  # columns that are free after the cache was moved


@dataclass(frozen=True)
class PromptStates:
    """Keys and values of some prompts, and the logits after each.

    keys, values   (P, K, T, E) of each layer; a shorter prompt ends before T
    logits_PV      of the first new token
    lengths        tokens of each prompt
    """

    keys: list[Tensor]
    values: list[Tensor]
    logits_PV: Tensor
    lengths: list[int]

    @classmethod
    def of(cls, caches: Sequence[KVCache], logits_PV: Tensor, lengths: list[int]) -> PromptStates:
        """The states in the KV caches of all layers."""
        keys = [cache.keys for cache in caches if cache.keys is not None]
        values = [cache.values for cache in caches if cache.values is not None]
        return cls(keys, values, logits_PV, lengths)


@torch.no_grad()
def run_prompts(decoder: Decoder, prompts: Sequence[Sequence[int]]) -> PromptStates:
    """Compute prompts in one forward pass.

    Edge   shorter prompts are padded on the right, where causal attention does not reach
    """
    device = decoder.lm_head.weight.device
    lengths = [len(prompt) for prompt in prompts]
    tokens_PT = padded(prompts)[0].to(device)
    caches = [KVCache() for _ in decoder.model.layers]
    hidden_PTD = decoder.model(tokens_PT, caches=caches)
    last_P = torch.tensor(lengths, device=device) - 1
    hidden_PD = hidden_PTD[torch.arange(len(prompts), device=device), last_P]
    return PromptStates.of(caches, decoder.lm_head(hidden_PD), lengths)


class DecodeStep:
    """The state of B sequences, and the step that adds a token to each.

    lengths   tokens of each sequence; 0 where a row is free

    Memory    the cache, and what `FusedStack` or `TorchStack` takes
    The values computed in a free row are not used, and no other row depends on them.
    """

    @torch.no_grad()
    def __init__(self, decoder: Decoder, rows: int) -> None:
        self.lengths = [0] * rows
        self._embedding = decoder.model.embed_tokens.weight
        weights = stack_weights(decoder)
        self._stack, self._shape, self._head = (
            build_stack(weights, rows),
            weights.shape,
            weights.head,
        )
        self._num_layers = len(weights.layers)
        self._position_B = torch.zeros(rows, dtype=torch.int64, device=self._head.device)
        self._column = 0  # that the next token writes
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._mask_BC = self._head.new_zeros(rows, 0)

    def fill(self, row: int, states: PromptStates, prompt: int) -> None:
        """Begin a sequence in a free row with a prompt."""
        length = states.lengths[prompt]
        if length > self._column:
            self._move(length)
        begin, end = self._column - length, self._column
        for layer, (keys, values) in enumerate(zip(states.keys, states.values, strict=True)):
            self._keys[layer][row, :, begin:end] = keys[prompt, :, :length]
            self._values[layer][row, :, begin:end] = values[prompt, :, :length]
        self._mask_BC[row] = self._mask([begin], self.columns)[0]
        self._position_B[row] = length
        self.lengths[row] = length

    def free(self, row: int) -> None:
        """End the sequence of a row."""
        self._position_B[row] = 0
        self.lengths[row] = 0

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, which become rows 0, 1, .."""
        kept = torch.tensor(rows, device=self._head.device)
        self._keys = [keys[kept] for keys in self._keys]
        self._values = [values[kept] for values in self._values]
        self._mask_BC, self._position_B = self._mask_BC[kept], self._position_B[kept]
        self._stack.bind(self._keys, self._values)
        self.lengths = [self.lengths[row] for row in rows]

    def newest(self, row: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys and values of the newest `count` tokens of a row, each (1, K, count, E), by layer."""
        rows, columns = slice(row, row + 1), slice(self._column - count, self._column)
        for keys, values in zip(self._keys, self._values, strict=True):
            yield keys[rows, :, columns], values[rows, :, columns]

    @property
    def multiplied_experts(self) -> int:
        """Experts multiplied so far, over all rows, steps and layers; 0 for a decoder without experts."""
        return self._stack.multiplied_experts

    @property
    def columns(self) -> int:
        """Columns of the cache, used and free."""
        return self._mask_BC.shape[1]

    @torch.no_grad()
    def __call__(self, token_B: Tensor) -> Tensor:
        """Add a token to each sequence; the logits after it, (B, V)."""
        if self._column == self.columns:
            self._move(max(self.lengths))
        x_BD = F.embedding(token_B, self._embedding)
        position_B, longest = self._position_B, max(self.lengths)
        logits_BV = self._stack(x_BD, position_B, self._mask_BC, self._column, longest)
        self._position_B += 1
        self._column += 1
        self.lengths = [length + 1 if length else 0 for length in self.lengths]
        return logits_BV

    def _move(self, column: int) -> None:
        """Make `column` the next to be written, with free columns after it."""
        longest = max(self.lengths)
        old, new = slice(self._column - longest, self._column), slice(column - longest, column)
        columns = column + _SPARE + column // 2
        shape = (len(self.lengths), self._shape.kv_heads, columns, self._shape.width)

        def moved(states: list[Tensor]) -> list[Tensor]:
            # Zeros, because 0 times the value of a masked column must be 0.
            larger = [self._head.new_zeros(shape) for _ in range(self._num_layers)]
            for after, before in zip(larger, states, strict=False):  # none before the first prompt
                after[:, :, new] = before[:, :, old]
            return larger

        self._keys, self._values = moved(self._keys), moved(self._values)
        self._mask_BC = self._mask([column - length for length in self.lengths], columns)
        self._stack.bind(self._keys, self._values)
        self._column = column

    def _mask(self, first: Sequence[int], columns: int) -> Tensor:
        first_B = torch.tensor(first, device=self._head.device)
        return cache_mask(first_B, columns, self._head.dtype)


def stack_weights(decoder: Decoder) -> StackWeights:
    """Weights that a step reads, not copied; norms and biases in the dtype of the matrices.

    Raises   ConfigError for a matrix with an adapter
    """
    config, dtype = decoder.config, decoder.lm_head.weight.dtype
    shape = HeadShape(config.num_heads, config.num_kv_heads, config.head_width)
    return StackWeights(
        shape=shape,
        layers=[_layer_weights(layer, shape, dtype) for layer in decoder.model.layers],
        norm=_norm(decoder.model.norm, dtype),
        head=decoder.lm_head.weight.detach(),
        frequencies=decoder.model.frequencies,
    )


def _layer_weights(layer: nn.Module, shape: HeadShape, dtype: torch.dtype) -> LayerWeights:
    assert isinstance(layer, DecoderLayer)
    attention = layer.self_attn
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = [p.bias for p in projections if p.bias is not None]
    block: Any = layer.mlp
    gate = _factors(block.gate_proj) if isinstance(block, GatedFeedForward) else None
    return LayerWeights(
        attention_norm=_norm(layer.attention_layernorm, dtype),
        projections=[_weight(projection) for projection in projections],
        biases=[bias.detach().to(dtype) for bias in biases],
        qk_norm=_qk_norm(layer, shape, dtype),
        out=_weight(attention.o_proj),
        ffn_norm=_norm(layer.feedforward_layernorm, dtype),
        gate=gate,
        up=_factors(block.up_proj),
        down=_factors(block.down_proj),
        activation=block.act_fn,
        router=block.router,
        steering=layer.steering_D,
    )


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


def _factors(linear: nn.Module) -> Factors:
    """The weight of a dense matrix, or the two factors of one of low rank."""
    if isinstance(linear, StructuredLinear) and isinstance(linear.form, LowRank):
        return linear.first.detach(), linear.second.detach()
    return (_weight(linear),)


def _weight(linear: nn.Module) -> Tensor:
    """The weight of a dense matrix.

    Raises   ConfigError for any other module, such as one with an adapter
    """
    if type(linear) is not nn.Linear:
        raise ConfigError(
            f"a matrix is a {type(linear).__name__}", fix="Merge the adapters, then sample"
        )
    return linear.weight.detach()
