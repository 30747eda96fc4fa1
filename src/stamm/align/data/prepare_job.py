"""Prepare alignment data: files of rows to encoded answers, with a ledger of every row.

Reads    tokenizer (a folder), and the files of the configuration; or, where it names none, rows
         (a file that an earlier step wrote)
Leaves   examples.parquet, held_out.parquet (`encoded.ENCODED_SCHEMA`), alignment_ledger-00000.parquet
         (the columns of the corpus ledger, a row for each row read), bad_rows.jsonl (every row that
         is not kept: file, row, id, reason, detail), prompts.json, summary.json
         (`align.records.PreparedSummary`)

Rows are streamed; memory grows by about 100 bytes a row, for the detection of duplicates.

Checked  tests/unit/align/test_prepare_job.py
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from stamm.align.data.config import (
    UNKNOWN,
    DataSource,
    PrepareConfig,
    RowFields,
    evaluation_files,
    locate_sources,
)
from stamm.align.data.dataset_reader import BAD_ROW, count_rows, read_rows, truncated_files
from stamm.align.data.encoded import (
    CHOSEN,
    DEFECTS,
    FILES,
    HELD_OUT,
    PROMPTS,
    REJECTED,
    SUMMARY,
    TRAIN,
    EncodedAnswer,
    RowDropError,
    SplitWriter,
    encode_row,
    first_question,
    kind_of,
    last_question,
    sampled_ids,
    texts_of,
)
from stamm.align.data.examples import (
    NO_COLUMNS,
    NO_PROMPT,
    Example,
    PreferencePair,
    RatedAnswer,
    row_text,
    unknown_keys,
)
from stamm.align.records import (
    BadRow,
    PreparedDecontamination,
    PreparedFile,
    PreparedPrompt,
    PreparedPrompts,
    PreparedShare,
    PreparedSource,
    PreparedSummary,
)
from stamm.base.errors import DataError
from stamm.base.files import atomic, json_line, remove_leftovers, sha256_file
from stamm.base.known_keys import UnknownKeys
from stamm.base.schema import write_record
from stamm.chat.formats import ChatFormat
from stamm.corpus.contamination.index import Index, build_index, hits_text
from stamm.corpus.contamination.items import Item, read_items
from stamm.corpus.dedup.shingles import hash_words
from stamm.corpus.documents import clean_field, content_id, whole_text
from stamm.corpus.ledger import ALIGNMENT, DROPPED, KEPT, LedgerRow
from stamm.corpus.licences.expression import (
    Expression,
    ExpressionError,
    LicenceTerm,
    parse,
    spdx_identifier,
)
from stamm.corpus.licences.families import also_no_derivatives, family
from stamm.corpus.licences.names import spdx_expression
from stamm.corpus.readers.rows import FieldUse
from stamm.corpus.tables import LEDGER_SCHEMA, TableWriter, part
from stamm.models.hf_chat_format import load_chat_format
from stamm.runs.job import Workspace
from stamm.tokenizer.tokenizer import FILE

_SHARE_ALIKE = re.compile(r"-sa(?:-|$)", re.IGNORECASE)


def normalized_licence(written: str) -> str:
    """The SPDX expression of a row's licence ("apache-2.0", "CC BY 4.0"), else as it is written."""
    return spdx_expression(written) or written


def refused_by(licence: str, refused: Collection[str]) -> str:
    """The entry of `refused` that refuses a row under `licence`; "" when none does.

    licence   an SPDX expression, another text, or ""
    refused   families, SPDX identifiers and "unknown"; see `PrepareConfig.refused_licences`

    OR: one part that is not refused is enough. AND: one refused part refuses.
    Edge     CC-BY-NC-ND is refused with noncommercial and with no-derivatives, CC-BY-NC-SA with
             noncommercial and with share-alike
    Checked  tests/unit/align/test_licence_policy.py
    """
    try:
        return _refused(parse(licence), {spelling.lower() for spelling in map(_spelled, refused)})
    except ExpressionError:
        return UNKNOWN if UNKNOWN in refused else ""


def _spelled(refused: str) -> str:
    return spdx_identifier(refused) or refused


