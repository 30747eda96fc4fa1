"""The feed-forward block: any activation of the catalogue, plain or gated."""

from __future__ import annotations

from torch import Tensor, nn

from stamm.activations.module import build_activation
from stamm.models.config import GatedFFN, PlainFFN


class PlainFeedForward(nn.Module):
    """down(f(up(x))), with an activation module of its own (never shared between layers)."""

    def __init__(self, d_model: int, config: PlainFFN) -> None:
        super().__init__()
        self.up_proj = nn.Linear(d_model, config.width, bias=False)
        self.down_proj = nn.Linear(config.width, d_model, bias=False)
        self.act_fn = build_activation(
            config.activation, compat=config.compat, precision=config.precision
        )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, same shape as `x`."""
        y: Tensor = self.down_proj(self.act_fn(self.up_proj(x)))
        return y


class GatedFeedForward(nn.Module):
    """down(f(gate(x), up(x)))."""

    def __init__(self, d_model: int, config: GatedFFN) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, config.width, bias=False)
        self.up_proj = nn.Linear(d_model, config.width, bias=False)
        self.down_proj = nn.Linear(config.width, d_model, bias=False)
        self.act_fn = build_activation(config.activation, precision=config.precision)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, same shape as `x`."""
        y: Tensor = self.down_proj(self.act_fn(self.gate_proj(x), self.up_proj(x)))
        return y


def build_ffn(d_model: int, config: PlainFFN | GatedFFN) -> nn.Module:
    """The feed-forward block that `config` describes."""
    if isinstance(config, GatedFFN):
        return GatedFeedForward(d_model, config)
    return PlainFeedForward(d_model, config)
