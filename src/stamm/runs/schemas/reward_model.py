"""accuracy.json: how often a reward model agrees with preferences that it was not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stamm.base.schema import FieldError


@dataclass(frozen=True, kw_only=True)
class HeldOutShare:
    """A share of pairs, None without any, and its 95 % Wilson interval, as if pairs were independent."""

    share: float | None
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise FieldError("low", "a share of at most high")
        if self.share is not None and not 0 <= self.share <= 1:
            raise FieldError("share", "in 0 to 1")


@dataclass(frozen=True, kw_only=True)
class RewardAccuracyFile:
    """accuracy.json of a reward model.

    pairs           held-out pairs of answers
    accuracy        share whose chosen answer has the larger reward, a tie counting 1/2
    longer          the same of a rule that prefers the answer of more tokens
    ties            pairs whose two rewards are equal
    mean_margin     mean of the chosen minus the rejected reward; None without pairs
    loss_nats       mean of -log sigmoid(chosen - rejected); None without pairs. log 2 is chance
    data_sha256     of the held-out pairs
    model_sha256    of the decoder's weights
    head_sha256     of head.safetensors
    """

    SCHEMA: ClassVar[int] = 1

    pairs: int
    accuracy: HeldOutShare
    longer: HeldOutShare
    ties: int
    mean_margin: float | None
    loss_nats: float | None
    data_sha256: str
    model_sha256: str
    head_sha256: str
