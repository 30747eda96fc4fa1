"""The corpus of a run as its ledger tells it: what came in, what stayed, who allowed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from stamm.base.errors import DataError
from stamm.reports.reading import Record, record_if_there

_KEPT = "kept"
_PLANTED = "planted"
_ROWS = 8192
_MOST_EXAMPLES = 50
_TEXTS = (
    "input_file", "url", "host", "source", "licence", "language", "decision", "reason", "detail",
    "consent", "rule", "agent", "robots_read",
)  # fmt: skip
_WHOLES = ("input_position", "pii_email", "pii_ip", "pii_iban", "bytes_in", "bytes_out")
_LONGEST_FIELD = 4096


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """A document that was left out. Every text is untrusted."""

    url: str
    where: str
    rule: str
    agent: str


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Documents dropped for one reason, with the first few of them."""

    name: str
    documents: int
    bytes: int
    examples: tuple[Dropped, ...]


@dataclass(frozen=True, kw_only=True)
class Host:
    """What is known of one website's word.

    consent       the state of knowledge or the refusal
    agents        crawlers that were refused, "" when none was
    robots_read   when its robots.txt was read, "" when it was not
    """

    name: str
    consent: str
    agents: str
    robots_read: str
    kept: int
    dropped: int


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The ledger of a corpus, counted. Planted probes are counted apart.

    reasons     by number of documents, largest first
    consents    documents by what is known of their host's word
    hosts       by number of documents, largest first
    languages   kept documents and bytes of text, largest first; likewise sources with licences
    pii         values replaced, by kind
    """

    documents_in: int
    documents_kept: int
    bytes_in: int
    bytes_kept: int
    planted: int
    reasons: tuple[Reason, ...]
    consents: tuple[tuple[str, int], ...]
    hosts: tuple[Host, ...]
    languages: tuple[tuple[str, int, int], ...]
    sources: tuple[tuple[str, str, int, int], ...]
    pii: tuple[tuple[str, int], ...]

    @property
    def documents_dropped(self) -> int:
        """Documents that came in and were left out."""
        return self.documents_in - self.documents_kept


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The tokenizer's size and its bytes per token on the training text, None without any."""

    size: int
    bytes_per_token: float | None
    languages: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, kw_only=True)
class Pack:
    """The packed corpus: documents and tokens by split."""

    splits: tuple[tuple[str, int, int], ...]


def read_corpus(folder: Path) -> Corpus | None:
    """The corpus step's ledger, counted; None when there is none.

    Raises   DataError when a ledger cannot be read, lacks a column, or does not add up to the
             summary beside it.
    """
    ledgers = sorted(folder.glob("ledger*.parquet"))
    if not ledgers:
        return None
    tally = _Tally()
    for path in ledgers:
        for row in _rows(path):
            tally.add(row)
    summary = record_if_there(folder / "summary.json")
    if summary is not None:
        _check_sum(summary, tally)
    return tally.corpus()


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
    )


def read_pack(folder: Path) -> Pack | None:
    """The packed corpus' manifest, None when there is none."""
    manifest = record_if_there(folder / "manifest.json", schema=1)
    if manifest is None:
        return None
    return Pack(
        splits=tuple(
            (name, split.whole("documents"), split.whole("tokens"))
            for name, split in manifest.items("splits")
        )
    )


def _rate(record: Record) -> float | None:
    return record.number("bytes_per_token") if record.has("bytes_per_token") else None


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            missing = [n for n in (*_TEXTS, *_WHOLES) if n not in file.schema_arrow.names]
            if missing:
                raise DataError(
                    f"{path} has no column {missing[0]!r}", fix="Build the corpus again"
                )
            for batch in file.iter_batches(batch_size=_ROWS, columns=[*_TEXTS, *_WHOLES]):
                yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}", fix="Build the corpus again") from None


def _check_sum(summary: Record, tally: _Tally) -> None:
    told = summary.whole("n_in"), summary.whole("n_kept")
    counted = tally.documents, tally.kept
    if told != counted:
        raise DataError(
            f"{summary.where} tells of {told[0]} documents with {told[1]} kept, the ledger beside "
            f"it of {counted[0]} with {counted[1]} kept",
            fix="Build the corpus again",
        )


