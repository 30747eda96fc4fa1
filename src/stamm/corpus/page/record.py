"""The corpus of a run: its summaries, its manifests, and what only the rows of its ledger hold.

Sums over all documents are in summary.json, which the corpus step counted out of core; the ledger
is read once, in batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from stamm.base.errors import DataError
from stamm.base.receipts import check_file, check_present
from stamm.base.schema import read_record, read_record_if_present
from stamm.corpus.records import CorpusSummary, CoverageFile, PackManifest, TokenizerSummary
from stamm.runs.records import ShardManifest

_KEPT = "kept"
_PLANTED = "planted"
_NOT_ASKED = "not asked"
_ROWS = 16_384
_MOST_EXAMPLES = 50
_MOST_SOURCES = 1000
_MOST_VALUES = 20
_LONGEST_FIELD = 4096
_TEXTS = (
    "input_file", "url", "host", "source", "licence", "decision", "reason", "detail", "consent",
    "rule", "agent", "robots_read",
)  # fmt: skip
_WHOLES = ("input_position", "bytes_out")


@dataclass(frozen=True, kw_only=True)
class DroppedDocument:
    """A document that was left out. Every text is untrusted."""

    url: str
    where: str
    rule: str
    agent: str


@dataclass(frozen=True, kw_only=True)
class ConsentDates:
    """Documents by consent status of their host.

    first_read, last_read   when the robots.txt that decided were read, "" when none was
    """

    state: str
    documents: int
    first_read: str
    last_read: str


@dataclass(frozen=True, kw_only=True)
class Host:
    """Consent facts of one website.

    consent       consent statuses
    agents        crawlers that were refused, "" when none was
    robots_read   when its robots.txt was read last, "" when it was not
    """

    name: str
    consent: str
    agents: str
    robots_read: str
    kept: int
    dropped: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """Kept documents of one source under one licence, as the documents state them."""

    name: str
    licence: str
    documents: int
    bytes: int


@dataclass
class LedgerTally:
    """Counts over ledger rows. Planted probes are not counted as documents."""

    documents: int = 0
    kept: int = 0
    unnamed_sources: int = 0
    examples: dict[str, tuple[DroppedDocument, ...]] = field(default_factory=dict)
    _dates: dict[str, tuple[str, str]] = field(default_factory=dict)
    _sources: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    _words: dict[str, dict[str, dict[str, None]]] = field(default_factory=dict)
    _read: dict[str, str] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Sources with licences by number of documents, largest first."""
        ordered = sorted(self._sources.items(), key=lambda item: (-item[1][0], item[0]))
        return tuple(
            Source(name=key[0], licence=key[1], documents=n, bytes=size)
            for key, (n, size) in ordered
        )

    def consent(self, state: str, documents: int) -> ConsentDates:
        """A consent status with its dates."""
        first, last = self._dates.get(state, ("", ""))
        return ConsentDates(state=state, documents=documents, first_read=first, last_read=last)

    def host(self, name: str, kept: int, dropped: int) -> Host:
        """Consent facts of a website passed to `tally`."""
        known = self._words.get(name, {})
        return Host(
            name=name,
            consent=", ".join(known.get("consent", ())),
            agents=", ".join(known.get("agent", ())),
            robots_read=self._read.get(name, ""),
            kept=kept,
            dropped=dropped,
        )

    def add(self, batch: pyarrow.Table, hosts: pyarrow.Array) -> None:
        """Count some rows, in which no text is null."""
        documents = batch.filter(pyarrow.compute.not_equal(batch["consent"], _PLANTED))
        is_kept = pyarrow.compute.equal(documents["decision"], _KEPT)
        kept = documents.filter(is_kept)
        self.documents += documents.num_rows
        self.kept += kept.num_rows
        self._add_dates(documents)
        self._add_sources(kept)
        self._add_hosts(documents.filter(pyarrow.compute.is_in(documents["host"], hosts)))
        self._add_examples(documents.filter(pyarrow.compute.invert(is_kept)))

    def _add_dates(self, rows: pyarrow.Table) -> None:
        read = rows.filter(pyarrow.compute.not_equal(rows["robots_read"], ""))
        grouped = read.group_by("consent").aggregate([("robots_read", "min_max")])
        for row in grouped.to_pylist():
            state, ends = row["consent"] or _NOT_ASKED, row["robots_read_min_max"]
            first, last = self._dates.get(state, (ends["min"], ends["max"]))
            self._dates[state] = (min(first, ends["min"]), max(last, ends["max"]))

    def _add_sources(self, rows: pyarrow.Table) -> None:
        grouped = rows.group_by(["source", "licence"], use_threads=False).aggregate(
            [([], "count_all"), ("bytes_out", "sum")]
        )
        for row in grouped.to_pylist():
            key = row["source"], row["licence"]
            if key not in self._sources and len(self._sources) == _MOST_SOURCES:
                self.unnamed_sources += row["count_all"]
                continue
            documents, size = self._sources.get(key, (0, 0))
            self._sources[key] = documents + row["count_all"], size + row["bytes_out_sum"]

    def _add_hosts(self, rows: pyarrow.Table) -> None:
        for column in ("consent", "agent"):
            grouped = rows.group_by(["host", column], use_threads=False).aggregate([])
            for row in grouped.to_pylist():
                known = self._words.setdefault(row["host"], {}).setdefault(column, {})
                words = row[column].split(", ") if column == "agent" else [row[column]]
                for word in words:
                    if len(known) < _MOST_VALUES and (word or column == "consent"):
                        known[word or _NOT_ASKED] = None
        for row in rows.group_by("host").aggregate([("robots_read", "max")]).to_pylist():
            read = self._read.get(row["host"], "")
            self._read[row["host"]] = max(read, row["robots_read_max"])

    def _add_examples(self, rows: pyarrow.Table) -> None:
        for reason in pyarrow.compute.unique(rows["reason"]).to_pylist():
            seen = self.examples.get(reason, ())
            if len(seen) < _MOST_EXAMPLES:
                matching = rows.filter(pyarrow.compute.equal(rows["reason"], reason))
                examples = matching.slice(0, _MOST_EXAMPLES - len(seen)).to_pylist()
                self.examples[reason] = (*seen, *(_example(row) for row in examples))


