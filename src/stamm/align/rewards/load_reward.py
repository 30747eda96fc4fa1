"""Load the reward that a configuration names, alone or several as a weighted sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stamm.align.rewards.code import CodeReward
from stamm.align.rewards.config import (
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
from stamm.align.rewards.reward import Answer, BatchReward, Reward, rewards_of
from stamm.align.rewards.rules import (
    InstructionReward,
    JsonReward,
    LanguageReward,
    LengthReward,
    NotMemorizedReward,
    NumberReward,
    StoppedReward,
)
from stamm.base.errors import ConfigError, DataError
from stamm.base.user_code import guarded, load_named, load_reference, source_file


class UserReward:
    """See `config.CustomReward`; a DataError of the user's is one answer without a reward."""

    def __init__(self, reward: Reward, reference: str) -> None:
        self.name = reward.name
        self._reward = reward
        self._file = source_file(reference, type(reward))

    def __call__(self, answer: Answer) -> float:
        """The user's reward, unchecked."""
        value: float = guarded(self._file, lambda: self._reward(answer), (DataError,))
        return value


class UserBatchReward(UserReward):
    """A user's reward with a method `many`."""

    def __init__(self, reward: BatchReward, reference: str) -> None:
        super().__init__(reward, reference)
        self._batch = reward

    def many(self, answers: Sequence[Answer]) -> Sequence[float | DataError]:
        """The user's rewards, unchecked but for their number."""
        values: list[float | DataError] = guarded(
            self._file, lambda: list(self._batch.many(answers))
        )
        if len(values) != len(answers):
            raise ConfigError(
                f"{self.name}.many returned {len(values)} rewards for {len(answers)} answers",
                where=str(self._file),
                fix="Return one per answer, in order",
            )
        return values


def load_user_reward(reference: str, reserved: Sequence[str]) -> UserReward:
    """The reward that `reference` names.

    reserved   names of built-in rewards
    Raises     ConfigError when it cannot be loaded or has no usable name.
    """
    reward = load_named(
        reference, Reward, "a reward", names="rewards in records", reserved=reserved
    )
    if isinstance(reward, BatchReward):
        return UserBatchReward(reward, reference)
    return UserReward(reward, reference)


def load_reward(config: RewardConfig) -> Reward:
    """The reward that a configuration names.

    Raises   ConfigError when a user's cannot be loaded, DataError when a file cannot be read.
    """
    return WeightedReward(config) if isinstance(config, Weighted) else _single(config)


class WeightedReward:
    """See `config.Weighted`."""

    name = "weighted"

    def __init__(self, config: Weighted) -> None:
        self._parts = tuple(_single(part) for part in config.rewards)
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


_RULES = (
    *(NumberReward, JsonReward, LengthReward, LanguageReward, InstructionReward),
    *(NotMemorizedReward, StoppedReward, CodeReward, WeightedReward),
)
# Names of the built-in rewards, which a user's reward cannot use.
_NAMES: tuple[str, ...] = (*(reward.name for reward in _RULES), "reward_model")
# A reward model is loaded when it is named: rules need no torch.
_REWARD_MODEL = "stamm.align.training.reward_model:RewardModel"
_BUILT_IN: Mapping[type[SingleReward], Callable[[Any], Reward]] = {
    Number: NumberReward,
    JsonFormat: JsonReward,
    Length: LengthReward,
    Language: LanguageReward,
    Instructions: InstructionReward,
    NotMemorized: NotMemorizedReward,
    Stopped: lambda config: StoppedReward(),
    Code: CodeReward,
    ModelReward: lambda config: load_reference(_REWARD_MODEL, None, "a reward model").load(
        config.run
    ),
    CustomReward: lambda config: load_user_reward(config.reference, _NAMES),
}


def _single(config: SingleReward) -> Reward:
    return _BUILT_IN[type(config)](config)
