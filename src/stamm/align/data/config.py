"""Configuration of alignment data, and the files that it names. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from stamm.base.bounds import AtLeastOne, Seed, Share, at_least, not_empty, within
from stamm.base.config import Bounded, nearest, validate
from stamm.base.errors import ConfigError, DataError
from stamm.corpus.contamination.config import ContaminationConfig
from stamm.corpus.inputs import expand, locate
from stamm.corpus.licences.expression import spdx_identifier
from stamm.corpus.licences.families import FAMILIES
from stamm.corpus.limits import NamedFields, ReadLimits

UNKNOWN = "unknown"
APERTUS_REFUSED = ("noncommercial", "share-alike", UNKNOWN)
"""Licences whose rows Apertus removed from its SFT data.

Source   swiss-ai/posttraining-data, licence filter; Apertus technical report, arXiv 2509.14233
"""


@dataclass(frozen=True, kw_only=True)
class RowFields(NamedFields):
    """Names of the fields of alignment data; docs/alignment/data.md has what each holds.

    A field that is named here is read under no other name.
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


@dataclass(frozen=True, kw_only=True)
class DataSource(Bounded):
    """One source of a mixture.

    data          as `PrepareConfig.data`
    weight        share of the source's rows: weight / sum of all weights
    most_epochs   largest number of times that its rows are read
    fields        as `PrepareSettings.fields`
    """

    MAIN_FIELD: ClassVar = "data"

    data: Annotated[tuple[str, ...], not_empty()] = ()
    weight: Annotated[float, within("(0, 1e9]")] = 1.0
    most_epochs: Annotated[float, within("(0, 1000]")] = 1.0
    fields: RowFields = field(default_factory=RowFields)


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

    kind: Literal["auto", "chat", "preference", "rated"] = "auto"
    fields: RowFields = field(default_factory=RowFields)
    min_examples: AtLeastOne = 1
    refused_licences: tuple[str, ...] = ()
    without_source: Literal["accept", "refuse"] = "accept"
    decontaminate: ContaminationConfig | None = None
    duplicates: Literal["drop", "keep"] = "drop"
    held_out: Annotated[float, within("[0, 1)")] = 0.0
    bad_rows: Literal["skip", "stop"] = "skip"
    max_bad_rows: Share = 0.2
    seed: Seed = 0
    limits: ReadLimits = field(default_factory=ReadLimits)

    def __post_init__(self) -> None:
        known = (*FAMILIES, UNKNOWN)
        unknown = [
            licence
            for licence in self.refused_licences
            if licence not in known and not spdx_identifier(licence)
        ]
        hint = nearest(unknown[0], known) if unknown else ""
        validate(
            self,
            ("refused_licences", not unknown, f"names no family and no SPDX identifier. {hint}"),
        )

    def unread(self) -> tuple[str, ...]:
        """Names of the fields that the values of the others make unused."""
        return () if self.held_out else ("seed",)


