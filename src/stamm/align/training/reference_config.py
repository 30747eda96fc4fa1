"""Configuration of reference log-probabilities. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class ReferenceConfig:
    """Log-probabilities of prepared answers under the model that training starts from.

    batch_tokens        of one forward pass, padding included
    device              "auto" uses a GPU where there is one, by one process
    answers_per_shard   answers that are computed and proven together
    mismatched          also of prompts with answers to others, for KTO
    """

    batch_tokens: int = 16_384
    answers_per_shard: int = 4096
    mismatched: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        validate(
            self,
            ("batch_tokens", self.batch_tokens >= 1, "must be at least 1"),
            ("answers_per_shard", self.answers_per_shard >= 1, "must be at least 1"),
        )
