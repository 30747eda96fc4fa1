"""The corpus of a run: its summary, its manifests, and what only the rows of its ledger hold.

Sums over all documents are in summary.json, which the corpus step counted out of core; the ledger
is read once, in batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyarrow.parquet

from stamm.base.errors import DataError
from stamm.base.receipts import check_present
from stamm.base.schema import read_record, read_record_if_present
from stamm.reports.corpus_ledger import (
    ConsentDates,
    DroppedDocument,
    Host,
    LedgerTally,
    Source,
    tally,
)
from stamm.runs.schemas.corpus import (
    CorpusSummary,
    PackManifest,
    ShardManifest,
    TokenizerSummary,
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
    """

    summary: CorpusSummary
    reasons: tuple[Reason, ...]
    consents: tuple[ConsentDates, ...]
    hosts: tuple[Host, ...]
    sources: tuple[Source, ...]
    unnamed_sources: int
    shards: tuple[tuple[str, ShardManifest], ...]
    withdrawn_ranges: int | None

    @property
    def documents_dropped(self) -> int:
        """Documents that were read and dropped."""
        return self.summary.n_in - self.summary.n_kept


def read_corpus(folder: Path) -> Corpus | None:
    """Summary, ledger and manifests of the corpus step; None when the step is not finished.

    Raises   DataError when one of them cannot be read, or ledger and summary differ.
    """
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
    return _corpus(folder, summary, counted)


def read_corpus_summary(folder: Path) -> Corpus | None:
    """As `read_corpus`, without reading the ledger.

    Edge     examples, dates of reading, agents and sources are empty.
    """
    summary = read_record_if_present(CorpusSummary, folder / "summary.json")
    return None if summary is None else _corpus(folder, summary, LedgerTally())


def _corpus(folder: Path, summary: CorpusSummary, counted: LedgerTally) -> Corpus:
    return Corpus(
        summary=summary,
        reasons=tuple(
            Reason(
                name=name,
                documents=one.documents,
                bytes=one.bytes,
                examples=counted.examples.get(name, ()),
            )
            for name, one in summary.dropped_by_reason.items()
        ),
        consents=tuple(counted.consent(*item) for item in summary.documents_by_consent.items()),
        hosts=tuple(
            counted.host(name, one.kept, one.dropped) for name, one in summary.by_host.items()
        ),
        sources=counted.sources,
        unnamed_sources=counted.unnamed_sources,
        shards=tuple(
            (path.stem, read_record(ShardManifest, path))
            for path in sorted((folder / "manifests").glob("*.json"))
        ),
        withdrawn_ranges=None if summary.withdrawn_by_reason is None else _ranges(folder),
    )


def _ranges(folder: Path) -> int:
    path = folder / "token_ranges.parquet"
    try:
        return int(pyarrow.parquet.read_metadata(path).num_rows)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}", fix="Run the replay again") from None


def read_vocabulary(folder: Path) -> TokenizerSummary | None:
    """The tokenizer's summary; None when there is none."""
    return read_record_if_present(TokenizerSummary, folder / "summary.json")


def read_pack(folder: Path) -> PackManifest | None:
    """The packed corpus' manifest; None when there is none."""
    return read_record_if_present(PackManifest, folder / "manifest.json")
