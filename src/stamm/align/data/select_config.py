"""Configuration of the selection of sampled answers to train on. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class SelectConfig:
    """Training examples from scored completions of each prompt.

    take         "best_worst": the best and the worst candidate of a prompt as a pair; "all": every
                 candidate as a single rated answer
    candidates   completions of a prompt to choose among, the first ones; the others are its
                 references, so that no answer is compared with itself and the best of the candidates
                 is not ranked among those it was chosen from
    """

    take: Literal["best_worst", "all"] = "best_worst"
    candidates: int = 4

    def __post_init__(self) -> None:
        least = 2 if self.take == "best_worst" else 1
        validate(self, ("candidates", self.candidates >= least, f"must be at least {least}"))
