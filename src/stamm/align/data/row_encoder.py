"""Encode typed rows with a chat format: ids, loss mask, prompt length and rewards of each answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from stamm.align.data.encoded import CHAT, CHOSEN, RATED, REJECTED, EncodedAnswer
from stamm.align.data.examples import (
    KIND_OF,
    ChatExample,
    Example,
    PreferencePair,
    PromptExample,
    RatedAnswer,
)
from stamm.base.errors import DataError
from stamm.chat.conversation import (
    AssistantTurn,
    Conversation,
    Response,
    Thoughts,
    ToolCalls,
    UserTurn,
    one_turn_each,
)
from stamm.chat.formats import ChatFormat

TOO_LONG, NO_LOSS_TOKENS, EMPTY_ANSWER, BAD_ROW = (
    "too_long",
    "no_loss_tokens",
    "empty_answer",
    "bad_row",
)
DEFECTS = (BAD_ROW, EMPTY_ANSWER, TOO_LONG, NO_LOSS_TOKENS)
"""Reasons that stop the run with bad_rows="stop"; the others are decisions of the configuration."""


class RowDropError(DataError):
    """A row that is not kept: its reason in the ledger, and the detail."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


SAMPLED_IDS = {RATED: "token_ids", CHOSEN: "chosen_token_ids", REJECTED: "rejected_token_ids"}
"""Columns with the ids that a model sampled, by the role of the answer."""


def sampled_ids(row: Mapping[str, Any]) -> dict[str, list[int]]:
    """The sampled ids of a row's answers by role; {} for a row without them.

    Raises   RowDropError for a column that is not a list of token ids
    """
    found = {}
    for role, column in SAMPLED_IDS.items():
        ids = row.get(column)
        if ids is None:
            continue
        if not isinstance(ids, list) or not all(type(each) is int and each >= 0 for each in ids):
            raise RowDropError(BAD_ROW, f"{column} is not a list of token ids")
        found[role] = ids
    return found


def encode_row(
    row: Example,
    chat: ChatFormat,
    context: int,
    number: int,
    licence: str,
    sampled: Mapping[str, list[int]] | None = None,
) -> list[EncodedAnswer]:
    """The answers of a row: the chosen and the rejected one, or one for each conversation of `chat.split`.

    context   longest answer in tokens, prompt included
    number    of the example
    licence   of the row, normalized
    sampled   ids of the answers by role, as a model sampled them: they take the place of the text,
              which may be encoded as other tokens, and whose end token may not have been sampled;
              a blank answer has such ids, of a model that ended its turn at once

    Raises   RowDropError when an answer is longer, is blank or has no token of the loss, and when
             the row is a prompt alone, trains on no turn, or its text cannot be encoded
    """
    try:
        answers = [
            _answer(
                row, role, conversation, chat, context, number, licence, (sampled or {}).get(role)
            )
            for role, conversation in _conversations(row, chat)
        ]
    except RowDropError:
        raise
    except DataError as error:
        raise RowDropError(BAD_ROW, error.line().rstrip(".")) from None
    if isinstance(row, PreferencePair) and answers[0].ids == answers[1].ids:
        raise RowDropError(BAD_ROW, "chosen and rejected have the same tokens")
    return answers


def texts_of(row: Example) -> Iterator[str]:
    """Every text of a row: system message, turns of the user, and all blocks of its answers."""
    if isinstance(row, ChatExample):
        yield from _texts(row.conversation)
        return
    yield from _texts(row.prompt)
    if isinstance(row, PreferencePair):
        yield from _turn_texts(row.chosen)
        yield from _turn_texts(row.rejected)
    elif isinstance(row, RatedAnswer):
        yield from _turn_texts(row.completion)


def first_question(row: Example) -> str:
    """The first message of the user, "" without one."""
    turns = (row.conversation if isinstance(row, ChatExample) else row.prompt).turns
    return next((turn.text for turn in turns if isinstance(turn, UserTurn)), "")


def last_question(row: Example) -> str:
    """The last message of the user before the last answer, "" without one."""
    turns = (row.conversation if isinstance(row, ChatExample) else row.prompt).turns
    learned = [place for place, turn in enumerate(turns) if _is_learned(turn)]
    before = turns[: learned[-1]] if isinstance(row, ChatExample) and learned else turns
    return next((turn.text for turn in reversed(before) if isinstance(turn, UserTurn)), "")


