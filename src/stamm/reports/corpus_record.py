"""The corpus of a run as its summary, ledger and manifests tell it: what came in, what stayed, why.

Sums over all documents stand in summary.json, which the corpus step counted out of core; the
ledger is read once, in batches, for what only its rows hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyarrow.parquet

from stamm.base.errors import DataError
from stamm.reports.corpus_ledger import Consent, Dropped, Host, Source, Tally, tally
from stamm.reports.json_reader import Record, record_if_there, record_in


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Documents dropped for one reason, with the first few of them."""

    name: str
    documents: int
    bytes: int
    examples: tuple[Dropped, ...]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One shard as its manifest tells it.

    dropped   reason and documents
    hashes    file and SHA-256
    """

    name: str
    came_in: int
    kept: int
    dropped: tuple[tuple[str, int], ...]
    hashes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Requests:
    """What became of requests for deletion.

    first_unmatched   list, line and key of the first that match no record that came in
    """

    asked: int
    withdrew: int
    out_before: int
    unmatched: int
    first_unmatched: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True, kw_only=True)
class Withdrawn:
    """What a replay took out of a finished corpus.

    reasons     reason and documents, most first
    languages   language, documents and bytes before, and how many of both went
    ranges      stretches of the packed corpus that stand for withdrawn documents
    tokens      tokens in them, by split
    probes      planted passages and canaries among it
    lost_twins  documents dropped before for which a withdrawn one stood; they stay out
    requests    None where nobody asked for a deletion
    """

    reasons: tuple[tuple[str, int], ...]
    languages: tuple[tuple[str, int, int, int, int], ...]
    ranges: int
    tokens: tuple[tuple[str, int], ...]
    probes: int
    lost_twins: int
    requests: Requests | None

    @property
    def documents(self) -> int:
        """Documents taken out."""
        return sum(documents for _, documents in self.reasons)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A corpus, counted. Planted probes are counted apart.

    reasons          by number of documents, largest first
    consents         documents by what is known of their host's word
    absolute_rules   documents and websites that a robots.txt allows which has rules written as
                     absolute URLs: nobody can follow these
    hosts            the largest, by number of documents; num_hosts tells how many there are
    languages        kept documents and bytes of text, largest first
    sources          kept documents by source and licence, largest first
    unnamed_sources  kept documents of sources beyond those that are told apart
    splits           documents and bytes by split, planted probes with them
    pii              values replaced, by kind
    shards           as their manifests tell, in order
    withdrawn        what a replay took out, None for a corpus built from raw files
    """

    documents_in: int
    documents_kept: int
    bytes_in: int
    bytes_kept: int
    planted: int
    reasons: tuple[Reason, ...]
    consents: tuple[Consent, ...]
    absolute_rules: tuple[int, int]
    hosts: tuple[Host, ...]
    num_hosts: int
    languages: tuple[tuple[str, int, int], ...]
    sources: tuple[Source, ...]
    unnamed_sources: int
    splits: tuple[tuple[str, int, int], ...]
    pii: tuple[tuple[str, int], ...]
    shards: tuple[Shard, ...]
    withdrawn: Withdrawn | None

    @property
    def documents_dropped(self) -> int:
        """Documents that came in and were left out."""
        return self.documents_in - self.documents_kept


