"""summary.json of prepared alignment data: counts, licences, decontamination, and what encoded it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from stamm.base.schema import FieldError
from stamm.runs.schemas.corpus import SetCoverage

KINDS = ("chat", "preference", "rated")


@dataclass(frozen=True, kw_only=True)
class PreparedSplit:
    """A Parquet file of encoded answers.

    examples                  rows of the data; a preference pair is one example with two answers
    supervised_tokens         tokens of the loss
    longest                   tokens of the longest answer, prompt included
    answers_with_reward       and with at least one reference reward
    """

    file: str
    sha256: str
    examples: int
    answers: int
    tokens: int
    supervised_tokens: int
    longest: int
    answers_with_reward: int = 0
    answers_with_ref_rewards: int = 0


@dataclass(frozen=True, kw_only=True)
class PreparedSource:
    """Rows of one source under one licence; "" where the rows state none. Untrusted text."""

    source: str
    licence: str
    kept: int
    dropped: int
    supervised_tokens: int


@dataclass(frozen=True, kw_only=True)
class PreparedPrompt:
    """A prompt of the data.

    ids        of the prompt, up to where the assistant begins to write
    question   the last message of the user, cut. Untrusted text
    """

    split: str
    file: str
    row: int
    question: str
    ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PreparedPrompts:
    """prompts.json: prompts with different questions, at most 8 of each split, in the order of the rows."""

    SCHEMA: ClassVar[int] = 1

    prompts: tuple[PreparedPrompt, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PreparedShare:
    """A source of a mixture.

    share               asked for: its weight, divided by the sum of the weights
    read, kept          rows; those that the weights leave out are among the dropped ones
    epochs              times that its rows are read
    examples, answers, supervised_tokens   of both splits, as often as they are read
    """

    source: str
    share: float
    read: int
    kept: int
    epochs: float
    examples: int
    answers: int
    supervised_tokens: int


@dataclass(frozen=True, kw_only=True)
class PreparedFile:
    """A file of the configuration, as it was read."""

    name: str
    sha256: str
    read: int
    kept: int


@dataclass(frozen=True, kw_only=True)
class PreparedDecontamination:
    """Evaluation sets that were searched for, and rows dropped by set.

    gram_words, share   the rule: an n-gram of that length, and that share of the words
    contaminated        rows that contain an item of each set; a row may count for several
    """

    gram_words: int
    share: float
    sets: Mapping[str, SetCoverage]
    contaminated: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PreparedSummary:
    """summary.json of prepared data: read = kept + sum(dropped), in rows.

    kind               "chat", "preference" or "rated"
    context            tokens of the longest answer that is kept
    chat_format        name of the chat format, and the SHA-256 of all that decides the ids
    licences           rows kept by licence
    refused_licences   as configured
    sources            at most 1,000 pairs of source and licence, in order of first occurrence;
                       "(others)" has the rest
    decontamination    None: not configured
    mixture            its sources; empty: not configured
    unknown_keys       columns, and keys of messages ("messages: mood"), that were not used: rows by key
    causes             the most frequent details of dropped rows that cannot be used: rows by detail
    """

    SCHEMA: ClassVar[int] = 1

    kind: str
    context: int
    chat_format: str
    chat_format_sha256: str
    tokenizer_sha256: str
    read: int
    kept: int
    dropped: Mapping[str, int]
    files: tuple[PreparedFile, ...]
    splits: Mapping[str, PreparedSplit]
    licences: Mapping[str, int]
    refused_licences: tuple[str, ...] = ()
    sources: tuple[PreparedSource, ...] = ()
    decontamination: PreparedDecontamination | None = None
    mixture: tuple[PreparedShare, ...] = ()
    unknown_keys: Mapping[str, int] = field(default_factory=dict)
    causes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise FieldError("kind", f"one of {', '.join(KINDS)}")
        if not {"train", "held_out"} <= self.splits.keys():
            raise FieldError("splits", "an object with train and held_out")
        if self.read != self.kept + sum(self.dropped.values()):
            raise FieldError("read", "kept + dropped")
