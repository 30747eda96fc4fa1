"""Normalisation. Letters: D width of the last axis."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis.

    Dtypes   the mean and the division in float32, of float64 in float64; the product with the weight
             in the input's dtype, also for a weight of a wider dtype.
    Source   Zhang and Sennrich 2019 (arXiv 1910.07467); rounding order as in transformers' Llama.
    Checked  tests/unit/models/test_oracles.py
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalised `x`, same shape and dtype."""
        wide = x if x.dtype == torch.float64 else x.float()
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight.to(x.dtype) * normal.to(x.dtype)
