"""Parameters, FLOPs and saved bytes of a decoder, exact, from its configuration alone.

A test compares them with the module built on the meta device, for every recipe.
"""

from __future__ import annotations

from dataclasses import dataclass

from stamm.models.config import (
    DecoderConfig,
    Dense,
    GatedFFN,
    Linear,
    LowRank,
    PlainFFN,
    Recompute,
    SavePost,
    SavePre,
)


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Trained parameters by part. `head` is 0 when it shares the embedding."""

    embedding: int
    attention: int
    ffn: int
    activation: int
    norms: int
    head: int
    biases: int = 0

    @property
    def total(self) -> int:
        """The sum over all parts."""
        blocks = self.attention + self.biases + self.ffn + self.activation + self.norms
        return self.embedding + blocks + self.head


@dataclass(frozen=True, kw_only=True)
class ForwardFlops:
    """Floating-point operations of one forward pass over one sequence: 2 per multiply-add.

    ffn                all matrices of the feed-forward blocks; a forward pass multiplies every expert
    ffn_active         without those of experts that do not act, as decoding multiplies
    attention          products of queries with keys and of weights with values, all T x T
    attention_causal   the half that a causal kernel needs, diagonal included
    """

    projections: int
    ffn: int
    ffn_active: int
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
        return self.projections + self.ffn_active + self.attention_causal + self.head


def count_parameters(config: DecoderConfig) -> ParameterCount:
    """Trained parameters of a decoder, without those of its guides (`guide_parameters`)."""
    d, e = config.d_model, config.head_width
    shapes = len(config.ffn.spec.trainable) * (config.ffn.neurons or 1)
    qk_norm = 2 * e if config.qk_norm else 0
    return ParameterCount(
        embedding=config.vocab_size * d,
        attention=config.num_layers * _attention_matrices(config),
        ffn=_ffn_parameters(config),
        activation=config.num_layers * shapes,
        norms=config.num_layers * (2 * d + qk_norm) + d,
        head=0 if config.tied_embeddings else config.vocab_size * d,
        biases=config.num_layers
        * config.qkv_bias
        * (config.num_heads + 2 * config.num_kv_heads)
        * e,
    )


def forward_flops(config: DecoderConfig, context: int) -> ForwardFlops:
    """FLOPs of one forward pass over a sequence of `context` tokens, with all logits."""
    pair = 4 * config.num_heads * config.head_width * config.num_layers
    return ForwardFlops(
        projections=2 * context * config.num_layers * _attention_matrices(config),
        ffn=2 * context * _ffn_parameters(config),
        ffn_active=2 * context * _ffn_parameters(config, active=True),
        attention=pair * context * context,
        attention_causal=pair * context * (context + 1) // 2,
        head=2 * context * config.vocab_size * config.d_model,
    )


def training_flops(
    config: DecoderConfig, context: int, *, frozen: int = 0, adapters: int = 0
) -> int:
    """Useful FLOPs of training on one sequence: a forward pass and a backward pass of twice that.

    frozen     parameters of matrices that are not trained: their gradients are not computed
    adapters   parameters of LoRA's matrices

    Without guides: add `guide_flops` for each layer that uses its guides at the step. With experts those
    that do not act, too: training multiplies them, and masks.
    """
    forward = forward_flops(config, context)
    multiplied = forward.useful + forward.ffn - forward.ffn_active
    return 3 * multiplied + 2 * context * (3 * adapters - frozen)


def guide_parameters(config: DecoderConfig) -> int:
    """Parameters of the dense guides, trained with the rest while they exist; 0 without guides."""
    if config.structured.guide is None:
        return 0
    return _guide_parameters(config) * (config.num_layers - config.structured.keep_first)


def guide_flops(config: DecoderConfig, context: int) -> int:
    """FLOPs that the guides of one layer add to training on one sequence, at a step that uses them.

    Forward, and backward of twice that. `guide_draws.guide_uses` counts the layers of a step.

    Checked  tests/unit/models/test_structured.py (against torch's count)
    """
    return 3 * 2 * context * _guide_parameters(config)


@dataclass(frozen=True, kw_only=True)
class FFNCost:
    """Cost of training one feed-forward block under one memory policy.

    saved_bytes   bytes a token saved for the backward pass, with the block's input, without parameters
    products      matrix products of a training step; each of a dense block takes
                  2 * d_model * width FLOPs a token
    flops         of all products, a token
    """

    saved_bytes: int
    products: int
    flops: int


def ffn_cost(d_model: int, ffn: PlainFFN | GatedFFN, number_bytes: int) -> FFNCost:
    """The cost of a feed-forward block under its memory policy, in eager mode.

    number_bytes   size of a number: 2 in bfloat16
    Edge           shape parameters add a few bytes a block. Without a fused kernel, SavePost saves
                   wider copies of `up` for an activation that applies a function to it.
    Checked        tests/unit/models/test_ffn_checkpointing.py (against what autograd keeps, and torch's
                   count of FLOP)
    """
    inputs, width, linear = _matrices(ffn) - 1, ffn.width, ffn.linear
    factors = 1 if isinstance(linear, Dense) else 2
    up, down = linear.parameters(d_model, width), linear.parameters(width, d_model)
    again = again_flops = 0
    if isinstance(ffn.memory, Recompute):
        again, again_flops = inputs * factors, inputs * up
    if isinstance(ffn.memory, (SavePre, Recompute)) and factors == 2:
        # The last product is not recomputed; that of the first factor, before it, is.
        again, again_flops = again + 1, again_flops + _first_factor(linear, width, d_model)
    inner = inner_bytes(ffn, number_bytes) + factor_bytes(d_model, ffn, number_bytes)
    return FFNCost(
        saved_bytes=number_bytes * d_model + inner,
        products=3 * (inputs + 1) * factors + again,
        flops=2 * (3 * (inputs * up + down) + again_flops),
    )


def factor_bytes(d_model: int, ffn: PlainFFN | GatedFFN, number_bytes: int) -> int:
    """Bytes a token saved inside structured matrices, between their factors; 0 in a dense block."""
    up = (_matrices(ffn) - 1) * ffn.linear.between(d_model, ffn.width)
    down = ffn.linear.between(ffn.width, d_model)
    match ffn.memory:
        case Recompute():
            return 0
        case SavePre():
            return number_bytes * up
        case SavePost():
            return number_bytes * (up + down)


def inner_bytes(ffn: PlainFFN | GatedFFN, number_bytes: int) -> int:
    """Bytes a token saved between the block's matrices, without its input."""
    row = number_bytes * ffn.width
    inputs = _matrices(ffn) - 1
    match ffn.memory:
        case SavePost() if isinstance(ffn, PlainFFN) and ffn.compat != "exact":
            # Differentiated operation by operation: three more results, and a condition of one byte.
            return 5 * row + ffn.width
        case SavePost():
            return (inputs + 1) * row
        case SavePre():
            return inputs * row
        case Recompute():
            return 0


def _matrices(ffn: PlainFFN | GatedFFN) -> int:
    return 3 if isinstance(ffn, GatedFFN) else 2


def _attention_matrices(config: DecoderConfig) -> int:
    queries = config.num_heads * config.head_width
    keys = config.num_kv_heads * config.head_width
    return config.d_model * (2 * queries + 2 * keys)


def _ffn_parameters(config: DecoderConfig, *, active: bool = False) -> int:
    return sum(
        _block_parameters(config.d_model, config.ffn_of(layer), active)
        for layer in range(config.num_layers)
    )


def _block_parameters(d_model: int, ffn: PlainFFN | GatedFFN, active: bool) -> int:
    """Parameters of a block's matrices; active: of those that one token is multiplied with."""
    up = ffn.linear.parameters(d_model, ffn.width)
    whole = (_matrices(ffn) - 1) * up + ffn.linear.parameters(ffn.width, d_model)
    if ffn.experts is None:
        return whole
    used = whole * ffn.experts.active // ffn.experts.count if active else whole
    return used + ffn.experts.routed * d_model


def _guide_parameters(config: DecoderConfig) -> int:
    """Parameters of the guides of one layer."""
    if config.structured.guide is None:
        return 0
    return _matrices(config.ffn) * config.d_model * config.ffn.width


def _first_factor(linear: Linear, inputs: int, outputs: int) -> int:
    """Parameters of the first factor of a structured matrix."""
    blocks = 1 if isinstance(linear, (Dense, LowRank)) else linear.blocks
    return linear.between(inputs, outputs) * inputs // blocks
