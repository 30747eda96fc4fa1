"""Prompts to sample completions of: rows of a data file, and which of their columns are kept.

Checked  tests/unit/align/test_sample_job.py
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.align.data.dataset_reader import read_rows, truncated_files
from stamm.align.data.examples import ALIASES, prompt_and_answers, unknown_keys
from stamm.align.records import BadRow, truncation_sentence
from stamm.base.console import Progress
from stamm.base.errors import DataError
from stamm.base.known_keys import UnknownKeys
from stamm.chat.conversation import (
    AssistantTurn,
    Conversation,
    read_conversation,
    to_messages,
)
from stamm.chat.formats import ChatFormat
from stamm.models.sampling import Sampled

NOT_KEPT = frozenset(
    {
        *("messages", "prompt", "completion", "chosen", "rejected", "label", "reward", "rewards"),
        *("chosen_reward", "rejected_reward", "chosen_rewards", "rejected_rewards", "ref_rewards"),
        *("score_chosen", "score_rejected", "id", "tools", "deliberation", "sample", "log_prob"),
        *("sampled_log_prob", "num_tokens", "stopped", "token_ids"),
        *("instruction", "input", "output", "history"),
        *(alias for name, aliases in ALIASES.items() if name != "licence" for alias in aliases),
    }
)
"""Columns of a prompt's row that its completions do not have, or have with another content."""
LONGEST_NAME = 100
BAD_ROWS = "bad_rows.jsonl"
TOO_LONG, NOT_WRITABLE = "too_long", "not_writable"


@dataclass(frozen=True, kw_only=True)
class SamplePrompt:
    """A prompt with its place and the columns that its completions get.

    columns   what `kept_columns` keeps of the row
    """

    file: str
    row: int
    id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    deliberation: bool
    columns: dict[str, Any]

    @property
    def conversation(self) -> Conversation:
        """The conversation that the model is to continue."""
        return read_conversation(self.messages, tools=self.tools, deliberation=self.deliberation)


def read_prompts(path: Path, unknown: UnknownKeys | None = None) -> Iterator[SamplePrompt | BadRow]:
    """The prompts of a file; of a row with an answer, the conversation before the last turn.

    unknown   counts the keys of messages and tools that are not used; columns of rows are kept

    Raises   as `read_rows`
    """
    for row, example in read_rows(path):
        if unknown is not None:
            unknown.add(key for key in unknown_keys(row) if ": " in key)
        if isinstance(example, BadRow):
            yield example
            continue
        conversation, _ = prompt_and_answers(example)
        yield SamplePrompt(
            file=example.origin.file,
            row=example.origin.row,
            id=example.origin.id,
            messages=to_messages(conversation.system, conversation.turns),
            tools=[dict(tool) for tool in conversation.tools] or None,
            deliberation=conversation.deliberation,
            columns=kept_columns(row),
        )


def log_unanswered(bad: Sequence[BadRow], unknown: UnknownKeys, progress: Progress) -> None:
    """Log how many rows are not answered, files that end in the middle, and keys that are not used."""
    for line in (
        f"{len(bad):,} rows are not answered, the first is {bad[0].line()}. {BAD_ROWS} names each."
        if bad
        else "",
        truncation_sentence(truncated_files(bad)),
        unknown.sentence("prompts"),
    ):
        if line:
            progress.log(line)


def encoded_prompt(
    prompt: SamplePrompt, chat: ChatFormat, context: int, answer: int = 1
) -> list[int] | BadRow:
    """The ids of a prompt, or why it gets no completion.

    answer   tokens of the context that are left for it
    """
    try:
        ids = list(chat.encode(prompt.conversation, prompt=True).ids)
    except DataError as error:
        return BadRow(prompt.file, prompt.row, error.line().rstrip("."), NOT_WRITABLE)
    if len(ids) + answer <= context:
        return ids
    reason = f"the prompt has {len(ids)} tokens, and the model's context {context}"
    if answer > 1:
        reason += f", of which sampling.max_new_tokens = {answer} are left for the answer"
    return BadRow(prompt.file, prompt.row, reason, TOO_LONG)


def completion_row(
    prompt: SamplePrompt, found: Sampled, n: int, chat: ChatFormat
) -> dict[str, Any]:
    """The row of a completion; docs/alignment/sampling.md has its columns."""
    return {
        "id": prompt.id,
        "prompt": prompt.messages,
        "tools": prompt.tools,
        "deliberation": prompt.deliberation,
        "completion": to_messages(None, [AssistantTurn(chat.parse(found.tokens))]),
        "sample": found.request % n,
        "log_prob": found.log_prob,
        "sampled_log_prob": found.sampled_log_prob,
        "num_tokens": len(found.tokens),
        "stopped": found.stopped,
        "token_ids": found.tokens,
        **prompt.columns,
    }


def kept_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that rewards may read: all but those of `NOT_KEPT`, null, and what JSON cannot store."""
    return {
        name: value
        for name, value in row.items()
        if name not in NOT_KEPT
        and len(name) <= LONGEST_NAME
        and _is_writable(name)
        and value is not None
        and _is_writable(value)
    }


def _is_writable(value: object) -> bool:
    """Whether JSON can store a value."""
    if isinstance(value, str):
        # Half of a surrogate pair cannot be stored.
        return not any("\ud800" <= c <= "\udfff" for c in value)
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list):
        return all(map(_is_writable, value))
    if isinstance(value, dict):
        return all(
            isinstance(n, str) and _is_writable(n) and _is_writable(v) for n, v in value.items()
        )
    return value is None or isinstance(value, bool | int)
