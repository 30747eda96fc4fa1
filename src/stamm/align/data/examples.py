"""Rows of alignment data as typed examples, in the column conventions of TRL and one of our own.

    messages                                  a conversation                        `ChatExample`
    prompt, completion                        a conversation in two parts           `ChatExample`
    prompt (optional), chosen, rejected       two answers to one prompt             `PreferencePair`
    the same with chosen_reward,              and their rewards, and those of
    rejected_reward, ref_rewards              reference completions
    prompt, completion, label                 an answer with reward 1 or 0          `RatedAnswer`
    prompt, completion, reward, ref_rewards   an answer with its reward, and those  `RatedAnswer`
                                              of reference completions
    prompt                                    a prompt alone                        `PromptExample`

Each part is a list of messages or a string; a string is one message, of the user in a prompt and of
the assistant in a completion; chosen and rejected may begin with the prompt. `tools`, `deliberation`, `id`, `source` and `licence` (or "license") are
read where a row has them. Rewards of a pair may also be called chosen_rewards or score_chosen, and
rejected_rewards or score_rejected. Other columns are ignored.

Source   TRL documentation, "Dataset formats and types" (trl 1.16)
Checked  tests/unit/align/test_examples.py
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stamm.base.errors import DataError
from stamm.chat.conversation import AssistantTurn, Conversation, read_conversation
from stamm.corpus.records import clean_field, whole_text


@dataclass(frozen=True, kw_only=True)
class RowOrigin:
    """Where a row comes from, for the ledger.

    file, row   the file and the line (JSONL) or row (Parquet), from 1
    id          the row's own identifier, "" when it has none
    """

    file: str
    row: int
    id: str = ""
    source: str = ""
    licence: str = ""


@dataclass(frozen=True)
class ChatExample:
    """A conversation to learn from, its last turn the assistant's."""

    origin: RowOrigin
    conversation: Conversation


@dataclass(frozen=True)
class PreferencePair:
    """Two answers to a prompt, the first preferred.

    chosen_reward, rejected_reward   None: the row has none
    ref_rewards                      as in RatedAnswer
    """

    origin: RowOrigin
    prompt: Conversation
    chosen: AssistantTurn
    rejected: AssistantTurn
    chosen_reward: float | None = None
    rejected_reward: float | None = None
    ref_rewards: tuple[float, ...] = field(default=())


@dataclass(frozen=True)
class RatedAnswer:
    """An answer to a prompt with its reward.

    ref_rewards   rewards of completions that the reference model gave to the same prompt
    """

    origin: RowOrigin
    prompt: Conversation
    completion: AssistantTurn
    reward: float
    ref_rewards: tuple[float, ...] = field(default=())


@dataclass(frozen=True)
class PromptExample:
    """A prompt to be answered."""

    origin: RowOrigin
    prompt: Conversation


Example = ChatExample | PreferencePair | RatedAnswer | PromptExample

COLUMNS: tuple[tuple[frozenset[str], type[Example]], ...] = (
    (frozenset({"messages"}), ChatExample),
    (frozenset({"chosen", "rejected"}), PreferencePair),
    (frozenset({"prompt", "completion", "reward"}), RatedAnswer),
    (frozenset({"prompt", "completion", "label"}), RatedAnswer),
    (frozenset({"prompt", "completion"}), ChatExample),
    (frozenset({"prompt"}), PromptExample),
)
"""Columns that decide what a row is, tried in this order."""

CHOSEN_REWARD = ("chosen_reward", "chosen_rewards", "score_chosen")
REJECTED_REWARD = ("rejected_reward", "rejected_rewards", "score_rejected")
"""Names of the rewards of a pair; the first that a row has is read."""


def read_example(row: object, origin: RowOrigin, *, empty_answers: bool = False) -> Example:
    """The example of a row.

    empty_answers   whether the answer may have no content, as completions that are scored

    Raises   DataError naming the column that is wrong.
    """
    if not isinstance(row, Mapping):
        raise DataError("the row is not an object")
    present = {name for name, value in row.items() if value is not None}
    kind = next((kind for columns, kind in COLUMNS if columns <= present), None)
    if kind is None:
        shown = ", ".join(sorted(map(str, present))[:8])
        raise DataError(
            f"no known combination of columns: {shown}",
            fix="Use messages; prompt and completion; or chosen and rejected",
        )
    origin = replace(
        origin,
        id=row_text(row, "id"),
        source=row_text(row, "source"),
        licence=row_text(row, "licence") or row_text(row, "license"),
    )
    if kind is ChatExample:
        return _dialogue(row, origin, empty_answers)
    if kind is PreferencePair:
        return _pair(row, origin, empty_answers)
    if kind is RatedAnswer:
        return _rated(row, origin, empty_answers)
    return PromptExample(origin, _prompt(_messages(row, "prompt", "user"), row))


