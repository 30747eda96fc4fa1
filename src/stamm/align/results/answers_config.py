"""Configuration of the evaluation of an aligned model's answers. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class SampleAnswersConfig:
    """Answers to a few prompts of the data before and after fine-tuning, by the most likely token.

    number           of prompts, of held-out rows where there are any; at most 8
    max_new_tokens   longest answer
    device           "auto" uses a GPU where there is one
    """

    number: int = 2
    max_new_tokens: int = 64
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        validate(
            self,
            ("number", 1 <= self.number <= 8, "must lie in [1, 8]"),
            ("max_new_tokens", self.max_new_tokens >= 1, "must be at least 1"),
        )


@dataclass(frozen=True, kw_only=True)
class AnswersConfig:
    """Comparison of an aligned model's answers with the start model's.

    reward         column of the scored completions with the reward
    reward_name    of the reward that was trained on, on the page
    gold_name      of the reward that training did not see
    ties           how equal rewards count in a quantile, as in `losses.quantile`
    beta           of QRPO with the identity transform, whose optimum is marked; None for others
    draws, seed    of the bootstrap
    confidence     of the intervals
    examples       prompts whose answers are shown side by side
    batch_tokens   of one forward pass
    threads        of torch
    """

    reward: str = "reward"
    reward_name: str = "reward"
    gold_name: str = "gold"
    ties: Literal["le", "mid"] = "mid"
    beta: float | None = None
    draws: int = 2000
    seed: int = 0
    confidence: float = 0.95
    examples: int = 20
    batch_tokens: int = 8192
    threads: int = 1

    def __post_init__(self) -> None:
        validate(
            self,
            ("reward", bool(self.reward), "is empty"),
            ("reward_name", bool(self.reward_name), "is empty"),
            ("gold_name", bool(self.gold_name), "is empty"),
            ("gold_name", self.gold_name != self.reward_name, "is the name of the reward"),
            ("beta", self.beta is None or self.beta > 0, "must be above 0"),
            ("draws", 100 <= self.draws <= 100_000, "must lie in [100, 100000]"),
            ("confidence", 0.5 <= self.confidence < 1, "must lie in [0.5, 1)"),
            ("examples", 0 <= self.examples <= 100, "must lie in [0, 100]"),
            ("batch_tokens", self.batch_tokens >= 1, "must be at least 1"),
            ("threads", self.threads >= 1, "must be at least 1"),
        )