def _refused(expression: Expression, refused: Collection[str]) -> str:
    if isinstance(expression, LicenceTerm):
        licence_family = family(expression.licence) or UNKNOWN
        names = [expression.licence, licence_family]
        if also_no_derivatives(expression.licence):
            names.append("no-derivatives")
        if _SHARE_ALIKE.search(expression.licence):
            names.append("share-alike")
        return next((name for name in names if name.lower() in refused), "")
    verdicts = [_refused(part, refused) for part in expression.parts]
    if expression.operator == "OR" and not all(verdicts):
        return ""
    return next(filter(None, verdicts), "")


BAD_ROWS = "bad_rows.jsonl"
_OTHERS = "(others)"
_MOST_SOURCES = 1000
_ADVANCE_ROWS = 1000
_MOST_PROMPTS, _LONGEST_QUESTION = 8, 4000
_MOST_CAUSES, _SHOWN_CAUSES, _LONGEST_CAUSE = 20, 3, 300
_NUMBERS = re.compile(r"\d+")
NOT_IN_MIXTURE = "not_in_mixture"


@dataclass(kw_only=True)
class _Source:
    """A source and what is read of it.

    use      its fields
    epochs   times that its rows are read: 1.5 is every row, and every other one again
    """

    config: DataSource
    files: Mapping[str, Path]
    rows: int = 0
    use: FieldUse = field(default_factory=lambda: FieldUse(RowFields.names()))
    epochs: Fraction = Fraction(1)
    bad: int = 0
    left_out: int = 0
    kept: int = 0
    examples: int = 0
    answers: int = 0
    supervised_tokens: int = 0

    @property
    def name(self) -> str:
        return ", ".join(self.config.data)

    def times(self, row_number: int) -> int:
        """The number of times that row `row_number`, counted from 0, is read: `epochs` on average, evenly."""
        return int((row_number + 1) * self.epochs) - int(row_number * self.epochs)

    def add(self, written: Sequence[EncodedAnswer], times: int) -> None:
        self.kept += 1
        self.examples += times
        self.answers += times * len(written)
        self.supervised_tokens += times * sum(sum(answer.supervised) for answer in written)


@dataclass
class _Counts:
    """Counts of a run.

    sources   by (source, licence): kept, dropped, supervised tokens
    prompts   by split and question
    causes    by the detail of a row that cannot be used, numbers left out: the first such detail, rows
    disordered  pairs whose chosen answer has the lower reward, and those with equal rewards
    """

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    licences: Counter[str] = field(default_factory=Counter)
    contaminated: Counter[str] = field(default_factory=Counter)
    sources: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    first_drop: str = ""
    causes: dict[str, tuple[str, int]] = field(default_factory=dict)
    disordered: Counter[str] = field(default_factory=Counter)
    prompts: dict[tuple[str, str], PreparedPrompt] = field(default_factory=dict)

    def add_prompt(self, row: LedgerRow, question: str, answer: EncodedAnswer) -> None:
        question = question[:_LONGEST_QUESTION]
        if sum(split == row.split for split, _ in self.prompts) < _MOST_PROMPTS:
            prompt = PreparedPrompt(
                split=row.split,
                file=row.input_file,
                row=row.input_position,
                question=question,
                ids=tuple(answer.ids[: answer.prompt_tokens]),
            )
            self.prompts.setdefault((row.split, question), prompt)

    @property
    def bad(self) -> int:
        """Number of rows that cannot be used; those that the configuration drops are not among them."""
        return sum(self.dropped[reason] for reason in DEFECTS)

    def add(self, row: LedgerRow, answers: Sequence[EncodedAnswer]) -> None:
        self.read += 1
        key = (row.source, row.licence)
        if key not in self.sources and len(self.sources) >= _MOST_SOURCES:
            key = (_OTHERS, "")
        of_source = self.sources.setdefault(key, [0, 0, 0])
        if row.decision == KEPT:
            self.kept += 1
            self.licences[row.licence if len(self.licences) < _MOST_SOURCES else _OTHERS] += 1
            of_source[0] += 1
            of_source[2] += sum(sum(answer.supervised) for answer in answers)
            rewards = {answer.role: answer.reward for answer in answers}
            chosen, rejected = rewards.get(CHOSEN), rewards.get(REJECTED)
            if chosen is not None and rejected is not None and chosen <= rejected:
                self.disordered["equal" if chosen == rejected else "lower"] += 1
            return
        self.dropped[row.reason] += 1
        of_source[1] += 1
        if row.reason in DEFECTS:
            cause = _NUMBERS.sub("", row.detail)
            if cause not in self.causes and len(self.causes) >= _MOST_SOURCES:
                cause = _OTHERS
            detail, count = self.causes.get(cause, (row.detail[:_LONGEST_CAUSE], 0))
            self.causes[cause] = (detail, count + 1)
        if not self.first_drop:
            where = f"{row.input_file}, row {row.input_position}"
            self.first_drop = f"{where}: {row.reason}, {row.detail}"