@dataclass(frozen=True, kw_only=True)
class ParallelCost:
    """What one language of a parallel text costs; tokens_per_word is None without blanks."""

    language: str
    tokens_per_line: float
    bytes_per_token: float
    tokens_per_word: float | None
    vocabulary_used: float


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """What the same lines of `text` cost in each language, and how unequally (`gini`)."""

    text: str
    lines: int
    gini: float
    languages: tuple[ParallelCost, ...]


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The tokenizer's size and its bytes per token on the training text, None without any.

    parallel   None where no parallel text was measured
    """

    size: int
    bytes_per_token: float | None
    languages: tuple[tuple[str, float | None], ...]
    parallel: Parallel | None


@dataclass(frozen=True, kw_only=True)
class Pack:
    """The packed corpus.

    splits      name, documents and tokens
    languages   split, language and tokens
    stages      name, documents and tokens of the stages of the training stream, in order
    """

    splits: tuple[tuple[str, int, int], ...]
    languages: tuple[tuple[str, str, int], ...]
    stages: tuple[tuple[str, int, int], ...]


def read_corpus(folder: Path) -> Corpus | None:
    """The corpus step's summary, ledger and manifests; None when the step is not done.

    Raises   DataError when one of them cannot be read, or ledger and summary differ.
    """
    ledgers = sorted(folder.glob("ledger*.parquet"))
    summary = record_if_there(folder / "summary.json", schema=1)
    if not ledgers or summary is None:
        return None
    counted = tally(ledgers, [name for name, _ in summary.items("by_host")])
    _check_sum(summary, counted)
    return _corpus(folder, summary, counted)


def read_corpus_summary(folder: Path) -> Corpus | None:
    """As `read_corpus`, at once: without what only the ledger's rows hold.

    Edge     there are no examples, dates of reading, agents and sources in it.
    """
    summary = record_if_there(folder / "summary.json", schema=1)
    return None if summary is None else _corpus(folder, summary, Tally())


def _corpus(folder: Path, summary: Record, counted: Tally) -> Corpus:
    return Corpus(
        documents_in=summary.whole("n_in"),
        documents_kept=summary.whole("n_kept"),
        bytes_in=summary.whole("bytes_in"),
        bytes_kept=summary.whole("bytes_kept"),
        planted=summary.whole("n_probes"),
        reasons=tuple(
            Reason(name=name, documents=n, bytes=size, examples=counted.examples.get(name, ()))
            for name, n, size in _table(summary, "dropped_by_reason")
        ),
        consents=tuple(
            counted.consent(name, n) for name, n in _counts(summary, "documents_by_consent")
        ),
        absolute_rules=_absolute_rules(summary),
        hosts=tuple(
            counted.host(name, told.whole("kept"), told.whole("dropped"))
            for name, told in summary.items("by_host")
        ),
        num_hosts=summary.whole("hosts"),
        languages=_table(summary, "kept_by_language"),
        sources=counted.sources,
        unnamed_sources=counted.unnamed_sources,
        splits=_table(summary, "by_split"),
        pii=_counts(summary, "pii_replaced"),
        shards=tuple(_shard(path) for path in sorted((folder / "manifests").glob("*.json"))),
        withdrawn=_withdrawn(summary, folder),
    )


def read_vocabulary(folder: Path) -> Vocabulary | None:
    """The tokenizer's summary, None when there is none."""
    summary = record_if_there(folder / "summary.json", schema=1)
    if summary is None:
        return None
    train = summary.record("train")
    return Vocabulary(
        size=summary.whole("vocabulary"),
        bytes_per_token=_rate(train),
        languages=tuple((name, _rate(one)) for name, one in train.items("languages")),
        parallel=_parallel(summary.record("parallel")) if summary.has("parallel") else None,
    )


def read_pack(folder: Path) -> Pack | None:
    """The packed corpus' manifest, None when there is none."""
    manifest = record_if_there(folder / "manifest.json", schema=2)
    if manifest is None:
        return None
    splits = manifest.items("splits")
    languages = [
        (name, language, tokens)
        for name, split in splits
        if split.has("tokens_by_language")
        for language, tokens in _counts(split, "tokens_by_language")
    ]
    train = dict(splits).get("train")
    stages = train.records("stages") if train is not None and train.has("stages") else ()
    return Pack(
        splits=tuple((name, one.whole("documents"), one.whole("tokens")) for name, one in splits),
        languages=tuple(languages),
        stages=tuple(
            (
                stage.text("name") if stage.has("name") else f"stage {number}",
                stage.whole("documents"),
                stage.whole("tokens"),
            )
            for number, stage in enumerate(stages, 1)
        ),
    )


