"""Configuration of the evaluation of an aligned model's answers. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from stamm.base.bounds import AtLeastOne, Positive, Seed, Text, Threads, not_empty, within
from stamm.base.config import Bounded, validate


@dataclass(frozen=True, kw_only=True)
class SampleAnswersConfig(Bounded):
    """Answers to a few prompts of the data before and after fine-tuning, by the most likely token.

    number           of prompts, of held-out rows where there are any; at most 8
    max_new_tokens   longest answer
    device           "auto" uses a GPU where there is one
    """

    number: Annotated[int, within("[1, 8]")] = 2
    max_new_tokens: AtLeastOne = 64
    device: Literal["auto", "cpu", "cuda"] = "auto"


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

    reward: Text = "reward"
    reward_name: Text = "reward"
    gold_name: Text = "gold"
    ties: Literal["le", "mid"] = "mid"
    beta: Positive | None = None
    draws: Annotated[int, within("[100, 100000]")] = 2000
    seed: Seed = 0
    confidence: Annotated[float, within("[0.5, 1)")] = 0.95
    examples: Annotated[int, within("[0, 100]")] = 20
    batch_tokens: AtLeastOne = 8192
    threads: Threads = 1

    def __post_init__(self) -> None:
        validate(
            self, ("gold_name", self.gold_name != self.reward_name, "is the name of the reward")
        )


@dataclass(frozen=True, kw_only=True)
class ArmCandidates(Bounded):
    """Settings of one objective that are compared.

    name       of the arm
    settings   of each candidate, as on the command line: (("schedule.peak=1e-4",), ...)
    """

    name: str
    settings: Annotated[tuple[tuple[str, ...], ...], not_empty()]


@dataclass(frozen=True, kw_only=True)
class ChooseConfig:
    """Choice of the settings with the highest mean reward; the first of equals.

    arms   the candidates of each objective
    """

    arms: tuple[ArmCandidates, ...] = ()
