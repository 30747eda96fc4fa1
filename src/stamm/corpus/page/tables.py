"""Tables of the corpus section. Every text in them is cut, and control characters are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from stamm.base.units import bytes_text
from stamm.corpus.page.record import Corpus
from stamm.corpus.page.result import corpus_sentences, counted
from stamm.corpus.records import CorpusSummary, PackManifest
from stamm.pages.config import ReportConfig
from stamm.pages.figure import DataTable
from stamm.pages.formatting import fixed, percent
from stamm.pages.text import one_line
from stamm.runs.records import ShardManifest

_LONGEST_CELL = 120
_LONGEST_NAME = 60
_MOST_ROWS = 100
_HASH_DIGITS = 12
_PII_NAMES = {
    "email": "e-mail addresses",
    "ip": "public IP addresses",
    "iban": "bank accounts (IBAN)",
    "phone": "telephone numbers",
    "card": "payment cards",
}
Row = tuple[str | int | None, ...]


def corpus_tables(corpus: Corpus, config: ReportConfig) -> dict[str, Any]:
    """Tables, sentences, tiles and examples by their name in the template. One without rows is not shown."""
    summary, pack = corpus.summary, corpus.pack
    sets = corpus.coverage.sets if corpus.coverage else {}
    requests = summary.deletion_requests
    unmatched = requests.first_unmatched if requests else ()
    further = (
        sum(source.documents for source in corpus.sources[_MOST_ROWS:]) + corpus.unnamed_sources
    )
    train = pack.splits.get("train") if pack else None
    stages = train.stages if train and len(train.stages) > 1 else ()  # one repeats the split
    packed = pack.splits if pack else {}
    return {
        "sentences": corpus_sentences(corpus),
        "tiles": tuple(_tiles(corpus)),
        "examples": _examples(corpus, config.examples),
        "consents": _table(
            "consent status of the host | robots.txt read, first | robots.txt read, last | documents | share",
            (
                (
                    _words(consent.state),
                    _cell(consent.first_read) or "not read",
                    _cell(consent.last_read) or "not read",
                    consent.documents,
                    _share(consent.documents, summary.n_in),
                )
                for consent in corpus.consents
            ),
            words=3,
        ),
        "hosts": _table(
            "website | decision | agents refused | robots.txt read | kept | dropped",
            _hosts(corpus, config.hosts),
            words=4,
        ),
        "sources": _table(
            "source | licence | documents | text",
            (
                (
                    _name(source.name) or "(unnamed)",
                    _name(source.licence) or "(unstated)",
                    source.documents,
                    bytes_text(source.bytes),
                )
                for source in corpus.sources[:_MOST_ROWS]
            ),
            words=2,
            note=further
            and f"{counted(further, 'document')} of further sources are in the ledger.",
        ),
        "duplicates": _table(
            "kind | documents | share of all | text",
            (
                (
                    _words(reason.name),
                    reason.documents,
                    _share(reason.documents, summary.n_in),
                    bytes_text(reason.bytes),
                )
                for reason in corpus.reasons
                if "duplicate" in reason.name
            ),
        ),
        "evaluations": _first_rows(
            "evaluation set | items | texts, searched by runs | texts, searched whole | "
            "texts, too short | items, not searchable",
            [(_name(n), s.items, s.runs, s.short, s.unseen, s.blind) for n, s in sets.items()],
            "filtered/contamination/coverage.json",
        ),
        "pii": _table(
            "kind | replaced",
            ((_PII_NAMES.get(k, _words(k)), n) for k, n in summary.pii_replaced.items()),
        ),
        "filter_columns": filter_columns(summary),
        "splits": _table(
            "split | documents | text | documents packed, with repeats | tokens",
            (
                (
                    _words(name),
                    split.documents,
                    bytes_text(split.bytes),
                    packed[name].documents if name in packed else None,
                    packed[name].tokens if name in packed else None,
                )
                for name, split in summary.by_split.items()
            ),
            note=summary.n_probes
            and "Planted passages are counted here; a control passage is never trained on.",
        ),
        "tokens": _tokens(pack),
        "stages": _table(
            "stage | documents, with repeats | tokens | share",
            (
                (
                    _name(train_stage.name or f"stage {number}"),
                    train_stage.documents,
                    train_stage.tokens,
                    _share(train_stage.tokens, sum(stage.tokens for stage in stages)),
                )
                for number, train_stage in enumerate(stages, 1)
            ),
        ),
        "shards": _shards(corpus.shards),
        "withdrawn": _table(
            "reason | documents withdrawn",
            ((_words(name), n) for name, n in (summary.withdrawn_by_reason or {}).items()),
        ),
        "withdrawn_languages": _table(
            "language | documents before | withdrawn | text before | text withdrawn | share of the text",
            _withdrawn_languages(summary),
        ),
        "unmatched": _table(
            "list | line | SHA-256 of the address, or identifier",
            ((_name(request.list), request.line, _cell(request.key)) for request in unmatched),
            note=_left(requests.unmatched - len(unmatched), "corpus/requests.parquet")
            if requests
            else "",
        ),
    }


def _table(columns: str, rows: Iterable[Row], *, words: int = 1, note: str | int = "") -> DataTable:
    """A table with its columns between bars; numbers with separators of thousands, None as nothing.

    note   "", or 0, without one
    """
    written = (
        tuple("" if x is None else f"{x:,}" if isinstance(x, int) else x for x in row)
        for row in rows
    )
    return DataTable(
        columns=tuple(columns.split(" | ")), rows=tuple(written), words=words, note=str(note or "")
    )


def _first_rows(columns: str, rows: Sequence[Row], file: str) -> DataTable:
    return _table(columns, rows[:_MOST_ROWS], note=_left(len(rows) - _MOST_ROWS, file))


def _left(number: int, file: str) -> str:
    return f"{number:,} more are in {file}." if number > 0 else ""


def _tiles(corpus: Corpus) -> Iterator[tuple[str, str]]:
    summary = corpus.summary
    yield f"{summary.n_in:,}", "documents came in"
    yield f"{summary.n_kept:,}", f"stayed, {bytes_text(summary.bytes_kept)}"
    yield f"{corpus.documents_dropped:,}", "were left out, each with its reason"
    yield f"{sum(summary.pii_replaced.values()):,}", "personal data replaced"
    yield f"{summary.n_probes:,}", "planted memorization probes"
    if corpus.vocabulary:
        rate = fixed(corpus.vocabulary.train.bytes_per_token, 2)
        yield f"{corpus.vocabulary.vocabulary:,}", f"tokens in the vocabulary, {rate} bytes each"
    for name, split in corpus.pack.splits.items() if corpus.pack else ():
        documents = counted(split.documents, "document")
        yield f"{split.tokens:,}", f"tokens of {_cell(name)}, {documents}"


def _examples(corpus: Corpus, limit: int) -> list[dict[str, Any]]:
    """The first documents dropped for each reason."""
    return [
        {
            "reason": _words(reason.name),
            "documents": reason.documents,
            "shown": [
                replace(example, **{name: _cell(text) for name, text in vars(example).items()})
                for example in reason.examples[:limit]
            ],
        }
        for reason in (corpus.reasons if limit else ())
    ]


def _hosts(corpus: Corpus, limit: int) -> Iterator[Row]:
    """The largest websites: first those with a refusal, which concerns the reader most."""
    largest = corpus.hosts[:limit]
    for host in sorted(largest, key=lambda host: (not host.agents, -host.kept - host.dropped)):
        yield (
            _name(host.name) or "(no address)",
            _name(host.consent.replace("_", " ")),
            one_line(host.agents, 90) or "none",
            _name(host.robots_read) or "not read",
            host.kept,
            host.dropped,
        )
    num_hidden = corpus.summary.hosts - len(largest)
    if num_hidden > 0:
        kept = corpus.summary.n_kept - sum(host.kept for host in largest)
        dropped = corpus.documents_dropped - sum(host.dropped for host in largest)
        yield f"{counted(num_hidden, 'more website')}, together", "", "", "", kept, dropped


def filter_columns(summary: CorpusSummary) -> DataTable:
    """Values of the columns that a user's corpus filters added to the ledger."""
    return _table(
        "column | most frequent values | kept documents | least | median | largest",
        (
            (
                _words(name),
                _cell(
                    ", ".join(f"{value or '(empty)'} {n:,}" for value, n in column.values.items())
                ),
                column.documents,
                *(
                    "" if x is None else f"{x:.4g}"
                    for x in (column.least, column.median, column.largest)
                ),
            )
            for name, column in summary.filter_columns.items()
        ),
        words=2,
    )


