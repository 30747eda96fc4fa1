"""Configuration of the held-out accuracy of a reward model. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class RewardAccuracyConfig:
    """Accuracy of a reward model on held-out pairs.

    batch_tokens   of one forward pass, padding included; a longer answer runs alone
    device         "auto" uses a GPU where there is one
    """

    batch_tokens: int = 16_384
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        validate(self, ("batch_tokens", self.batch_tokens >= 1, "must be at least 1"))
