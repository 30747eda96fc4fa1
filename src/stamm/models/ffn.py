"""Feed-forward blocks: plain or gated, any activation, dense or structured matrices."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from stamm.activations.module import Activation, GatedActivation, build_activation
from stamm.models.config import GatedFFN, PlainFFN
from stamm.models.experts import Router
from stamm.models.ffn_checkpointing import feed_forward
from stamm.models.linear import build_linear


class PlainFeedForward(nn.Module):
    """down(f(up(x))); the activation module is not shared between layers."""

    def __init__(self, d_model: int, config: PlainFFN) -> None:
        super().__init__()
        self.up_proj = build_linear(config.linear, d_model, config.width)
        self.down_proj = build_linear(config.linear, config.width, d_model)
        self.act_fn = ffn_activation(config)
        self.router = Router(d_model, config.experts) if config.experts else None
        self.memory = config.memory

    def forward(self, x: Tensor, epsilon: float | None = None) -> Any:
        """The block's output, same shape as `x`; with `epsilon` also the density of its units, (...)."""
        after = (self.act_fn, self.down_proj, self.memory, self.router)
        return feed_forward(x, [self.up_proj], *after, epsilon)


class GatedFeedForward(nn.Module):
    """down(f(gate(x), up(x)))."""

    def __init__(self, d_model: int, config: GatedFFN) -> None:
        super().__init__()
        self.gate_proj = build_linear(config.linear, d_model, config.width)
        self.up_proj = build_linear(config.linear, d_model, config.width)
        self.down_proj = build_linear(config.linear, config.width, d_model)
        self.act_fn = ffn_activation(config)
        self.router = Router(d_model, config.experts) if config.experts else None
        self.memory = config.memory

    def forward(self, x: Tensor, epsilon: float | None = None) -> Any:
        """The block's output, same shape as `x`; with `epsilon` also the density of its units, (...)."""
        after = (self.act_fn, self.down_proj, self.memory, self.router)
        return feed_forward(x, [self.gate_proj, self.up_proj], *after, epsilon)


def build_ffn(d_model: int, config: PlainFFN | GatedFFN) -> nn.Module:
    """The feed-forward block that `config` describes."""
    if isinstance(config, GatedFFN):
        return GatedFeedForward(d_model, config)
    return PlainFeedForward(d_model, config)


def ffn_activation(config: PlainFFN | GatedFFN) -> Activation | GatedActivation:
    """A new activation module of the block that `config` describes."""
    return build_activation(
        config.activation,
        compat=config.compat if isinstance(config, PlainFFN) else "exact",
        neurons=config.neurons,
        precision=config.precision,
    )
