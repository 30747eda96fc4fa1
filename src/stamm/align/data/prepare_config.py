"""Configuration of prepared alignment data. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

from stamm.base.config import nearest, validate
from stamm.corpus.contamination.config import ContaminationConfig
from stamm.corpus.licences.expression import spdx_identifier
from stamm.corpus.licences.families import FAMILIES
from stamm.corpus.limits import LARGEST_SEED, ReadLimits

UNKNOWN = "unknown"
APERTUS_REFUSED = ("noncommercial", "share-alike", UNKNOWN)
"""Licences whose rows Apertus removed from its SFT data.

Source   swiss-ai/posttraining-data, licence filter; Apertus technical report, arXiv 2509.14233
"""


@dataclass(frozen=True, kw_only=True)
class RowFields:
    """Names of the fields of alignment data; docs/alignment.md has what each holds.

    "" detects the name among those of public data. A path such as "data.prompt" leads inside. A field
    that is named here is read under no other name; one that no row has is an error.
    """

    messages: str = ""
    prompt: str = ""
    completion: str = ""
    chosen: str = ""
    rejected: str = ""
    label: str = ""
    reward: str = ""
    chosen_reward: str = ""
    rejected_reward: str = ""
    system: str = ""
    tools: str = ""
    id: str = ""
    source: str = ""
    licence: str = ""

    def __post_init__(self) -> None:
        given = list(vars(self).values())
        validate(
            self,
            *(
                (field, not name or given.count(name) == 1, "names two fields")
                for field, name in vars(self).items()
            ),
        )

    def named(self) -> dict[str, str]:
        """Configured name by field, of those that have one.

        Edge     a stored configuration of version 0.1 has a name for every field; those that are equal
                 to their field's were not configured
        """
        unnamed = {field for field, name in vars(self).items() if not name}
        is_of_0_1 = unnamed <= {"chosen_reward", "rejected_reward"}
        return {
            field: name
            for field, name in vars(self).items()
            if name and not (is_of_0_1 and name == field)
        }


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """One source of a mixture.

    data          as `PrepareConfig.data`
    weight        its share of the rows is this of the sum of all weights
    most_epochs   its rows are read at most so many times
    fields        as `PrepareSettings.fields`
    """

    data: tuple[str, ...] = ()
    weight: float = 1.0
    most_epochs: float = 1.0
    fields: RowFields = field(default_factory=RowFields)

    def __post_init__(self) -> None:
        validate(
            self,
            ("data", bool(self.data), "is empty"),
            ("weight", 0 < self.weight <= 1e9, "must lie in (0, 1e9]"),
            ("most_epochs", 0 < self.most_epochs <= 1000, "must lie in (0, 1000]"),
        )


@dataclass(frozen=True, kw_only=True)
class PrepareSettings:
    """Settings of the encoding of instruction, preference or rated data.

    kind              kind of every row; "auto": that of the first readable row. A row of another
                      kind is a bad row
    fields            names of the fields of the rows; "": detected
    min_examples      fewest examples to train on
    refused_licences  families (share-alike, copyleft, noncommercial, no-derivatives, reserved, ...)
                      and SPDX identifiers whose rows are dropped; "unknown": rows with no licence, or
                      with one that is not recognized. The others are kept and counted
    without_source    policy for rows that name no source
    decontaminate     evaluation sets whose texts must not occur in a row
    duplicates        policy for rows with the same ids; of rated rows, for identical rows
    held_out          share of the prompts whose rows are not trained on
    bad_rows          policy for rows that cannot be read, are too long, or have nothing to learn
    max_bad_rows      largest share of such rows in the files of `data`; above it the step ends with an
                      error. 1 accepts any
    seed              decides which prompts are held out
    """

    FORMER_KEYS: ClassVar = {"columns": "fields"}  # of version 0.1

    kind: Literal["auto", "chat", "preference", "rated"] = "auto"
    fields: RowFields = field(default_factory=RowFields)
    min_examples: int = 1
    refused_licences: tuple[str, ...] = ()
    without_source: Literal["accept", "refuse"] = "accept"
    decontaminate: ContaminationConfig | None = None
    duplicates: Literal["drop", "keep"] = "drop"
    held_out: float = 0.0
    bad_rows: Literal["skip", "stop"] = "skip"
    max_bad_rows: float = 0.2
    seed: int = 0
    limits: ReadLimits = field(default_factory=ReadLimits)

    def __post_init__(self) -> None:
        known = (*FAMILIES, UNKNOWN)
        wrong = [
            each
            for each in self.refused_licences
            if each not in known and not spdx_identifier(each)
        ]
        hint = nearest(wrong[0], known) if wrong else ""
        validate(
            self,
            ("min_examples", self.min_examples >= 1, "must be at least 1"),
            ("refused_licences", not wrong, f"names no family and no SPDX identifier. {hint}"),
            ("max_bad_rows", 0.0 <= self.max_bad_rows <= 1.0, "must lie in [0, 1]"),
            ("held_out", 0.0 <= self.held_out < 1.0, "must lie in [0, 1)"),
            ("seed", 0 <= self.seed <= LARGEST_SEED, "must lie in 0 to 2^63 - 1"),
        )

    def unread(self) -> tuple[str, ...]:
        """Fields that the others leave unread."""
        return () if self.held_out else ("seed",)


@dataclass(frozen=True, kw_only=True)
class PrepareConfig(PrepareSettings):
    """Prepared alignment data: the settings, and what a recipe sets for its data and its loss.

    data              files, folders, patterns, or "package:align_chats.jsonl.zst"; rows keep their
                      order
    mixture           sources with weights, in place of data; every row of the source that is the
                      scarcest for its weight is read most_epochs times, and of the others as many
                      as the weights allow, evenly spread over its files
    needs             what a row needs for the loss. "rewards": of an answer, or of
                      both of a pair; "ref_rewards": these too; "own_ref_rewards": and the answer's own
                      reward is one of them; "labels": a pair, or an answer with a reward. A row without
                      is a bad row. When all these rewards are equal, no data is written
    min_references    fewest ref_rewards of a row, where it needs them
    context           longest answer that is kept, in tokens, prompt included; none is truncated
    """

    data: tuple[str, ...] = ()
    mixture: tuple[DataSource, ...] = ()
    needs: Literal["nothing", "labels", "rewards", "ref_rewards", "own_ref_rewards"] = "nothing"
    min_references: int = 1
    context: int = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        validate(
            self,
            ("context", self.context >= 2, "must be at least 2"),
            ("min_references", self.min_references >= 1, "must be at least 1"),
            ("data", not (self.mixture and self.data), "is given, and mixture too: choose one"),
            (
                "fields",
                not self.mixture or self.fields == RowFields(),
                "is of data=: a source of a mixture has its own, such as mixture.0.fields.prompt",
            ),
        )

    @classmethod
    def of(cls, settings: PrepareSettings, **more: Any) -> Self:
        """These settings with more fields, or others."""
        return cls(**{f.name: getattr(settings, f.name) for f in fields(settings)} | more)


OWN_ROWS: Mapping[str, Any] = {
    "data": (),
    "mixture": (),
    "fields": RowFields(),
    "max_bad_rows": PrepareSettings.max_bad_rows,
}
"""In place of settings that are not read where an earlier step wrote the rows."""