def _absolute_rules(summary: Record) -> tuple[int, int]:
    """Documents and websites; an older corpus did not count them."""
    if not summary.has("absolute_rules"):
        return 0, 0
    record = summary.record("absolute_rules")
    return record.whole("documents"), record.whole("hosts")


def _parallel(record: Record) -> Parallel:
    return Parallel(
        text=record.text("text"),
        lines=record.whole("lines"),
        gini=record.number("gini"),
        languages=tuple(
            ParallelCost(
                language=name,
                tokens_per_line=_positive(one, "tokens_per_line"),
                bytes_per_token=_positive(one, "bytes_per_token"),
                tokens_per_word=one.number("tokens_per_word")
                if one.has("tokens_per_word")
                else None,
                vocabulary_used=one.number("vocabulary_used"),
            )
            for name, one in record.items("languages")
        ),
    )


def _positive(record: Record, key: str) -> float:
    value = record.number(key)
    if not 0 < value < math.inf:
        raise record.wrong(key, "a positive number")
    return value


def _rate(record: Record) -> float | None:
    return record.number("bytes_per_token") if record.has("bytes_per_token") else None


def _counts(record: Record, key: str) -> tuple[tuple[str, int], ...]:
    """A table of whole numbers, in its order."""
    table = record.record(key)
    return tuple((name, table.whole(name)) for name in table.plain)


def _counts_if_there(record: Record, key: str) -> tuple[tuple[str, int], ...]:
    return _counts(record, key) if record.has(key) else ()


def _table(record: Record, key: str) -> tuple[tuple[str, int, int], ...]:
    """A table of documents and bytes, in its order."""
    return tuple((n, one.whole("documents"), one.whole("bytes")) for n, one in record.items(key))


def _check_sum(summary: Record, counted: Tally) -> None:
    told = summary.whole("n_in"), summary.whole("n_kept")
    if told != (counted.documents, counted.kept):
        raise DataError(
            f"{summary.where} tells of {told[0]} documents with {told[1]} kept, the ledger beside "
            f"it of {counted.documents} with {counted.kept} kept",
            fix="Build the corpus again",
        )


def _shard(path: Path) -> Shard:
    manifest = record_in(path, schema=1)
    return Shard(
        name=path.stem,
        came_in=manifest.whole("in"),
        kept=manifest.whole("kept"),
        dropped=_counts(manifest, "dropped"),
        hashes=tuple((name, one.text("sha256")) for name, one in manifest.items("outputs")),
    )


def _withdrawn(summary: Record, folder: Path) -> Withdrawn | None:
    if not summary.has("withdrawn_by_reason"):
        return None
    path = folder / "token_ranges.parquet"
    try:
        ranges = pyarrow.parquet.read_metadata(path).num_rows
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}", fix="Run the replay again") from None
    return Withdrawn(
        reasons=_counts(summary, "withdrawn_by_reason"),
        languages=tuple(
            (
                name,
                one.whole("documents"),
                one.whole("withdrawn"),
                one.whole("bytes"),
                one.whole("withdrawn_bytes"),
            )
            for name, one in summary.items("withdrawn_by_language")
        ),
        ranges=ranges,
        tokens=_counts(summary, "withdrawn_tokens"),
        probes=summary.whole("withdrawn_probes") if summary.has("withdrawn_probes") else 0,
        lost_twins=sum(n for _, n in _counts_if_there(summary, "duplicates_not_brought_back")),
        requests=_requests(summary),
    )


def _requests(summary: Record) -> Requests | None:
    """What became of the requests; None where there are none, or an older replay did not count."""
    if not summary.has("deletion_requests"):
        return None
    record = summary.record("deletion_requests")
    if not record.whole("asked"):
        return None
    return Requests(
        asked=record.whole("asked"),
        withdrew=record.whole("withdrew"),
        out_before=record.whole("out_before"),
        unmatched=record.whole("unmatched"),
        first_unmatched=tuple(
            (one.text("list"), one.whole("line"), one.text("key"))
            for one in record.records("first_unmatched")
        ),
    )
