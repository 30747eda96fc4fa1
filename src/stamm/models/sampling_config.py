"""Configuration of sampling. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Settings of sampling: how tokens are drawn.

    temperature      logits are divided by it; 0 takes the most likely token
    top_k            draw among the k most likely tokens; 0: among all
    top_p            draw among the fewest tokens whose probabilities reach it
    max_new_tokens   longest completion, stop token included
    slots            completions that are computed at once
    seed             of the random numbers
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int = 256
    slots: int = 16
    seed: int = 28

    def __post_init__(self) -> None:
        finite = math.isfinite(self.temperature) and self.temperature >= 0
        validate(
            self,
            ("temperature", finite, "must be 0 or a positive number"),
            ("top_k", self.top_k >= 0, "must be 0 or more"),
            ("top_p", 0 < self.top_p <= 1, "must be above 0 and at most 1"),
            ("max_new_tokens", self.max_new_tokens >= 1, "must be at least 1"),
            ("slots", self.slots >= 1, "must be at least 1"),
            ("seed", 0 <= self.seed < 2**64, "must lie in [0, 2^64)"),
        )