class _Filter:
    """Decides on rows, one after another."""

    def __init__(self, config: PrepareConfig, chat: ChatFormat, index: Index | None) -> None:
        self._config, self.chat, self.index = config, chat, index
        self.kind: str = "" if config.kind == "auto" else config.kind
        self._seen: set[bytes] = set()
        self.contaminated: Counter[str] = Counter()
        self._rewards: set[float] = set()

    def keep(
        self,
        plain: bytes,
        row: Example,
        ledger: LedgerRow,
        number: int,
        sampled: Mapping[str, list[int]],
    ) -> list[EncodedAnswer]:
        """The encoded answers of a row.

        plain     the row as canonical JSON
        sampled   ids of its answers by role, where a model of this run sampled them

        Raises   RowDropError with the reason why it is not kept
        """
        kind = kind_of(row)
        if kind != (self.kind or kind):
            raise RowDropError(BAD_ROW, f"a row of kind {kind} in data of kind {self.kind}")
        self._check_columns(row, kind)
        self.kind = kind
        self._check_licence(ledger)
        answers = encode_row(row, self.chat, self._config.context, number, ledger.licence, sampled)
        self._check_contamination(row)
        self._check_duplicate(plain if isinstance(row, RatedAnswer) else b"", answers)
        return answers

    def add_rewards(self, answers: Sequence[EncodedAnswer]) -> None:
        """Note the rewards of an example that is trained on, as far as the loss reads them."""
        if len(self._rewards) > 1 or self._config.needs == "nothing":
            return
        for answer in answers:
            if self._config.needs == "labels" and answer.role in (CHOSEN, REJECTED):
                self._rewards.add(float(answer.role == CHOSEN))
            elif answer.reward is not None:
                self._rewards.update((answer.reward, *answer.ref_rewards))

    def check_rewards(self) -> None:
        """Raise DataError when all rewards are equal."""
        if len(self._rewards) == 1:
            raise DataError(
                f"all rewards are {self._rewards.pop()}: there is nothing to learn from",
                fix="Score the answers with a reward that differs between them",
            )

    def _check_columns(self, row: Example, kind: str) -> None:
        needs, least = self._config.needs, self._config.min_references
        if needs == "nothing":
            return
        if not isinstance(row, PreferencePair | RatedAnswer):
            raise RowDropError(BAD_ROW, f"a row of kind {kind}, which has no reward")
        rewards: set[float | None] = (
            {row.reward}
            if isinstance(row, RatedAnswer)
            else {row.chosen_reward, row.rejected_reward}
        )
        references = row.ref_rewards if "ref_rewards" in needs else None
        detail = ""
        if needs != "labels" and None in rewards:
            detail = "no chosen_reward and rejected_reward: `stamm score` adds them"
        elif references is not None and not references:
            detail = "no ref_rewards, the rewards of reference completions"
        elif references is not None and len(references) < least:
            detail = f"{len(references)} ref_rewards, and the loss needs {least}"
        elif needs == "own_ref_rewards" and not rewards <= {*row.ref_rewards}:
            detail = "a reward that is not among its ref_rewards, with leave_one_out"
        if detail:
            raise RowDropError(BAD_ROW, detail)

    def _check_licence(self, row: LedgerRow) -> None:
        refused = refused_by(row.licence, self._config.refused_licences)
        if refused == UNKNOWN:
            shown = row.licence or "no licence"
            raise RowDropError("licence_unknown", shown)
        if refused:
            raise RowDropError("licence_denied", f"{row.licence} is refused by {refused!r}")
        if self._config.without_source == "refuse" and not row.source:
            raise RowDropError("no_source", "the row names no source")

    def _check_contamination(self, row: Example) -> None:
        if self.index is None:
            return
        hits = self.index.hits(hash_words(whole_text("\n".join(texts_of(row)))))
        if hits:
            self.contaminated.update({hit.set_name for hit in hits})
            raise RowDropError("contaminated", hits_text(hits))

    def _check_duplicate(self, plain: bytes, answers: Sequence[EncodedAnswer]) -> None:
        if self._config.duplicates == "keep":
            return
        digest = hashlib.sha256(plain)
        for answer in answers:
            digest.update(np.asarray([len(answer.ids), *answer.ids], np.int32).tobytes())
            digest.update(np.asarray(answer.supervised, np.bool_).tobytes())
        key = digest.digest()[:16]
        if key in self._seen:
            raise RowDropError("exact_duplicate", "an earlier row is the same")
        self._seen.add(key)