def tally(ledgers: Sequence[Path], hosts: Sequence[str]) -> LedgerTally:
    """Counts over the ledgers, with details of some hosts ("": documents without one).

    Raises   DataError when a ledger cannot be read or lacks a column.
    """
    wanted = pyarrow.array(hosts, pyarrow.string())
    counted = LedgerTally()
    for path in ledgers:
        for batch in _batches(path):
            counted.add(batch, wanted)
    return counted


def _batches(path: Path) -> Iterator[pyarrow.Table]:
    columns = [*_TEXTS, *_WHOLES]
    check_file(path)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            missing = [name for name in columns if name not in file.schema_arrow.names]
            if missing:
                raise DataError(
                    f"{path} has no column {missing[0]!r}", fix="Build the corpus again"
                )
            for batch in file.iter_batches(batch_size=_ROWS, columns=columns):
                yield _plain(batch)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}", fix="Build the corpus again") from None


def _plain(batch: pyarrow.RecordBatch) -> pyarrow.Table:
    """Rows without nulls, every text cut to the longest field of a ledger."""
    columns = {}
    for name in _TEXTS:
        text = pyarrow.compute.fill_null(batch[name].cast(pyarrow.string()), "")
        columns[name] = pyarrow.compute.utf8_slice_codeunits(text, 0, _LONGEST_FIELD)
    for name in _WHOLES:
        columns[name] = pyarrow.compute.fill_null(batch[name].cast(pyarrow.int64()), 0)
    return pyarrow.table(columns)


