"""A reward of the user's own, "mine.py:MyReward": what it raises names the line of the user's file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stamm.align.rewards.reward import Answer, BatchReward, Reward
from stamm.base.errors import ConfigError, DataError
from stamm.base.user_code import guarded, load_named, source_file


class UserReward:
    """See `reward_config.CustomReward`; a DataError of the user's is one answer without a reward."""

    def __init__(self, reward: Reward, reference: str) -> None:
        self.name = reward.name
        self._reward = reward
        self._file = source_file(reference, type(reward))

    def __call__(self, answer: Answer) -> float:
        """The user's reward, unchecked."""

        def run() -> float | DataError:
            try:
                return self._reward(answer)
            except DataError as error:
                return error

        value: Any = guarded(self._file, run)
        if isinstance(value, DataError):
            raise value
        return value  # type: ignore[no-any-return]


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
    found = load_named(reference, Reward, "a reward", names="rewards in records", reserved=reserved)
    if isinstance(found, BatchReward):
        return UserBatchReward(found, reference)
    return UserReward(found, reference)
