"""Exact counts of a decoder from its configuration alone: parameters by part and floating-point work,
and what a feed-forward block keeps.

A test compares them with the module built on the meta device, for every recipe.
"""

from __future__ import annotations

from dataclasses import dataclass

from stamm.activations import catalog
from stamm.models.config import (
    DecoderConfig,
    FewBit,
    GatedFFN,
    PlainFFN,
    Recompute,
    SavePost,
    SavePre,
)


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Numbers to learn, by part. `head` is 0 when the embedding is shared with it."""

    embedding: int
    attention: int
    ffn: int
    activation: int
    norms: int
    head: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.attention + self.ffn + self.activation + self.norms + self.head


@dataclass(frozen=True, kw_only=True)
class ForwardFlops:
    """Floating-point operations of one forward pass over one sequence: 2 per multiply-add.

    attention          of products of queries with keys and weights with values, all T x T of them
    attention_causal   the half of it that a causal kernel needs, diagonal included
    """

    projections: int
    ffn: int
    attention: int
    attention_causal: int
    head: int

    @property
    def executed(self) -> int:
        """Matrix products as dense kernels run them."""
        return self.projections + self.ffn + self.attention + self.head

    @property
    def useful(self) -> int:
        """Matrix products that the result depends on."""
        return self.projections + self.ffn + self.attention_causal + self.head


def count_parameters(config: DecoderConfig) -> ParameterCount:
    """How many numbers the decoder learns."""
    d, e = config.d_model, config.head_width
    shapes = len(catalog.get(config.ffn.activation).trainable)
    qk_norm = 2 * e if config.qk_norm else 0
    return ParameterCount(
        embedding=config.vocab_size * d,
        attention=config.num_layers * _attention_matrices(config),
        ffn=config.num_layers * _ffn_matrices(config),
        activation=config.num_layers * shapes,
        norms=config.num_layers * (2 * d + qk_norm) + d,
        head=0 if config.tied_embeddings else config.vocab_size * d,
    )


def forward_flops(config: DecoderConfig, context: int) -> ForwardFlops:
    """Work of one forward pass over one sequence of `context` tokens, logits of all included."""
    pair = 4 * config.num_heads * config.head_width * config.num_layers
    return ForwardFlops(
        projections=2 * context * config.num_layers * _attention_matrices(config),
        ffn=2 * context * config.num_layers * _ffn_matrices(config),
        attention=pair * context * context,
        attention_causal=pair * context * (context + 1) // 2,
        head=2 * context * config.vocab_size * config.d_model,
    )


def training_flops(config: DecoderConfig, context: int) -> int:
    """Useful work of training on one sequence: a forward pass and a backward pass of twice that."""
    return 3 * forward_flops(config, context).useful


@dataclass(frozen=True, kw_only=True)
class FFNCost:
    """What one feed-forward block costs to train under one memory policy.

    saved_bytes   a token leaves for the backward pass, the block's input counted, parameters not
    products      matrix products of a training step, each of 2 * d_model * width FLOP a token
    """

    saved_bytes: int
    products: int


def ffn_cost(d_model: int, ffn: PlainFFN | GatedFFN, number_bytes: int) -> FFNCost:
    """The cost of a feed-forward block under its memory policy, when it is run eagerly.

    number_bytes   size of a number: 2 in bfloat16
    Edge           shape parameters leave a few bytes a block besides. Where an activation that
                   sends `up` through a function is not fused, SavePost keeps wider copies of up.
    Checked        tests/unit/models/test_ffn_memory.py (against what autograd keeps, and torch's
                   count of FLOP)
    """
    matrices = _matrices(ffn)
    again = matrices - 1 if isinstance(ffn.memory, Recompute) else 0
    return FFNCost(
        saved_bytes=number_bytes * d_model + inner_bytes(ffn, number_bytes),
        products=3 * matrices + again,
    )


def inner_bytes(ffn: PlainFFN | GatedFFN, number_bytes: int) -> int:
    """Bytes a token leaves inside the block, its input left out."""
    row = number_bytes * ffn.width
    inputs = _matrices(ffn) - 1
    match ffn.memory:
        case SavePost() if isinstance(ffn, PlainFFN) and ffn.compat != "exact":
            # Differentiated operation by operation: three more results, and a condition of a byte.
            return 5 * row + ffn.width
        case SavePost():
            return (inputs + 1) * row
        case SavePre():
            return inputs * row
        case Recompute():
            return 0
        case FewBit(bits=bits):
            return inputs * row + bits * -(-ffn.width // 8)


def _matrices(ffn: PlainFFN | GatedFFN) -> int:
    return 3 if isinstance(ffn, GatedFFN) else 2


def _attention_matrices(config: DecoderConfig) -> int:
    queries = config.num_heads * config.head_width
    keys = config.num_kv_heads * config.head_width
    return config.d_model * (2 * queries + 2 * keys)


def _ffn_matrices(config: DecoderConfig) -> int:
    return _matrices(config.ffn) * config.d_model * config.ffn.width