def _example(row: dict[str, str]) -> DroppedDocument:
    return DroppedDocument(
        url=row["url"],
        where=f"{row['input_file']}, record {row['input_position']}",
        rule=row["rule"] or row["detail"],
        agent=row["agent"],
    )


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Documents dropped for one reason, with the first few of them."""

    name: str
    documents: int
    bytes: int
    examples: tuple[DroppedDocument, ...]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A corpus. Planted probes are counted apart.

    reasons           by number of documents, largest first
    consents          documents by consent status of their host
    hosts             the largest, by number of documents; summary.hosts counts all
    sources           kept documents by source and licence, largest first
    unnamed_sources   kept documents of sources that are not listed
    shards            manifests by name, in order
    withdrawn_ranges  ranges of the packed corpus that a replay withdrew; None without a replay
    vocabulary, pack, coverage   of its tokenizer, its packed tokens, and the evaluation texts that a
                      contamination screen searched for; None where there is none
    """

    summary: CorpusSummary
    reasons: tuple[Reason, ...]
    consents: tuple[ConsentDates, ...]
    hosts: tuple[Host, ...]
    sources: tuple[Source, ...]
    unnamed_sources: int
    shards: tuple[tuple[str, ShardManifest], ...]
    withdrawn_ranges: int | None
    vocabulary: TokenizerSummary | None
    pack: PackManifest | None
    coverage: CoverageFile | None

    @property
    def documents_dropped(self) -> int:
        """Documents that were read and dropped."""
        return self.summary.n_in - self.summary.n_kept


def read_corpus(run_folder: Path) -> Corpus | None:
    """Summaries, ledger and manifests of a run's corpus; None when the corpus step is not finished.

    Raises   DataError when one of them cannot be read, or ledger and summary differ.
    """
    folder = run_folder / "corpus"
    check_present(folder, "ledger*.parquet")
    ledgers = sorted(folder.glob("ledger*.parquet"))
    summary = read_record_if_present(CorpusSummary, folder / "summary.json")
    if not ledgers or summary is None:
        return None
    counted = tally(ledgers, list(summary.by_host))
    if (summary.n_in, summary.n_kept) != (counted.documents, counted.kept):
        raise DataError(
            f"{folder / 'summary.json'} counts {summary.n_in} documents with {summary.n_kept} "
            f"kept, its ledger {counted.documents} with {counted.kept} kept",
            fix="Build the corpus again",
        )
    return _corpus(run_folder, summary, counted)


def read_corpus_summary(run_folder: Path) -> Corpus | None:
    """As `read_corpus`, without the ledger: no examples, dates of reading, agents and sources."""
    summary = read_record_if_present(CorpusSummary, run_folder / "corpus" / "summary.json")
    return None if summary is None else _corpus(run_folder, summary, LedgerTally())


def _corpus(run_folder: Path, summary: CorpusSummary, counted: LedgerTally) -> Corpus:
    folder = run_folder / "corpus"
    return Corpus(
        summary=summary,
        reasons=tuple(
            Reason(
                name=name,
                documents=dropped.documents,
                bytes=dropped.bytes,
                examples=counted.examples.get(name, ()),
            )
            for name, dropped in summary.dropped_by_reason.items()
        ),
        consents=tuple(counted.consent(*item) for item in summary.documents_by_consent.items()),
        hosts=tuple(
            counted.host(name, host_counts.kept, host_counts.dropped)
            for name, host_counts in summary.by_host.items()
        ),
        sources=counted.sources,
        unnamed_sources=counted.unnamed_sources,
        shards=tuple(
            (path.stem, read_record(ShardManifest, path))
            for path in sorted((folder / "manifests").glob("*.json"))
        ),
        withdrawn_ranges=None if summary.withdrawn_by_reason is None else _ranges(folder),
        vocabulary=read_record_if_present(
            TokenizerSummary, run_folder / "tokenizer" / "summary.json"
        ),
        pack=read_pack(run_folder / "pack"),
        coverage=read_record_if_present(
            CoverageFile, run_folder / "filtered" / "contamination" / "coverage.json"
        ),
    )


def _ranges(folder: Path) -> int:
    path = folder / "token_ranges.parquet"
    try:
        return int(pyarrow.parquet.read_metadata(path).num_rows)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}", fix="Run the replay again") from None


def read_pack(folder: Path) -> PackManifest | None:
    """The packed corpus' manifest; None when there is none."""
    return read_record_if_present(PackManifest, folder / "manifest.json")
