"""Encoded answers: the token ids, loss masks and rewards that training reads, as Parquet.

A folder of prepared data has examples.parquet (training) and held_out.parquet with the columns of
`ENCODED_SCHEMA`, and summary.json (`runs.schemas.prepared_data`), which names the hash of both.

Checked  tests/unit/align/test_encoded.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.base.files import sha256_file
from stamm.base.schema import read_record
from stamm.corpus.tables import RowGroups, TableWriter, require_columns
from stamm.runs.schemas.prepared_data import PreparedSplit, PreparedSummary

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


class EncodedAnswers(Sequence[EncodedAnswer]):
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

    @overload
    def __getitem__(self, index: int) -> EncodedAnswer: ...

    @overload
    def __getitem__(self, index: slice) -> list[EncodedAnswer]: ...

    def __getitem__(self, index: int | slice) -> EncodedAnswer | list[EncodedAnswer]:
        if isinstance(index, slice):
            return [self._at(place) for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        return self._at(place)

    def __iter__(self) -> Iterator[EncodedAnswer]:
        for group in self._rows.read():
            yield from map(_answer, group.to_pylist())

    def _at(self, place: int) -> EncodedAnswer:
        return _answer(self._rows.row(place))


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
        found = sha256_file(path)
        if found != stated.sha256:
            raise DataError(
                f"{path} has SHA-256 {found}, and {SUMMARY} names {stated.sha256[:64]}", fix=_FIX
            )
        require_columns(path, ENCODED_SCHEMA)
        return cls(EncodedAnswers(path), summary, found)

    @property
    def kind(self) -> str:
        """The kind of rows: "chat", "preference" or "rated"."""
        return self.summary.kind

    @property
    def chat_format_sha256(self) -> str:
        """The SHA-256 of the chat format that encoded the ids."""
        return self.summary.chat_format_sha256

    @property
    def tokenizer_sha256(self) -> str:
        """The SHA-256 of the tokenizer."""
        return self.summary.tokenizer_sha256


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
