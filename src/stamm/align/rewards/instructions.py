"""Reward of followed instructions: ids and arguments are columns of each row, as in IFEval.

Checked  tests/unit/align/test_instructions.py
"""

from __future__ import annotations

from stamm.align.rewards.reward import Answer
from stamm.align.rewards.reward_config import Instructions
from stamm.evaluate.instructions import followed, read_instructions


class InstructionReward:
    """See `reward_config.Instructions`."""

    name = "instructions"

    def __init__(self, config: Instructions) -> None:
        self._config = config

    def __call__(self, answer: Answer) -> float:
        """1 or 0, or the share of the row's instructions that are followed."""
        results = self.followed(answer)
        if self._config.count == "all":
            return float(all(results))
        return sum(results) / len(results)

    def followed(self, answer: Answer) -> list[bool]:
        """Whether each of the row's instructions is followed.

        Raises   DataError as `read_instructions` does
        """
        given = read_instructions(answer.row)
        return followed(given, answer.text, loose=self._config.mode == "loose")