def run(config: PrepareConfig, workspace: Workspace) -> None:
    """Encode every row of the data, in the order of the files.

    Raises   DataError for a file that cannot be read, for a bad row with bad_rows="stop", when all
             rewards that the loss needs are equal, and when no row is left to train on: then
             bad_rows.jsonl names the reason of each
    """
    folder = workspace.folder
    remove_leftovers(folder)
    has_own_rows = "rows" in workspace.inputs and not (config.data or config.mixture)
    sources = _sources(config, workspace, has_own_rows)
    chat = load_chat_format(workspace.inputs["tokenizer"])
    index = None
    if config.decontaminate is not None:
        index = build_index(config.decontaminate, _items(config))
        for gap in index.gaps():
            workspace.progress.log(gap)
    filter_ = _Filter(config, chat, index)
    counts = _Counts()
    listed = []
    with contextlib.ExitStack() as stack:
        splits = {
            name: stack.enter_context(SplitWriter(stack.enter_context(atomic(folder / file))))
            for name, file in FILES.items()
        }
        ledger = stack.enter_context(
            TableWriter(
                stack.enter_context(atomic(folder / part(ALIGNMENT, "00000"))), LEDGER_SCHEMA
            )
        )
        bad = stack.enter_context(
            stack.enter_context(atomic(folder / BAD_ROWS)).open("w", encoding="utf-8")
        )
        files = [
            (number, name, path)
            for number, source in enumerate(sources)
            for name, path in source.files.items()
        ]
        workspace.progress.begin("prepare", len(files), "files")
        labels = config.kind == "auto" and config.needs == "labels"
        for done, (number, name, path) in enumerate(files):
            source, before = sources[number], (counts.read, counts.kept)
            ends: int | None = None
            rows = read_rows(
                path,
                config.limits,
                name,
                kind="rated" if labels else config.kind,
                fields=source.config.fields,
                empty_answers=has_own_rows,
                use=source.use,
            )
            for plain, example in rows:
                times = source.times(source.rows)
                source.rows += 1
                if not has_own_rows:
                    source.use.unknown.add(unknown_keys(plain))
                first = sum(writer.examples for writer in splits.values())
                row, answers = _decided(
                    config, filter_, first, times, plain, example, own=has_own_rows
                )
                counts.add(row, answers)
                ledger.add(row.plain())
                source.bad += row.reason in DEFECTS
                if isinstance(example, BadRow):  # also where the weights leave it out
                    ends = truncated_files([example]).get(name, ends)
                source.left_out += row.reason == NOT_IN_MIXTURE
                if answers and not isinstance(example, BadRow):
                    if row.split == TRAIN:
                        filter_.add_rewards(answers)
                    counts.add_prompt(row, last_question(example), answers[-1])
                    repeats = times if row.split == TRAIN else 1
                    source.add(answers, repeats)
                    for repeat in range(repeats):
                        numbered = [replace(answer, example=first + repeat) for answer in answers]
                        splits[row.split].add(numbered, name, row.input_position)
                else:
                    bad_row = {"file": row.input_file, "row": row.input_position, "id": row.path}
                    bad.write(json_line({**bad_row, "reason": row.reason, "detail": row.detail}))
                if counts.read % _ADVANCE_ROWS == 0:
                    workspace.progress.advance(done, f"{counts.read:,} rows")
            listed.append(
                PreparedFile(
                    name=name,
                    sha256=sha256_file(path),
                    read=counts.read - before[0],
                    kept=counts.kept - before[1],
                    truncated_at=ends,
                )
            )
    _finish(config, workspace, filter_, counts, sources, listed, splits)


