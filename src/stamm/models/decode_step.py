"""Decoding of several sequences, one token each per step, with one preallocated KV cache.

Sequences are aligned at their newest token: all write the same column of the cache, whatever their
lengths, so a step writes with one copy and never changes the attention mask. When no column is
free, the cache is moved, and enlarged if necessary.

The projections of queries, keys and values are multiplied as one matrix, and shape parameters of
activations are evaluated once. What lies between the products is in `decode_layer`.

Letters: B rows (sequences), C columns of the cache, H heads, K key-value heads, E head width, D model,
V vocabulary, P prompts, T tokens of a prompt.

Checked  tests/unit/models/test_decode_step.py, tests/unit/models/test_sampling.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stamm.activations.module import Activation, GatedActivation
from stamm.base.errors import ConfigError
from stamm.models.attention import KVCache
from stamm.models.attention_mask import cache_mask
from stamm.models.decode_layer import DecodeOperations, HeadShape, QKNorm, build_operations
from stamm.models.decoder import Decoder, DecoderLayer
from stamm.models.experts import ExpertStep
from stamm.models.ffn import GatedFeedForward, PlainFeedForward
from stamm.models.norm import RMSNorm
from stamm.models.padding import padded

_SPARE = 128  # columns that are free after the cache was moved
_PACKED_MATRIX = 2**18  # numbers of the smallest matrix that is packed
_PACKED_MODEL = 2**27  # parameters of the largest model whose matrices are packed: a copy in memory


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

    Memory    the cache, the matrices of queries, keys and values again, and for a model of up to 134
              million parameters on a CPU its matrices again, rearranged for few rows
    The values computed in a free row are not used, and no other row depends on them.
    """

    @torch.no_grad()
    def __init__(self, decoder: Decoder, rows: int) -> None:
        config = decoder.config
        self.lengths = [0] * rows
        self._embedding = decoder.model.embed_tokens.weight
        small = sum(parameter.numel() for parameter in decoder.parameters()) <= _PACKED_MODEL
        packed_rows = rows if small else 0
        self._head = decoder.lm_head.weight
        dtype = self._head.dtype
        self._layers = [_StepLayer(layer, dtype, packed_rows) for layer in decoder.model.layers]
        self._norm = _norm(decoder.model.norm, dtype)
        self._logits = _product(self._head, packed_rows)
        self._position_B = torch.zeros(rows, dtype=torch.int64, device=self._head.device)
        self._shape = HeadShape(config.num_heads, config.num_kv_heads, config.head_width)
        self._operations = build_operations(
            self._shape,
            [_qk_norm(layer, self._shape, dtype) for layer in decoder.model.layers],
            decoder.model.frequencies,
            self._norm[0],
        )
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
        self._operations.bind(self._keys, self._values)
        self.lengths = [self.lengths[row] for row in rows]

    def newest(self, row: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys and values of the newest `count` tokens of a row, each (1, K, count, E), by layer."""
        rows, columns = slice(row, row + 1), slice(self._column - count, self._column)
        for keys, values in zip(self._keys, self._values, strict=True):
            yield keys[rows, :, columns], values[rows, :, columns]

    @property
    def multiplied_experts(self) -> int:
        """Experts multiplied so far, over all rows, steps and layers; 0 for a decoder without experts."""
        blocks = (layer.feed_forward for layer in self._layers)
        return sum(block.multiplied for block in blocks if isinstance(block, ExpertStep))

    @property
    def columns(self) -> int:
        """Columns of the cache, used and free."""
        return self._mask_BC.shape[1]

    @torch.no_grad()
    def __call__(self, token_B: Tensor) -> Tensor:
        """Add a token to each sequence; the logits after it, (B, V)."""
        if self._column == self.columns:
            self._move(max(self.lengths))
        operations = self._operations
        operations.begin(self._position_B, self._mask_BC, self._column, max(self.lengths))
        x_BD, added_BD = F.embedding(token_B, self._embedding), None
        for number, layer in enumerate(self._layers):
            x_BD, added_BD = layer(x_BD, added_BD, number, operations)
        _, normal_BD = operations.add_norm(x_BD, added_BD, *self._norm)
        self._position_B += 1
        self._column += 1
        self.lengths = [length + 1 if length else 0 for length in self.lengths]
        return self._logits(normal_BD)

    def _move(self, column: int) -> None:
        """Make `column` the next to be written, with free columns after it."""
        longest = max(self.lengths)
        old, new = slice(self._column - longest, self._column), slice(column - longest, column)
        columns = column + _SPARE + column // 2
        shape = (len(self.lengths), self._shape.kv_heads, columns, self._shape.width)

        def moved(states: list[Tensor]) -> list[Tensor]:
            # Zeros, because 0 times the value of a masked column must be 0.
            larger = [self._head.new_zeros(shape) for _ in self._layers]
            for after, before in zip(larger, states, strict=False):  # none before the first prompt
                after[:, :, new] = before[:, :, old]
            return larger

        self._keys, self._values = moved(self._keys), moved(self._values)
        self._mask_BC = self._mask([column - length for length in self.lengths], columns)
        self._operations.bind(self._keys, self._values)
        self._column = column

    def _mask(self, first: Sequence[int], columns: int) -> Tensor:
        first_B = torch.tensor(first, device=self._head.device)
        return cache_mask(first_B, columns, self._head.dtype)


class _StepLayer:
    """A decoder layer for one new token of each row."""

    def __init__(self, layer: nn.Module, dtype: torch.dtype, packed_rows: int) -> None:
        assert isinstance(layer, DecoderLayer)
        attention = layer.self_attn
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        weight = torch.cat([_weight(projection) for projection in projections])
        biases: list[Tensor] = [
            projection.bias for projection in projections if projection.bias is not None
        ]
        bias = torch.cat(biases).detach().to(dtype) if biases else None
        self._qkv = _product(weight, packed_rows, bias)
        self._out = _product(_weight(attention.o_proj), packed_rows)
        norms = layer.attention_layernorm, layer.feedforward_layernorm
        self._norms = [_norm(norm, dtype) for norm in norms]
        block: Any = layer.mlp
        self.feed_forward = _feed_forward(block, packed_rows)

    def __call__(
        self, x_BD: Tensor, added_BD: Tensor | None, number: int, operations: DecodeOperations
    ) -> tuple[Tensor, Tensor]:
        """Two tensors whose sum is the layer's output, from two whose sum is its input."""
        x_BD, normal_BD = operations.add_norm(x_BD, added_BD, *self._norms[0])
        attended_BD = self._out(operations.attend(number, self._qkv(normal_BD)))
        x_BD, normal_BD = operations.add_norm(x_BD, attended_BD, *self._norms[1])
        return x_BD, self.feed_forward(normal_BD)


def _norm(norm: RMSNorm, dtype: torch.dtype) -> tuple[Tensor, float]:
    """Weight and epsilon."""
    return norm.weight.detach().to(dtype), norm.eps


def _qk_norm(layer: nn.Module, shape: HeadShape, dtype: torch.dtype) -> QKNorm | None:
    """Weights of all heads of queries and keys, and epsilon."""
    assert isinstance(layer, DecoderLayer)
    queries, keys = layer.self_attn.q_norm, layer.self_attn.k_norm
    if queries is None or keys is None:
        return None
    weights: list[Tensor] = [queries.weight] * shape.heads
    weights += [keys.weight] * shape.kv_heads
    return torch.stack(weights).detach().to(dtype), queries.eps


def _feed_forward(
    block: PlainFeedForward | GatedFeedForward, packed_rows: int
) -> Callable[[Tensor], Tensor]:
    """The block with its present shape parameters."""
    activation: Activation | GatedActivation = block.act_fn
    function = activation.frozen()
    if block.router is not None:
        gates = [block.gate_proj] if isinstance(block, GatedFeedForward) else []
        first = [_weight(projection) for projection in (*gates, block.up_proj)]
        prepare = partial(_product, packed_rows=packed_rows)
        return ExpertStep(block.router, function, first, _weight(block.down_proj), prepare)
    up, down = (
        _product(_weight(projection), packed_rows)
        for projection in (block.up_proj, block.down_proj)
    )
    if isinstance(block, GatedFeedForward):
        gate = _product(_weight(block.gate_proj), packed_rows)
        return lambda x_BD: down(function(gate(x_BD), up(x_BD)))
    return lambda x_BD: down(function(up(x_BD)))


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
        turned = weight.detach().t().contiguous()
        if bias is not None:
            return lambda x_BD: torch.addmm(bias, x_BD, turned)
        return lambda x_BD: torch.mm(x_BD, turned)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), packed_rows)
    multiply = torch.ops.mkldnn._linear_pointwise
    return lambda x_BD: multiply(x_BD, packed, bias, "none", [], "")


def _weight(linear: nn.Module) -> Tensor:
    """The weight of a dense matrix; a merged decoder has only dense ones.

    Raises   ConfigError for any other module, such as one with an adapter
    """
    if type(linear) is not nn.Linear:
        raise ConfigError(
            f"a matrix is a {type(linear).__name__}", fix="Merge the adapters, then sample"
        )
    return linear.weight
