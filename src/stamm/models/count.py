"""Exact counts of a decoder from its configuration alone: parameters by part and floating-point work.

A test compares both with the module built on the meta device, for every recipe.
"""

from __future__ import annotations

from dataclasses import dataclass

from stamm.activations import catalog
from stamm.models.config import DecoderConfig, GatedFFN


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


def _attention_matrices(config: DecoderConfig) -> int:
    queries = config.num_heads * config.head_width
    keys = config.num_kv_heads * config.head_width
    return config.d_model * (2 * queries + 2 * keys)


def _ffn_matrices(config: DecoderConfig) -> int:
    matrices = 3 if isinstance(config.ffn, GatedFFN) else 2
    return matrices * config.d_model * config.ffn.width