def _sources(config: PrepareConfig, workspace: Workspace, own: bool) -> list[_Source]:
    """The sources to read, with files by their name in the ledger, and how often each is read.

    Raises   DataError for a source of a mixture without rows, or with too small a weight for one row
    """
    if own:
        rows = workspace.inputs["rows"]
        return [
            _Source(
                config=DataSource(data=("rows",)), files={f"{rows.parent.name}/{rows.name}": rows}
            )
        ]
    sources = [
        _Source(config=source_config, files=files)
        for source_config, files in locate_sources(config)
    ]
    if not config.mixture:
        return sources
    counts = [
        sum(count_rows(path, config.limits) for path in source.files.values()) for source in sources
    ]
    for number, (source, count) in enumerate(zip(sources, counts, strict=True)):
        if not count:
            raise DataError(f"{source.name} has no rows", where=f"mixture.{number}.data")
    rows_by_weight = min(
        Fraction(source.config.most_epochs) * count / Fraction(source.config.weight)
        for source, count in zip(sources, counts, strict=True)
    )
    for number, (source, count) in enumerate(zip(sources, counts, strict=True)):
        source.epochs = rows_by_weight * Fraction(source.config.weight) / count
        if source.epochs * count < 1:
            raise DataError(
                f"the weight {source.config.weight:g} of {source.name} is less than one row of the mixture",
                where=f"mixture.{number}.weight",
                fix="Raise it, or most_epochs of the source that has the fewest rows for its weight",
            )
    return sources


def _items(config: PrepareConfig) -> Iterator[Item]:
    """The items of every evaluation set, set after set."""
    files = evaluation_files(config)
    for evaluation_set in config.decontaminate.sets if config.decontaminate else ():
        yield from read_items(evaluation_set, files[evaluation_set.file], config.limits)


def _decided(
    config: PrepareConfig,
    filter_: _Filter,
    number: int,
    times: int,
    plain: Mapping[str, Any],
    example: Example | BadRow,
    *,
    own: bool,
) -> tuple[LedgerRow, list[EncodedAnswer]]:
    """The ledger's row and the answers; none when the row is dropped.

    times   how often the mixture has the row
    own     the row is from an earlier step of the run
    """
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False, default=str)
    data = text.encode("utf-8", "surrogatepass")
    row = _ledger_row(plain, example, data)
    try:
        if not times:
            raise RowDropError(NOT_IN_MIXTURE, "the weights leave the row out")
        if isinstance(example, BadRow):
            raise RowDropError(example.cause, example.reason)
        # Ids are read from files of this run alone: other text never becomes a control token.
        answers = filter_.keep(data, example, row, number, sampled_ids(plain) if own else {})
    except RowDropError as drop:
        row.reason, row.detail = drop.reason, clean_field(whole_text(drop.what))
        if config.bad_rows == "stop" and drop.reason in DEFECTS:
            where = f"{row.input_file}, row {row.input_position}"
            raise DataError(
                f"{drop.reason}: {row.detail}",
                where=where,
                fix="Correct the row, or set bad_rows=skip",
            ) from None
        return row, []
    row.decision = KEPT
    row.bytes_out = sum(len(text.encode()) for text in texts_of(example))
    row.split = HELD_OUT if _is_held_out(config, example) else TRAIN
    return row, answers