def row_text(row: Mapping[str, Any], column: str) -> str:
    """A text column of a row, cleaned and cut at 4,096 characters; "" without one.

    Edge   a whole number is a text, as identifiers of public data sets are
    """
    value = row.get(column)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return clean_field(whole_text(value)) if isinstance(value, str) else ""


def last_answer(conversation: Conversation) -> AssistantTurn:
    """The last turn of a conversation, which must be the assistant's.

    Raises   DataError when it is the user's.
    """
    last = conversation.turns[-1] if conversation.turns else None
    if not isinstance(last, AssistantTurn):
        raise DataError("the conversation does not end with the assistant")
    return last


def _dialogue(row: Mapping[str, Any], origin: RowOrigin, empty: bool) -> ChatExample:
    if "messages" in row and row["messages"] is not None:
        messages = _messages(row, "messages", "user")
    else:
        messages = _messages(row, "prompt", "user") + _messages(row, "completion", "assistant")
    conversation = _read(messages, row, empty)
    last_answer(conversation)
    return ChatExample(origin, conversation)


def _pair(row: Mapping[str, Any], origin: RowOrigin, empty: bool) -> PreferencePair:
    chosen = _messages(row, "chosen", "assistant")
    rejected = _messages(row, "rejected", "assistant")
    if row.get("prompt") is not None:
        prompt = _messages(row, "prompt", "user")
        count = len(prompt)
        if chosen[:count] == prompt == rejected[:count]:
            chosen, rejected = chosen[count:], rejected[count:]
    else:
        shared = 0
        while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
            shared += 1
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    start, better = _split(prompt, chosen, row, "chosen", empty)
    _, worse = _split(prompt, rejected, row, "rejected", empty)
    if better == worse:
        raise DataError("chosen and rejected are the same answer")
    chosen_reward, rejected_reward = _first(row, CHOSEN_REWARD), _first(row, REJECTED_REWARD)
    if (chosen_reward is None) != (rejected_reward is None):
        raise DataError("one answer of the pair has a reward, and the other has none")
    references = _references(row)
    return PreferencePair(origin, start, better, worse, chosen_reward, rejected_reward, references)


def _rated(row: Mapping[str, Any], origin: RowOrigin, empty: bool) -> RatedAnswer:
    prompt = _messages(row, "prompt", "user")
    completion = _messages(row, "completion", "assistant")
    start, answer = _split(prompt, completion, row, "completion", empty)
    if row.get("reward") is None:
        if not isinstance(row["label"], bool):
            raise DataError("label is not true or false")
        return RatedAnswer(origin, start, answer, float(row["label"]))
    return RatedAnswer(origin, start, answer, _reward(row["reward"], "reward"), _references(row))


def _references(row: Mapping[str, Any]) -> tuple[float, ...]:
    references = row.get("ref_rewards") or ()
    if not isinstance(references, Sequence) or isinstance(references, str):
        raise DataError("ref_rewards is not a list of numbers")
    return tuple(_reward(each, "ref_rewards") for each in references)


def _split(
    prompt: list[Any], answer: list[Any], row: Mapping[str, Any], column: str, empty: bool
) -> tuple[Conversation, AssistantTurn]:
    """The prompt and the one assistant's turn that `answer` is.

    Raises   DataError when `answer` is empty or holds turns of the user.
    """
    start = _prompt(prompt, row)
    whole = _read(prompt + answer, row, empty) if answer else start
    if len(whole.turns) != len(start.turns) + 1 or not isinstance(whole.turns[-1], AssistantTurn):
        raise DataError(f"{column} is not exactly one answer of the assistant")
    return start, whole.turns[-1]


def _prompt(messages: list[Any], row: Mapping[str, Any]) -> Conversation:
    conversation = _read(messages, row)
    if conversation.turns and isinstance(conversation.turns[-1], AssistantTurn):
        raise DataError("the prompt does not end with the user")
    return conversation


def _read(messages: list[Any], row: Mapping[str, Any], empty: bool = False) -> Conversation:
    return read_conversation(
        messages,
        tools=row.get("tools"),
        deliberation=row.get("deliberation") is True,
        empty_answer=empty,
    )


def _messages(row: Mapping[str, Any], column: str, role: str) -> list[Any]:
    """The messages of a column; a string is one message of `role`."""
    value = row[column]
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, Sequence):
        raise DataError(f"{column} is neither text nor a list of messages")
    return list(value)


def _first(row: Mapping[str, Any], names: Sequence[str]) -> float | None:
    """The first reward of `names` that the row has."""
    found = (_reward(row[name], name) for name in names if row.get(name) is not None)
    return next(found, None)


def _reward(value: object, column: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{column} holds {value!r}, which is not a finite number")
    return float(value)
