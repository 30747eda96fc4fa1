"""Encoded answers: the token ids, loss masks and rewards that training reads, as Parquet.

A folder of prepared data has examples.parquet (training) and held_out.parquet with the columns of
`ENCODED_SCHEMA`, and summary.json (`align.records.PreparedSummary`), which names the hash of both.

Checked  tests/unit/align/test_encoded.py
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stamm.align.data.dataset_reader import BAD_ROW, EMPTY_ANSWER, TRUNCATED
from stamm.align.data.examples import (
    KIND_OF,
    ChatExample,
    Example,
    PreferencePair,
    PromptExample,
    RatedAnswer,
    prompt_and_answers,
)
from stamm.align.records import PreparedSplit, PreparedSummary
from stamm.base.errors import DataError
from stamm.base.files import sha256_file
from stamm.base.schema import read_record
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
from stamm.corpus.tables import RowGroups, TableWriter, require_columns

SUMMARY, PROMPTS = "summary.json", "prompts.json"
TRAIN, HELD_OUT = "train", "held_out"
FILES = {TRAIN: "examples.parquet", HELD_OUT: "held_out.parquet"}
CHAT, CHOSEN, REJECTED, RATED = "chat", "chosen", "rejected", "rated"
_GROUP_ROWS = 256  # training reads examples in random order, and a whole row group for each
_FIX = "Delete the folder and run the step that writes it again"

ENCODED_SCHEMA = pa.schema(
    [
        ("example", pa.int64()),
        ("role", pa.string()),
        ("ids", pa.list_(pa.int32())),
        ("supervised", pa.list_(pa.bool_())),
        ("prompt_tokens", pa.int32()),
        ("reward", pa.float64()),
        ("ref_rewards", pa.list_(pa.float64())),
        ("id", pa.string()),
        ("source", pa.string()),
        ("licence", pa.string()),
        ("file", pa.string()),
        ("row", pa.int64()),
    ]
)


T = TypeVar("T")


class ReadSequence(Sequence[T]):
    """A sequence whose items are made by `_at` when they are read; `_at` takes places from 0."""

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        selected = range(len(self))[index]
        return (
            [self._at(position) for position in selected]
            if isinstance(selected, range)
            else self._at(selected)
        )

    @abc.abstractmethod
    def _at(self, position: int) -> T: ...


@dataclass(frozen=True, kw_only=True)
class EncodedAnswer:
    """A conversation as token ids, with the tokens of the loss.

    example         number of the row among those kept; both answers of a pair have the same
    role            "chat", "chosen", "rejected" or "rated"
    ids             of the whole conversation, the answer's end token included
    supervised      of a chat: what the assistant wrote in any turn; of other roles: in the last turn
    prompt_tokens   ids before the last turn's body
    reward          None: the row has none
    ref_rewards     rewards of reference completions of the same prompt
    """

    example: int
    role: str
    ids: list[int]
    supervised: list[bool]
    prompt_tokens: int
    reward: float | None = None
    ref_rewards: tuple[float, ...] = ()
    id: str = ""
    source: str = ""
    licence: str = ""


class EncodedAnswers(ReadSequence[EncodedAnswer]):
    """The answers of a Parquet file, read a row group at a time: memory does not grow with the file.

    num_tokens   of each answer, prompt included
    Raises       DataError when a row is malformed
    """

    def __init__(self, path: Path) -> None:
        self._rows = RowGroups(path, list(_READ))
        counts = [_checked_lengths(group, path) for group in self._rows.read()]
        self.num_tokens: NDArray[np.int64] = np.concatenate([np.zeros(0, np.int64), *counts])

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[EncodedAnswer]:
        for group in self._rows.read():
            yield from map(_answer, group.to_pylist())

    def _at(self, position: int) -> EncodedAnswer:
        return _answer(self._rows.row(position))


def _answer(row: dict[str, Any]) -> EncodedAnswer:
    return EncodedAnswer(**{**row, "ref_rewards": tuple(row["ref_rewards"] or ())})


_READ = tuple(name for name in ENCODED_SCHEMA.names if name not in ("file", "row"))


@dataclass(frozen=True)
class EncodedExamples:
    """A split of prepared data.

    sha256               of its Parquet file
    chat_format_sha256   of all that decides the ids; see `PreparedSummary`
    """

    answers: EncodedAnswers
    summary: PreparedSummary
    sha256: str

    @classmethod
    def open(cls, folder: Path, split: Literal["train", "held_out"] = "train") -> EncodedExamples:
        """The split of the prepared data in `folder`, complete and unchanged.

        Raises   DataError when a file is missing or damaged, or is not the one that summary.json
                 names: the message has both hashes.
        """
        summary = read_record(PreparedSummary, folder / SUMMARY, _FIX)
        stated = summary.splits.get(split)
        if stated is None:
            raise DataError(f"{folder / SUMMARY} has no split {split!r}", fix=_FIX)
        path = folder / FILES[split]
        if not path.is_file():
            raise DataError(f"{path} does not exist", fix=_FIX)
        actual_sha256 = sha256_file(path)
        if actual_sha256 != stated.sha256:
            raise DataError(
                f"{path} has SHA-256 {actual_sha256}, and {SUMMARY} names {stated.sha256[:64]}",
                fix=_FIX,
            )
        require_columns(path, ENCODED_SCHEMA)
        return cls(EncodedAnswers(path), summary, actual_sha256)

    @property
    def kind(self) -> str:
        """The kind of rows: "chat", "preference" or "rated"."""
        return self.summary.kind

    @property
    def chat_format_sha256(self) -> str:
        """The SHA-256 of the chat format that encoded the ids."""
        return self.summary.chat_format_sha256


@dataclass
class SplitWriter:
    """Writes encoded answers to a Parquet file, a row group at a time, and counts them.

    path   a temporary file; see base.files.atomic
    """

    path: Path
    examples: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    longest: int = 0
    answers_with_reward: int = 0
    answers_with_ref_rewards: int = 0
    _writer: TableWriter = field(init=False)

    def __post_init__(self) -> None:
        self._writer = TableWriter(self.path, ENCODED_SCHEMA, _GROUP_ROWS)

    def __enter__(self) -> SplitWriter:
        self._writer.__enter__()
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self._writer.__exit__(kind, *rest)

    def add(self, answers: Sequence[EncodedAnswer], file: str, row: int) -> None:
        """Append the answers of one example, from row `row` of `file`."""
        self.examples += 1
        for answer in answers:
            supervised = np.asarray(answer.supervised, np.bool_)
            self._writer.add(
                {
                    **{name: getattr(answer, name) for name in _READ},
                    "ids": np.asarray(answer.ids, np.int32),
                    "supervised": supervised,
                    "ref_rewards": list(answer.ref_rewards) or None,
                    "file": file,
                    "row": row,
                }
            )
            self.tokens += len(answer.ids)
            self.supervised_tokens += int(supervised.sum())
            self.longest = max(self.longest, len(answer.ids))
            self.answers_with_reward += answer.reward is not None
            self.answers_with_ref_rewards += bool(answer.ref_rewards)

    @property
    def answers(self) -> int:
        """Number of answers."""
        return self._writer.count

    def summary(self, file: Path) -> PreparedSplit:
        """The counts, and the hash of the finished `file`."""
        return PreparedSplit(
            file=file.name,
            sha256=sha256_file(file),
            examples=self.examples,
            answers=self.answers,
            tokens=self.tokens,
            supervised_tokens=self.supervised_tokens,
            longest=self.longest,
            answers_with_reward=self.answers_with_reward,
            answers_with_ref_rewards=self.answers_with_ref_rewards,
        )


def _checked_lengths(table: pa.Table, path: Path) -> NDArray[np.int64]:
    """Number of ids of each row."""
    if table.schema != pa.schema([ENCODED_SCHEMA.field(name) for name in _READ]):
        raise DataError(f"{path} has columns of other types", fix=_FIX)
    for name in ("ids", "supervised", "role", "prompt_tokens"):
        if table[name].null_count:
            raise DataError(f"{path} has a row without {name}", fix=_FIX)
    sizes = [pc.list_value_length(table[name]) for name in ("ids", "supervised")]
    if not pc.all(pc.equal(*sizes), min_count=0).as_py():
        raise DataError(f"{path} has a row with unequal numbers of ids and of the mask", fix=_FIX)
    return np.asarray(sizes[0].to_numpy(), dtype=np.int64)


TOO_LONG, NO_LOSS_TOKENS = "too_long", "no_loss_tokens"
DEFECTS = (BAD_ROW, EMPTY_ANSWER, TOO_LONG, NO_LOSS_TOKENS, TRUNCATED)
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
    ids_by_role = {}
    for role, column in SAMPLED_IDS.items():
        ids = row.get(column)
        if ids is None:
            continue
        if not isinstance(ids, list) or not all(
            type(token_id) is int and token_id >= 0 for token_id in ids
        ):
            raise RowDropError(BAD_ROW, f"{column} is not a list of token ids")
        ids_by_role[role] = ids
    return ids_by_role


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
            _encoded(
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
    prompt, answers = prompt_and_answers(row)
    yield from _texts(prompt)
    for answer in answers:
        yield from _turn_texts(answer)


def first_question(row: Example) -> str:
    """The first message of the user, "" without one."""
    turns = (row.conversation if isinstance(row, ChatExample) else row.prompt).turns
    return next((turn.text for turn in turns if isinstance(turn, UserTurn)), "")


def last_question(row: Example) -> str:
    """The last message of the user before the last answer, "" without one."""
    turns = (row.conversation if isinstance(row, ChatExample) else row.prompt).turns
    learned = [position for position, turn in enumerate(turns) if _is_learned(turn)]
    before = turns[: learned[-1]] if isinstance(row, ChatExample) and learned else turns
    return next((turn.text for turn in reversed(before) if isinstance(turn, UserTurn)), "")


def _conversations(row: Example, chat: ChatFormat) -> Iterator[tuple[str, Conversation]]:
    if isinstance(row, ChatExample):
        whole = row.conversation
        learned_positions = [
            position for position, turn in enumerate(whole.turns) if _is_learned(turn)
        ]
        if not learned_positions:
            raise RowDropError(NO_LOSS_TOKENS, "no turn of the conversation is trained on")
        # Turns after the last one that is trained on have no effect on its ids and loss mask.
        learned = dataclasses.replace(whole, turns=whole.turns[: learned_positions[-1] + 1])
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


def _encoded(
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
