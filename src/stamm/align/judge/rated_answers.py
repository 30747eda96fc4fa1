"""Answers to be judged: rows of a file, grouped by prompt.

Checked  tests/cli/test_charter_command.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stamm.align.data.dataset_reader import BadRow, read_rows
from stamm.align.data.examples import ChatExample, RatedAnswer, RowOrigin, last_answer
from stamm.align.judge.judge_prompt import answer_text, conversation_text
from stamm.base.errors import DataError
from stamm.base.files import sha256_value
from stamm.chat.conversation import before_last_turn


@dataclass(frozen=True)
class JudgedAnswer:
    """An answer as the judge is shown it, with its row.

    prompt   number of its prompt, from 0
    """

    row: Mapping[str, Any]
    origin: RowOrigin
    prompt: int
    conversation: str
    text: str

    @property
    def subject(self) -> str:
        """The file and the row."""
        return f"{self.origin.file}, row {self.origin.row}"


@dataclass
class AnswerFile:
    """The answers of a file, and the rows without one."""

    answers: list[JudgedAnswer] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)

    @property
    def num_prompts(self) -> int:
        """Distinct prompts."""
        return len({answer.prompt for answer in self.answers})


def read_answers(path: Path) -> AnswerFile:
    """The answers of a file in order; answers to the same conversation share their prompt.

    Raises   DataError when no row has an answer
    """
    found = AnswerFile()
    prompts: dict[str, int] = {}
    for row, example in read_rows(path):
        if isinstance(example, BadRow):
            found.bad.append(example)
            continue
        if isinstance(example, ChatExample):
            whole = example.conversation
            prompt, turn = before_last_turn(whole), last_answer(whole)
        elif isinstance(example, RatedAnswer):
            prompt, turn = example.prompt, example.completion
        else:
            origin = example.origin
            found.bad.append(BadRow(origin.file, origin.row, "the row has no completion"))
            continue
        conversation = conversation_text(prompt)
        key = sha256_value([conversation, [dict(tool) for tool in prompt.tools]])
        number = prompts.setdefault(key, len(prompts))
        answer = JudgedAnswer(row, example.origin, number, conversation, answer_text(turn))
        found.answers.append(answer)
    if not found.answers:
        first = f": {found.bad[0].line()}" if found.bad else ""
        raise DataError(f"{path} has no row with an answer{first}", where="answers")
    return found