@dataclass(frozen=True, kw_only=True)
class PrepareConfig(PrepareSettings):
    """Prepared alignment data: the settings, and what a recipe sets for its data and its loss.

    data              files, folders, patterns, or "package:align_chats.jsonl.zst"; rows keep their
                      order
    mixture           sources with weights, in place of data; the source with the fewest rows for
                      its weight is read most_epochs times; of the others as many rows as the
                      weights allow, evenly spread over the files
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
    min_references: AtLeastOne = 1
    context: Annotated[int, at_least(2)] = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        validate(
            self,
            ("data", not (self.mixture and self.data), "is given, and mixture too: choose one"),
            (
                "fields",
                not self.mixture or self.fields == RowFields(),
                "is of data=: a source of a mixture has its own, such as mixture.0.fields.prompt",
            ),
        )

    @classmethod
    def of(cls, settings: PrepareSettings, **more: Any) -> Self:
        """A configuration with these settings and the fields `more`."""
        return cls(**{**vars(settings), **more})


OWN_ROWS: Mapping[str, Any] = {
    "data": (),
    "mixture": (),
    "fields": RowFields(),
    "max_bad_rows": PrepareSettings.max_bad_rows,
}
"""Values of the settings that are not used when an earlier step wrote the rows."""


@dataclass(frozen=True, kw_only=True)
class SelectConfig:
    """Training examples from scored completions of each prompt.

    take         "best_worst": the best and the worst candidate of a prompt as a pair; "all": every
                 candidate as a single rated answer
    candidates   completions of a prompt to choose among, the first ones; the others are its
                 references, so that no answer is compared with itself and the best of the candidates
                 is not ranked among those it was chosen from
    """

    take: Literal["best_worst", "all"] = "best_worst"
    candidates: AtLeastOne = 4

    def __post_init__(self) -> None:
        fits = self.candidates > 1 or self.take == "all"
        validate(self, ("candidates", fits, "must be at least 2 with take=best_worst"))


_PREFIX = "package:"


def shipped_data() -> tuple[str, ...]:
    """The names that may follow "package:", sorted."""
    folder = resources.files("stamm.align") / "demo_data"
    return tuple(sorted(file.name for file in folder.iterdir() if file.name.endswith(".zst")))


def locate_file(name: str, where: str) -> Path:
    """The one file that `name` refers to.

    where    the configuration key that names it, for the error

    Raises   DataError when there is no such file.
    """
    if not name.startswith(_PREFIX):
        return locate(name, where)
    file, known = name.removeprefix(_PREFIX), shipped_data()
    if file not in known:
        raise DataError(
            f"{name!r} is not shipped with stamm", where=where, fix=nearest(file, known)
        )
    return Path(str(resources.files("stamm.align") / "demo_data" / file))


def locate_data(names: Sequence[str], where: str = "data") -> dict[str, Path]:
    """The files that `names` refer to, by the name that summaries and the ledger give them, in order.

    A folder means every readable file below it and a pattern every file it matches, sorted by name.

    where    the configuration key that names them, for errors

    Raises   ConfigError without a name; DataError for a name without a file, and a file named twice
    """
    if not names:
        raise ConfigError(
            f"{where} is empty",
            fix=f"Set {where}=FILE: JSON, Parquet or Arrow with messages, prompt and completion, or"
            " chosen and rejected",
        )
    files: dict[str, Path] = {}
    for name in names:
        packaged = name.startswith(_PREFIX)
        files_of_name = {name: locate_file(name, where)} if packaged else expand((name,), where)
        if repeated := sorted(files_of_name.keys() & files.keys()):
            raise DataError(f"{repeated[0]} is named twice", where=where, fix="Name it once")
        files.update(files_of_name)
    return files


def locate_sources(config: PrepareConfig) -> list[tuple[DataSource, dict[str, Path]]]:
    """The sources of a configuration with their files, by name; `data` is one source.

    Raises   as `locate_data`
    """
    if not config.mixture:
        files = locate_data(config.data)
        return [(DataSource(data=config.data, fields=config.fields), files)]
    sources = [
        (source, locate_data(source.data, f"mixture.{number}.data"))
        for number, source in enumerate(config.mixture)
    ]
    source_of: dict[Path, int] = {}
    for number, (_, files) in enumerate(sources):
        for name, path in files.items():
            if source_of.setdefault(path.resolve(), number) != number:
                raise DataError(
                    f"{name} is in two sources",
                    where="mixture",
                    fix="Name it once, with its weight",
                )
    return sources


def evaluation_files(config: PrepareConfig) -> dict[str, Path]:
    """The files of the evaluation sets of a configuration, by their name in it."""
    sets = config.decontaminate.sets if config.decontaminate else ()
    return {
        evaluation_set.file: locate_file(evaluation_set.file, "decontaminate.sets")
        for evaluation_set in sets
    }