def _tokens(pack: PackManifest | None) -> DataTable:
    if pack is None:
        return _table("language", ())
    sizes: dict[str, list[int]] = {}
    for number, split in enumerate(pack.splits.values()):
        for language, tokens in split.tokens_by_language.items():
            sizes.setdefault(language, [0] * len(pack.splits))[number] = tokens
    ordered = sorted(sizes.items(), key=lambda item: (-sum(item[1]), item[0]))
    rows: list[Row] = [(_name(language), *counts) for language, counts in ordered[:_MOST_ROWS]]
    if rest := [counts for _, counts in ordered[_MOST_ROWS:]]:
        sums = map(sum, zip(*rest, strict=True))
        rows.append((f"{counted(len(rest), 'more language')}, together", *sums))
    table = _table("language", rows)
    named = (f"tokens, {_words(split)}" for split in pack.splits)
    return replace(table, columns=(*table.columns, *named))


def _shards(shards: Sequence[tuple[str, ShardManifest]]) -> DataTable:
    rows: list[Row] = []
    for name, manifest in shards:
        sha256 = {
            file.partition("-")[0]: output.sha256 for file, output in manifest.outputs.items()
        }
        hashes = (_cell(sha256.get(k, "")[:_HASH_DIGITS]) for k in ("documents", "ledger"))
        rows.append(
            (_name(name), manifest.came_in, manifest.kept, sum(manifest.dropped.values()), *hashes)
        )
    columns = "shard | in | kept | dropped | documents, SHA-256 | ledger, SHA-256"
    table = _first_rows(columns, rows, "corpus/manifests")
    if not rows:
        return table
    sums = (f"{sum(row[at] for row in rows):,}" for at in (1, 2, 3))  # type: ignore[misc]
    return replace(table, rows=(*table.rows, (f"all {len(rows):,}", *sums, "", "")))


def _withdrawn_languages(summary: CorpusSummary) -> Iterator[Row]:
    touched = [
        (
            _name(name),
            (language.documents, language.withdrawn, language.bytes, language.withdrawn_bytes),
        )
        for name, language in summary.withdrawn_by_language.items()
        if language.withdrawn
    ]
    if rest := [counts for _, counts in touched[_MOST_ROWS:]]:
        before, withdrawn, size, lost = map(sum, zip(*rest, strict=True))
        words = f"{counted(len(rest), 'more language')}, together"
        touched[_MOST_ROWS:] = [(words, (before, withdrawn, size, lost))]
    for name, (before, withdrawn, size, lost) in touched:
        yield name, before, withdrawn, bytes_text(size), bytes_text(lost), _share(lost, size)


def _share(part: int, whole: int) -> str:
    return percent(part / whole) if whole else ""


def _words(name: str) -> str:
    return one_line(name.replace("_", " "), _LONGEST_NAME)


def _name(text: str) -> str:
    return one_line(text, _LONGEST_NAME)


def _cell(text: str) -> str:
    return one_line(text, _LONGEST_CELL)
