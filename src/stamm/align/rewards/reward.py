"""The protocol of a reward, and what it reads. Tutorial: docs/extending/reward.md"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from stamm.chat.conversation import AssistantTurn, Conversation, Response


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
        return "".join(
            block.text for block in self.completion.blocks if isinstance(block, Response)
        )


@runtime_checkable
class Reward(Protocol):
    """A function of an answer. Higher is better; only the order counts for QRPO.

    name   in records and pages: lower-case letters, digits and _
    """

    name: str

    def __call__(self, answer: Answer) -> float:
        """The reward of an answer, a finite number that depends on the answer alone."""