def _conversations(row: Example, chat: ChatFormat) -> Iterator[tuple[str, Conversation]]:
    if isinstance(row, ChatExample):
        whole = row.conversation
        places = [place for place, turn in enumerate(whole.turns) if _is_learned(turn)]
        if not places:
            raise RowDropError(NO_LOSS_TOKENS, "no turn of the conversation is trained on")
        # What follows the last turn that is trained on decides nothing.
        learned = dataclasses.replace(whole, turns=whole.turns[: places[-1] + 1])
        yield from ((CHAT, part) for part in chat.split(learned))
    elif isinstance(row, PreferencePair):
        yield CHOSEN, _with(row.prompt, row.chosen)
        yield REJECTED, _with(row.prompt, row.rejected)
    elif isinstance(row, RatedAnswer):
        yield RATED, _with(row.prompt, row.completion)
    else:
        raise RowDropError(BAD_ROW, "the row is a prompt without an answer")


def _is_learned(turn: UserTurn | AssistantTurn) -> bool:
    return isinstance(turn, AssistantTurn) and turn.supervised


def _with(prompt: Conversation, answer: AssistantTurn) -> Conversation:
    """The conversation with only its last turn trained on."""
    return one_turn_each(dataclasses.replace(prompt, turns=(*prompt.turns, answer)))[-1]


def _answer(
    row: Example,
    role: str,
    conversation: Conversation,
    chat: ChatFormat,
    context: int,
    number: int,
    licence: str,
    sampled: list[int] | None,
) -> EncodedAnswer:
    learned = [turn for turn in conversation.turns if _is_learned(turn)]
    blank = any(isinstance(turn, AssistantTurn) and _is_blank(turn) for turn in learned)
    if blank and sampled is None:
        raise RowDropError(EMPTY_ANSWER, f"an answer of the {role} conversation is blank")
    prompt = dataclasses.replace(conversation, turns=conversation.turns[:-1])
    start = chat.encode(prompt, prompt=True).ids
    if sampled is None:
        encoded = chat.encode(conversation)
        ids, supervised = encoded.ids, encoded.supervised
    else:
        ids = [*start, *sampled]
        supervised = [False] * len(start) + [True] * len(sampled)
    if len(ids) > context:
        raise RowDropError(TOO_LONG, f"{len(ids)} tokens, context {context}")
    if ids[: len(start)] != start:
        raise RowDropError(
            BAD_ROW, "the chat format writes the prompt differently when an answer follows"
        )
    if not any(supervised):
        raise RowDropError(NO_LOSS_TOKENS, f"no token of the {role} conversation is learned")
    reward, references = _rewards(row, role)
    return EncodedAnswer(
        example=number,
        role=role,
        ids=ids,
        supervised=supervised,
        prompt_tokens=len(start),
        reward=reward,
        ref_rewards=references,
        id=row.origin.id,
        source=row.origin.source,
        licence=licence,
    )


def _rewards(row: Example, role: str) -> tuple[float | None, tuple[float, ...]]:
    if isinstance(row, RatedAnswer):
        return row.reward, row.ref_rewards
    if isinstance(row, PreferencePair):
        return row.chosen_reward if role == CHOSEN else row.rejected_reward, row.ref_rewards
    return None, ()


def _is_blank(turn: AssistantTurn) -> bool:
    return all(
        isinstance(block, Response | Thoughts) and not block.text.strip() for block in turn.blocks
    )


def _texts(conversation: Conversation) -> Iterator[str]:
    yield conversation.system or ""
    for turn in conversation.turns:
        if isinstance(turn, UserTurn):
            yield turn.text
        else:
            yield from _turn_texts(turn)


def _turn_texts(turn: AssistantTurn) -> Iterator[str]:
    for block in turn.blocks:
        if isinstance(block, Response | Thoughts):
            yield block.text
        elif isinstance(block, ToolCalls):
            yield from (call.arguments for call in block.calls)
        else:
            yield from block.outputs


def kind_of(row: Example) -> str:
    """The kind of data that a row belongs to.

    Raises   RowDropError for a prompt without an answer
    """
    if isinstance(row, PromptExample):
        raise RowDropError(BAD_ROW, "the row is a prompt without an answer")
    return KIND_OF[type(row)]