@dataclass
class _Tally:
    documents: int = 0
    kept: int = 0
    planted: int = 0
    sizes: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, Counter[str]] = field(default_factory=dict)
    examples: dict[str, list[Dropped]] = field(default_factory=dict)
    consents: Counter[str] = field(default_factory=Counter)
    hosts: dict[str, _HostTally] = field(default_factory=dict)
    languages: dict[tuple[str, ...], Counter[str]] = field(default_factory=dict)
    sources: dict[tuple[str, ...], Counter[str]] = field(default_factory=dict)
    pii: Counter[str] = field(default_factory=Counter)

    def add(self, raw: dict[str, Any]) -> None:
        row = {name: (raw[name] or "")[:_LONGEST_FIELD] for name in _TEXTS}
        numbers = {name: int(raw[name] or 0) for name in _WHOLES}
        if row["consent"] == _PLANTED:
            self.planted += 1
            return
        self.documents += 1
        self.sizes["in"] += numbers["bytes_in"]
        self.consents[row["consent"] or "not asked"] += 1
        host = self.hosts.setdefault(row["host"] or "(none)", _HostTally())
        host.add(row)
        if row["decision"] != _KEPT:
            self._add_dropped(row, numbers)
            return
        self.kept += 1
        size = numbers["bytes_out"]
        self.sizes["kept"] += size
        self.pii.update({kind: numbers[f"pii_{kind}"] for kind in ("email", "ip", "iban")})
        source = (row["source"] or "(unnamed)", row["licence"] or "(unstated)")
        for table, key in ((self.languages, (row["language"],)), (self.sources, source)):
            table.setdefault(key, Counter()).update(documents=1, bytes=size)

    def _add_dropped(self, row: dict[str, str], numbers: dict[str, int]) -> None:
        reason = row["reason"]
        self.reasons.setdefault(reason, Counter()).update(documents=1, bytes=numbers["bytes_in"])
        seen = self.examples.setdefault(reason, [])
        if len(seen) < _MOST_EXAMPLES:
            seen.append(
                Dropped(
                    url=row["url"],
                    where=f"{row['input_file']}, record {numbers['input_position']}",
                    rule=row["rule"] or row["detail"],
                    agent=row["agent"],
                )
            )

    def corpus(self) -> Corpus:
        return Corpus(
            documents_in=self.documents,
            documents_kept=self.kept,
            bytes_in=self.sizes["in"],
            bytes_kept=self.sizes["kept"],
            planted=self.planted,
            reasons=tuple(
                Reason(
                    name=key[0], documents=documents, bytes=size,
                    examples=tuple(self.examples[key[0]]),
                )
                for key, documents, size in _ranked({(n,): c for n, c in self.reasons.items()})
            ),
            consents=_most(self.consents),
            hosts=tuple(
                host.host(name)
                for name, host in sorted(
                    self.hosts.items(), key=lambda item: (-item[1].documents, item[0])
                )
            ),
            languages=tuple((key[0], n, size) for key, n, size in _ranked(self.languages)),
            sources=tuple((key[0], key[1], n, size) for key, n, size in _ranked(self.sources)),
            pii=tuple((kind, self.pii[kind]) for kind in ("email", "ip", "iban")),
        )  # fmt: skip


@dataclass
class _HostTally:
    kept: int = 0
    documents: int = 0
    consents: Counter[str] = field(default_factory=Counter)
    agents: Counter[str] = field(default_factory=Counter)
    read: str = ""

    def add(self, row: dict[str, str]) -> None:
        self.documents += 1
        self.kept += row["decision"] == _KEPT
        self.consents[row["consent"]] += 1
        self.agents.update(name for name in row["agent"].split(", ") if name)
        self.read = max(self.read, row["robots_read"])

    def host(self, name: str) -> Host:
        return Host(
            name=name,
            consent=", ".join(name or "not asked" for name, _ in _most(self.consents)),
            agents=", ".join(name for name, _ in _most(self.agents)),
            robots_read=self.read,
            kept=self.kept,
            dropped=self.documents - self.kept,
        )


def _most(counts: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _ranked(
    table: dict[tuple[str, ...], Counter[str]],
) -> Iterable[tuple[tuple[str, ...], int, int]]:
    ordered = sorted(table.items(), key=lambda item: (-item[1]["documents"], item[0]))
    return [(key, counts["documents"], counts["bytes"]) for key, counts in ordered]
