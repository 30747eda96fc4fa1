"""Load the reward that a configuration names, alone or several as a weighted sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stamm.align.rewards.code import CodeReward
from stamm.align.rewards.instructions import InstructionReward
from stamm.align.rewards.memorized import NotMemorizedReward
from stamm.align.rewards.reward import Answer, Reward, rewards_of
from stamm.align.rewards.reward_config import (
    Code,
    CustomReward,
    Instructions,
    JsonFormat,
    Language,
    Length,
    ModelReward,
    NotMemorized,
    Number,
    RewardConfig,
    SingleReward,
    Stopped,
    Weighted,
)
from stamm.align.rewards.rules import (
    JsonReward,
    LanguageReward,
    LengthReward,
    NumberReward,
    StoppedReward,
)
from stamm.align.rewards.user_reward import load_user_reward
from stamm.base.errors import DataError
from stamm.base.user_code import load_reference

BUILT_IN_NAMES = (
    "number",
    "json_format",
    "length",
    "language",
    "instructions",
    "not_memorized",
    "stopped",
    "code",
    "reward_model",
    "weighted",
)
"""Names of the built-in rewards, which a user's reward cannot have."""

# Loaded when it is named: rules need no torch.
_REWARD_MODEL = "stamm.align.rewards.reward_model:RewardModel"


class LoadsReward(Protocol):
    """A class of rewards that are read from a run folder."""

    @classmethod
    def load(cls, run: str) -> Reward:
        """The reward in the folder `run`."""


def load_reward(config: RewardConfig) -> Reward:
    """The reward that a configuration names.

    Raises   ConfigError when a user's cannot be loaded, DataError when a file cannot be read.
    """
    return WeightedReward(config) if isinstance(config, Weighted) else _single(config)


class WeightedReward:
    """See `reward_config.Weighted`."""

    name = "weighted"

    def __init__(self, config: Weighted) -> None:
        self._parts = tuple(_single(each) for each in config.rewards)
        weights = config.weights or (1.0,) * len(self._parts)
        total = sum(weights) if config.combine == "mean" else 1.0
        self._weights = tuple(weight / total for weight in weights)

    def __call__(self, answer: Answer) -> float:
        """The weighted sum."""
        (value,) = self.many((answer,))
        if isinstance(value, DataError):
            raise value
        return value

    def many(self, answers: Sequence[Answer]) -> list[float | DataError]:
        """The weighted sum of each answer; the first part's error for one without a reward."""
        columns = [rewards_of(part, answers) for part in self._parts]
        return [self._sum(row) for row in zip(*columns, strict=True)]

    def _sum(self, values: Sequence[float | DataError]) -> float | DataError:
        total = 0.0
        for weight, value in zip(self._weights, values, strict=True):
            if isinstance(value, DataError):
                return value
            total += weight * value
        return total


def _single(config: SingleReward) -> Reward:
    match config:
        case Number():
            return NumberReward(config)
        case JsonFormat():
            return JsonReward(config)
        case Length():
            return LengthReward(config)
        case Language():
            return LanguageReward(config)
        case Instructions():
            return InstructionReward(config)
        case NotMemorized():
            return NotMemorizedReward(config)
        case Stopped():
            return StoppedReward()
        case Code():
            return CodeReward(config)
        case ModelReward():
            model: type[LoadsReward] = load_reference(_REWARD_MODEL, None, "a reward model")
            return model.load(config.run)
        case CustomReward():
            return load_user_reward(config.reference, BUILT_IN_NAMES)