def _ledger_row(plain: Mapping[str, Any], example: Example | BadRow, data: bytes) -> LedgerRow:
    file, number = (
        (example.file, example.row)
        if isinstance(example, BadRow)
        else (example.origin.file, example.origin.row)
    )
    url = row_text(plain, "url")
    written = row_text(plain, "licence") or row_text(plain, "license")
    return LedgerRow(
        document_id=content_id(url, data),
        input_file=file,
        input_position=number,
        path=row_text(plain, "id"),
        url=url,
        source=row_text(plain, "source"),
        licence=normalized_licence(written),
        licence_basis="input" if written else "",
        language=row_text(plain, "language"),
        decision=DROPPED,
        bytes_in=len(data),
    )


def _is_held_out(config: PrepareConfig, example: Example) -> bool:
    """Whether the row's first question, without regard to white space, is in the held-out share.

    All rows with the same first question are in the same split.
    """
    asked = " ".join(first_question(example).split())
    text = f"{config.seed}\0{asked}".encode()
    number = int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
    return number < config.held_out * 2**64


def _finish(
    config: PrepareConfig,
    workspace: Workspace,
    filter_: _Filter,
    counts: _Counts,
    sources: Sequence[_Source],
    files: Sequence[PreparedFile],
    writers: Mapping[str, SplitWriter],
) -> None:
    chat, index, tokenizer = filter_.chat, filter_.index, workspace.inputs["tokenizer"]
    dropped = dict(
        sorted(
            counts.dropped.items(),
            key=lambda dropped_reason: (-dropped_reason[1], dropped_reason[0]),
        )
    )
    shown = ", ".join(f"{reason} {count:,}" for reason, count in dropped.items())
    has_own_rows = "rows" in workspace.inputs and not (config.data or config.mixture)
    listed = sorted(counts.causes.values(), key=lambda cause: -cause[1])
    unread = any(detail.startswith((NO_COLUMNS, NO_PROMPT)) for detail, _ in listed)
    other_names = "; columns of other names: prepare.fields.prompt=NAME" if unread else ""
    causes = "; ".join(f"{detail} ({count:,})" for detail, count in listed[:_SHOWN_CAUSES])
    if not counts.read:
        paths = [str(path) for source in sources for path in source.files.values()]
        raise DataError(f"{', '.join(paths)} has no rows")
    for number, source in enumerate(sources):
        for column, name in source.use.missing(source.config.fields).items():
            above = f"mixture.{number}" if config.mixture else "prepare"
            raise DataError(
                f"no row has the field {name!r}, or it is null in all",
                where=f"{above}.fields.{column}",
                fix=f"`stamm fields {next(iter(source.files))}` shows what the rows have",
            )
    held_out = writers[HELD_OUT].examples
    if held_out and not writers[TRAIN].examples:
        raise DataError(
            f"all {held_out:,} rows are held out, since held_out chooses first questions, and theirs are "
            "few or equal",
            fix="Set prepare.held_out=0, or another prepare.seed",
        )
    if not writers[TRAIN].examples:
        first = f"; the first one dropped is {counts.first_drop}" if counts.first_drop else ""
        raise DataError(
            f"no row is left to train on: {counts.read:,} read, dropped: {shown or 'none'}{first}",
            fix=f"{workspace.folder / BAD_ROWS} names each row{other_names}",
        )
    for source in sources if not has_own_rows else ():
        wanted = source.rows - source.left_out
        if source.bad > config.max_bad_rows * wanted:
            of_source = f" of {source.name}" if config.mixture else ""
            raise DataError(
                f"{source.bad:,} of {wanted:,} rows{of_source} ({source.bad / wanted:.0%}) cannot be used, "
                f"more than max_bad_rows = {config.max_bad_rows:g}: {causes}",
                fix=f"Correct the rows that {workspace.folder / BAD_ROWS} names{other_names}, or set "
                "prepare.max_bad_rows=1",
            )
    filter_.check_rewards()
    # KTO trains on both answers of a pair as examples of their own.
    train = writers[TRAIN]
    examples = train.answers if config.needs == "labels" else train.examples
    if examples < config.min_examples:
        raise DataError(
            f"the data gives {examples} examples, and the run needs {config.min_examples}",
            fix="Add rows, or raise train.epochs",
        )
    unknown = UnknownKeys()
    for source in sources:
        unknown.update(source.use.unknown)
    decontamination = None
    if config.decontaminate is not None and index is not None:
        decontamination = PreparedDecontamination(
            gram_words=config.decontaminate.gram_words,
            share=config.decontaminate.share,
            sets=index.coverage,
            contaminated=dict(sorted(filter_.contaminated.items())),
        )
    weights = sum(source.weight for source in config.mixture)
    mixture = tuple(
        PreparedShare(
            source=source.name,
            share=source.config.weight / weights,
            read=source.rows,
            kept=source.kept,
            epochs=round(float(source.epochs), 6),
            examples=source.examples,
            answers=source.answers,
            supervised_tokens=source.supervised_tokens,
        )
        for source in (sources if config.mixture else ())
    )
    summary = PreparedSummary(
        kind=filter_.kind,
        context=config.context,
        chat_format=chat.name,
        chat_format_sha256=chat.sha256,
        tokenizer_sha256=sha256_file(tokenizer / FILE if tokenizer.is_dir() else tokenizer),
        read=counts.read,
        kept=counts.kept,
        dropped=dropped,
        files=tuple(files),
        splits={
            name: writer.summary(workspace.folder / FILES[name]) for name, writer in writers.items()
        },
        licences=dict(sorted(counts.licences.items())),
        refused_licences=config.refused_licences,
        sources=tuple(
            PreparedSource(
                source=source,
                licence=licence,
                kept=kept,
                dropped=left_out,
                supervised_tokens=tokens,
            )
            for (source, licence), (kept, left_out, tokens) in counts.sources.items()
        ),
        decontamination=decontamination,
        mixture=mixture,
        unknown_keys=unknown.counts(),
        causes=dict(listed[:_MOST_CAUSES]),
    )
    write_record(workspace.folder / SUMMARY, PreparedSummary, dataclasses.asdict(summary))
    prompts = PreparedPrompts(prompts=tuple(counts.prompts.values()))
    write_record(workspace.folder / PROMPTS, PreparedPrompts, dataclasses.asdict(prompts))
    if sentence := unknown.sentence("rows of alignment data"):
        workspace.progress.log(sentence)
    if counts.bad:
        workspace.progress.log(f"Rows that cannot be used: {causes}. {BAD_ROWS} names each.")
    if cut := summary.truncation():
        workspace.progress.log(cut)
    mixed = sum(share.examples for share in mixture)
    for share in mixture:
        workspace.progress.log(
            f"Mixture: {share.source}: {share.examples:,} examples, {share.examples / mixed:.1%} "
            f"(weight {share.share:.1%}), of {share.read:,} rows read {share.epochs:.3g} times."
        )
    if config.held_out and not has_own_rows:
        held_out_line = f"Held out: {held_out:,} of {counts.kept:,} rows, by their first questions"
        hint_no_loss = "" if held_out else ". No loss on them: add rows, or raise prepare.held_out"
        workspace.progress.log(f"{held_out_line}{hint_no_loss}.")
    if not has_own_rows and counts.disordered:
        lower, equal = counts.disordered["lower"], counts.disordered["equal"]
        workspace.progress.log(
            f"The chosen answer has a lower reward than the rejected one in {lower:,} pairs, and an equal "
            f"one in {equal:,}: the columns chosen and rejected decide."
        )
    sequences = sum(writer.answers for writer in writers.values())
    if filter_.kind == "chat" and sequences > counts.kept:
        workspace.progress.log(
            f"{counts.kept:,} conversations are {sequences:,} training sequences, where the chat format "
            f"{chat.name} writes earlier turns differently: each answer follows its own prompt."
        )
    workspace.progress.end(
        f"{counts.kept:,} of {counts.read:,} rows kept" + (f"; dropped: {shown}" if shown else "")
    )
