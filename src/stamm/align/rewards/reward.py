"""The protocol of a reward, and what it reads. Tutorial: docs/extending/reward.md"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol, runtime_checkable

from stamm.base.errors import DataError, visible
from stamm.chat.conversation import AssistantTurn, Conversation


@dataclass(frozen=True)
class Answer:
    """A completion to be rewarded.

    prompt       the conversation before it
    completion   the assistant's turn
    row          all columns of the data row, such as a reference answer
    """

    prompt: Conversation
    completion: AssistantTurn
    row: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The text that the user is shown: without thoughts, tool calls and tool outputs."""
        return self.completion.text


@runtime_checkable
class Reward(Protocol):
    """A function of an answer. Higher is better; only the order counts for QRPO.

    name   in records and pages: lower-case letters, digits and _
    """

    name: str

    def __call__(self, answer: Answer) -> float:
        """The reward of an answer, a finite number that depends on the answer alone.

        Raises   DataError for an answer that cannot be judged
        """


@runtime_checkable
class BatchReward(Reward, Protocol):
    """A reward that is faster for many answers at once, such as a model."""

    def many(self, answers: Sequence[Answer]) -> Sequence[float | DataError]:
        """The reward of each answer, in order; DataError for one that cannot be judged.

        A reward does not depend on the other answers, but for rounding.
        """


def rewards_of(reward: Reward, answers: Sequence[Answer]) -> list[float | DataError]:
    """The reward of each answer, in order; DataError for one without a finite reward."""
    if isinstance(reward, BatchReward):
        return [_checked(reward, value) for value in reward.many(answers)]
    rewards: list[float | DataError] = []
    for answer in answers:
        try:
            rewards.append(_checked(reward, reward(answer)))
        except DataError as error:
            rewards.append(error)
    return rewards


def _checked(reward: Reward, value: object) -> float | DataError:
    if isinstance(value, DataError):
        return value
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        shown = visible(repr(value), 80)
        return DataError(f"reward {reward.name} is {shown}, which is not a finite number")
    return float(value)
