"""Rotary positions. Letters: B batch, H heads, T tokens, E head width."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stamm.models.config import Llama3Rope, PlainRope


def inverse_frequencies(config: PlainRope | Llama3Rope, head_width: int) -> Tensor:
    """Radians per token for each rotated pair, float32, shape (head_width / 2,).

    Plain: theta^(-2i/E). Llama 3: wavelengths beyond original_context / low_frequency_factor are
    stretched by `factor`, those below original_context / high_frequency_factor are kept, and
    those between are blended linearly in original_context / wavelength.

    Checked  tests/unit/models/test_decoder.py::test_rope_frequencies_equal_transformers
    """
    exponent = torch.arange(0, head_width, 2, dtype=torch.float32) / head_width
    plain = 1.0 / (config.theta**exponent)
    if isinstance(config, PlainRope):
        return plain
    wavelength = 2 * math.pi / plain
    turns = config.original_context / wavelength
    low, high = config.low_frequency_factor, config.high_frequency_factor
    kept_share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    blended = (1 - kept_share) * plain / config.factor + kept_share * plain
    long = torch.where(turns < low, plain / config.factor, plain)
    between = (turns >= low) & (turns <= high)
    return torch.where(between, blended, long)


def rotation(inverse: Tensor, start: int, length: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, shape (length, E), float32.

    Positions count from `start`. They are not restarted inside a packed sequence: only
    differences of positions enter attention, and documents do not attend to one another.
    """
    position = torch.arange(start, start + length, device=inverse.device, dtype=torch.float32)
    angle = torch.outer(position, inverse)
    both = torch.cat((angle, angle), dim=-1)
    return both.cos(), both.sin()


def rotate(x_BHTE: Tensor, cosine_TE: Tensor, sine_TE: Tensor) -> Tensor:
    """`x` with each pair (i, i + E/2) turned by its position's angle; same shape and dtype."""
    first, second = x_BHTE.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x_BHTE * cosine_TE.to(x_BHTE.dtype) + turned * sine_TE.to(x_BHTE.dtype)
