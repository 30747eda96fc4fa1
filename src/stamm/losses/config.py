"""Configuration of loss masks: Goldfish, and the rule at document borders. No numpy here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from stamm.base.config import validate

Rule = Literal["stamm", "released", "report"]
"""Loss mask at document borders: see `losses.loss_mask`."""


@dataclass(frozen=True, kw_only=True)
class Goldfish:
    """Goldfish loss: one token in `k` is masked, by a hash of the last `h` tokens, itself included.

    hash   "stamm": order-sensitive, never across a document border, ids salted, modulo 2^64.
           "apertus": the released code bit for bit, with its defect: the product of h ids wraps
           to 0 for 19 to 34 % of real windows, which are then never masked, so that 1.15 to
           1.45 % of tokens are dropped instead of 2 %.
    """

    MAIN_FIELD: ClassVar = "k"

    k: int = 50
    h: int = 50
    hash: Literal["stamm", "apertus"] = "stamm"
    salt: int = 0

    def __post_init__(self) -> None:
        validate(
            self,
            ("k", self.k >= 2, "must be at least 2: with 1 every token would be dropped"),
            ("h", self.h >= 1, "must be at least 1"),
            ("salt", 0 <= self.salt < 2**64, "must lie in [0, 2^64)"),
        )
