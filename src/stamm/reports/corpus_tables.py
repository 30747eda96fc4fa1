"""Tables of the corpus section. Every text in them is cut, and control characters are escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stamm.base.units import bytes_text
from stamm.reports.config import ReportConfig
from stamm.reports.corpus_ledger import DroppedDocument
from stamm.reports.corpus_record import Corpus
from stamm.reports.figure import DataTable
from stamm.reports.formatting import fixed, percent
from stamm.reports.run_data import RunResults
from stamm.reports.text import one_line
from stamm.runs.schemas.corpus import (
    AbsoluteRules,
    CorpusSummary,
    DeletionRequests,
    PackManifest,
    PackSplit,
    ShardManifest,
)

_LONGEST_CELL = 120
_LONGEST_NAME = 60
_MOST_ROWS = 100
_MOST_LINES = 10
_HASH_DIGITS = 12
_PII_NAMES = {
    "email": "e-mail addresses",
    "ip": "public IP addresses",
    "iban": "bank accounts (IBAN)",
    "phone": "telephone numbers",
    "card": "payment cards",
}


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Documents dropped for one reason, as shown."""

    reason: str
    documents: int
    shown: tuple[DroppedDocument, ...]


@dataclass(frozen=True, kw_only=True)
class CorpusTables:
    """Tables and sentences about the corpus. A table without rows is not shown."""

    sentences: tuple[str, ...]
    tiles: tuple[tuple[str, str], ...]
    examples: tuple[Examples, ...]
    consents: DataTable
    hosts: DataTable
    sources: DataTable
    duplicates: DataTable
    pii: DataTable
    splits: DataTable
    tokens: DataTable
    stages: DataTable
    shards: DataTable
    withdrawn: DataTable
    withdrawn_languages: DataTable
    unmatched: DataTable


def corpus_tables(study: RunResults, config: ReportConfig) -> CorpusTables | None:
    """The tables about the corpus of `study`; None when it has none."""
    corpus = study.corpus
    if corpus is None:
        return None
    return CorpusTables(
        sentences=(*corpus_sentences(corpus), *split_sentences(study.pack)),
        tiles=_tiles(study, corpus),
        examples=_examples(corpus, config.examples),
        consents=_consents(corpus),
        hosts=_hosts(corpus, config.hosts),
        sources=_sources(corpus),
        duplicates=_duplicates(corpus),
        pii=_pii(corpus),
        splits=_splits(corpus, study.pack),
        tokens=_tokens(study.pack),
        stages=_stages(study.pack),
        shards=_shards(corpus.shards),
        withdrawn=_withdrawn(corpus.summary),
        withdrawn_languages=_withdrawn_languages(corpus.summary),
        unmatched=_unmatched(corpus.summary.deletion_requests),
    )


def corpus_sentences(corpus: Corpus) -> tuple[str, ...]:
    """Documents read, kept and dropped, as sentences, the most important first."""
    stayed = (
        f"{corpus.summary.n_kept:,} of {counted(corpus.summary.n_in, 'document')} stayed "
        f"({bytes_text(corpus.summary.bytes_kept)} of text), {corpus.documents_dropped:,} were left out."
    )
    summary = corpus.summary
    ignored = (
        *_unasked(summary),
        *_ignored(summary.absolute_rules),
        *_unread(summary.unread_terms),
    )
    if summary.withdrawn_by_reason is None or corpus.withdrawn_ranges is None:
        return (stayed, *ignored)
    before = sum(one.documents for one in summary.withdrawn_by_language.values())
    withdrawn = sum(summary.withdrawn_by_reason.values())
    said = [
        f"A newer opt-out withdrew {withdrawn:,} of the {counted(before, 'document')} of a "
        f"finished corpus: {counted(corpus.withdrawn_ranges, 'range')} of its token stream, "
        f"{counted(sum(summary.withdrawn_tokens.values()), 'token')} in all.",
        stayed,
    ]
    if summary.withdrawn_probes:
        said.append(
            f"{counted(summary.withdrawn_probes, 'planted passage')} withdrawn, too: no audit "
            "measures them."
        )
    lost = sum(summary.duplicates_not_brought_back.values())
    if lost:
        said.append(
            f"{counted(lost, 'document')}, dropped before as duplicates of a withdrawn "
            "one, stay out: only a new build restores them."
        )
    if summary.deletion_requests and summary.deletion_requests.asked:
        said.append(_answer(summary.deletion_requests))
    return (*said, *ignored)


def _unasked(summary: CorpusSummary) -> Iterator[str]:
    """Sentences about documents whose consent no file states: of the user, and of unknown hosts."""
    kept = {name: one.documents for name, one in summary.kept_by_consent.items()}
    if own := kept.get("no_url"):
        yield f"{counted(own, 'document')} without an address stayed, as your own text."
    unknown = summary.dropped_by_reason.get("unknown_host")
    if unknown:
        yield (
            f"{counted(unknown.documents, 'document')} of hosts whose robots.txt is not known "
            "were left out (unknown_host)."
        )
    if number := kept.get("unknown_host"):
        yield (
            f"{counted(number, 'document')} of hosts whose robots.txt is not known stayed "
            "(corpus.consent.unknown_host = allow)."
        )


def split_sentences(pack: PackManifest | None) -> tuple[str, ...]:
    """Tokens and documents of each split, with the share of planted passages."""
    return tuple(_split_sentence(*item) for item in pack.splits.items()) if pack else ()


def _split_sentence(name: str, split: PackSplit) -> str:
    documents = counted(split.documents, "document")
    said = f"{one_line(name, 40)}: {counted(split.tokens, 'token')} in {documents}, repeats counted"
    if split.planted_documents and split.tokens:
        return (
            f"{said}: {split.documents - split.planted_documents:,} of the corpus and "
            f"{counted(split.planted_documents, 'copy', 'copies')} of planted passages, which are "
            f"{percent(split.planted_tokens / split.tokens)} of the tokens."
        )
    return f"{said}."


def _ignored(rules: AbsoluteRules) -> tuple[str, ...]:
    """A sentence about rules written as absolute URLs, which no parser follows; () without any."""
    if not rules.documents:
        return ()
    return (
        f"The robots.txt of {counted(rules.hosts, 'website')} "
        f"({counted(rules.documents, 'document')}) has "
        "rules written as absolute URLs of the same site. No parser follows them; the ledger names "
        "the first.",
    )


def _unread(terms: AbsoluteRules) -> tuple[str, ...]:
    """A sentence about terms of use that a site names and that were not read; () without any."""
    if not terms.documents:
        return ()
    return (
        f"{counted(terms.hosts, 'website')} ({counted(terms.documents, 'document')}) name terms of use "
        "that were not read, such as a licence in a file of their own; the ledger has them in its column "
        "unread_terms.",
    )


def _answer(requests: DeletionRequests) -> str:
    """Outcomes of the requests for deletion; unmatched ones by list and line."""
    said = (
        f"Of {counted(requests.asked, 'request')} for deletion {requests.withdrew:,} withdrew "
        f"documents, {requests.out_before:,} match only dropped ones and {requests.unmatched:,} match "
        "nothing that came in"
    )
    first = requests.first_unmatched[:_MOST_LINES]
    if not first:
        return f"{said}."
    lines = ", ".join(f"{one_line(one.list, _LONGEST_NAME)} line {one.line}" for one in first)
    more = requests.unmatched - len(first)
    return f"{said}: {lines}" + (f", and {more:,} more." if more else ".")


def counted(number: int, one: str, more: str = "") -> str:
    """A number with its noun: "1 document", "2 documents"."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def _tiles(study: RunResults, corpus: Corpus) -> tuple[tuple[str, str], ...]:
    tiles = [
        (f"{corpus.summary.n_in:,}", "documents came in"),
        (f"{corpus.summary.n_kept:,}", f"stayed, {bytes_text(corpus.summary.bytes_kept)}"),
        (f"{corpus.documents_dropped:,}", "were left out, each with its reason"),
        (f"{sum(corpus.summary.pii_replaced.values()):,}", "personal data replaced"),
        (f"{corpus.summary.n_probes:,}", "planted memorization probes"),
    ]
    if study.vocabulary:
        rate = fixed(study.vocabulary.train.bytes_per_token, 2)
        tiles.append(
            (f"{study.vocabulary.vocabulary:,}", f"tokens in the vocabulary, {rate} bytes each")
        )
    for name, split in study.pack.splits.items() if study.pack else ():
        documents = counted(split.documents, "document")
        tiles.append((f"{split.tokens:,}", f"tokens of {_cell(name)}, {documents}"))
    return tuple(tiles)


def _examples(corpus: Corpus, limit: int) -> tuple[Examples, ...]:
    if not limit:
        return ()
    return tuple(
        Examples(
            reason=_words(reason.name),
            documents=reason.documents,
            shown=tuple(
                DroppedDocument(
                    url=_cell(one.url),
                    where=_cell(one.where),
                    rule=_cell(one.rule),
                    agent=_cell(one.agent),
                )
                for one in reason.examples[:limit]
            ),
        )
        for reason in corpus.reasons
    )


def _consents(corpus: Corpus) -> DataTable:
    return DataTable(
        columns=(
            "consent status of the host", "robots.txt read, first", "robots.txt read, last",
            "documents", "share",
        ),
        rows=tuple(
            (
                _words(one.state), _cell(one.first_read) or "not read",
                _cell(one.last_read) or "not read", f"{one.documents:,}",
                _share(one.documents, corpus.summary.n_in),
            )
            for one in corpus.consents
        ),
        words=3,
    )  # fmt: skip


def _hosts(corpus: Corpus, limit: int) -> DataTable:
    # A refusal concerns the reader most, so websites with one are shown first.
    largest = corpus.hosts[:limit]
    shown = sorted(largest, key=lambda host: (not host.agents, -host.kept - host.dropped))
    rows = [
        (
            _name(host.name) or "(no address)", _name(host.consent.replace("_", " ")),
            one_line(host.agents, 90) or "none", _name(host.robots_read) or "not read",
            f"{host.kept:,}", f"{host.dropped:,}",
        )
        for host in shown
    ]  # fmt: skip
    left = corpus.summary.hosts - len(largest)
    if left > 0:
        kept = corpus.summary.n_kept - sum(host.kept for host in largest)
        dropped = corpus.documents_dropped - sum(host.dropped for host in largest)
        words = f"{counted(left, 'more website')}, together"
        rows.append((words, "", "", "", f"{kept:,}", f"{dropped:,}"))
    return DataTable(
        columns=("website", "decision", "agents refused", "robots.txt read", "kept", "dropped"),
        rows=tuple(rows),
        words=4,
    )


def _sources(corpus: Corpus) -> DataTable:
    shown, rest = corpus.sources[:_MOST_ROWS], corpus.sources[_MOST_ROWS:]
    left = sum(one.documents for one in rest) + corpus.unnamed_sources
    return DataTable(
        columns=("source", "licence", "documents", "text"),
        rows=tuple(
            (
                _name(one.name) or "(unnamed)",
                _name(one.licence) or "(unstated)",
                f"{one.documents:,}",
                bytes_text(one.bytes),
            )
            for one in shown
        ),
        words=2,
        note=f"{counted(left, 'document')} of further sources are in the ledger." if left else "",
    )


def _duplicates(corpus: Corpus) -> DataTable:
    return DataTable(
        columns=("kind", "documents", "share of all", "text"),
        rows=tuple(
            (
                _words(one.name), f"{one.documents:,}",
                _share(one.documents, corpus.summary.n_in), bytes_text(one.bytes),
            )
            for one in corpus.reasons
            if "duplicate" in one.name
        ),
    )  # fmt: skip


def _pii(corpus: Corpus) -> DataTable:
    return DataTable(
        columns=("kind", "replaced"),
        rows=tuple(
            (_PII_NAMES.get(kind, _words(kind)), f"{n:,}")
            for kind, n in corpus.summary.pii_replaced.items()
        ),
    )


def _splits(corpus: Corpus, pack: PackManifest | None) -> DataTable:
    rows = []
    for name, one in corpus.summary.by_split.items():
        packed = pack.splits.get(name) if pack else None
        rows.append(
            (
                _words(name), f"{one.documents:,}", bytes_text(one.bytes),
                _or_nothing(packed.documents if packed else None),
                _or_nothing(packed.tokens if packed else None),
            )
        )  # fmt: skip
    return DataTable(
        columns=("split", "documents", "text", "documents packed, with repeats", "tokens"),
        rows=tuple(rows),
        note="Planted passages are counted here; a control passage is never trained on."
        if corpus.summary.n_probes
        else "",
    )


def _tokens(pack: PackManifest | None) -> DataTable:
    if pack is None:
        return DataTable(columns=("language",), rows=())
    splits = list(pack.splits)
    sizes: dict[str, dict[str, int]] = {}
    for split, one in pack.splits.items():
        for language, tokens in one.tokens_by_language.items():
            sizes.setdefault(language, {})[split] = tokens
    ordered = sorted(sizes.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    rows = [
        (_name(language), *(f"{told.get(split, 0):,}" for split in splits))
        for language, told in ordered[:_MOST_ROWS]
    ]
    rest = ordered[_MOST_ROWS:]
    if rest:
        sums = (sum(told.get(split, 0) for _, told in rest) for split in splits)
        words = f"{counted(len(rest), 'more language')}, together"
        rows.append((words, *(f"{n:,}" for n in sums)))
    return DataTable(
        columns=("language", *(f"tokens, {_words(split)}" for split in splits)), rows=tuple(rows)
    )


def _stages(pack: PackManifest | None) -> DataTable:
    # A single stage repeats the split.
    train = pack.splits.get("train") if pack else None
    stages = train.stages if train and len(train.stages) > 1 else ()
    total = sum(one.tokens for one in stages)
    return DataTable(
        columns=("stage", "documents, with repeats", "tokens", "share"),
        rows=tuple(
            (
                _name(one.name or f"stage {number}"),
                f"{one.documents:,}",
                f"{one.tokens:,}",
                _share(one.tokens, total),
            )
            for number, one in enumerate(stages, 1)
        ),
    )


def _shards(shards: Sequence[tuple[str, ShardManifest]]) -> DataTable:
    rows = [
        (
            _name(name), f"{one.came_in:,}", f"{one.kept:,}",
            f"{sum(one.dropped.values()):,}", *_hashes(one),
        )
        for name, one in shards[:_MOST_ROWS]
    ]  # fmt: skip
    if shards:
        rows.append(
            (
                f"all {len(shards):,}", f"{sum(one.came_in for _, one in shards):,}",
                f"{sum(one.kept for _, one in shards):,}",
                f"{sum(n for _, one in shards for n in one.dropped.values()):,}", "", "",
            )
        )  # fmt: skip
    left = len(shards) - _MOST_ROWS
    return DataTable(
        columns=("shard", "in", "kept", "dropped", "documents, SHA-256", "ledger, SHA-256"),
        rows=tuple(rows),
        note=f"{left:,} more are in corpus/manifests." if left > 0 else "",
    )


def _hashes(shard: ShardManifest) -> tuple[str, str]:
    known = {
        name.partition("-")[0]: one.sha256[:_HASH_DIGITS] for name, one in shard.outputs.items()
    }
    return _cell(known.get("documents", "")), _cell(known.get("ledger", ""))


def _withdrawn(summary: CorpusSummary) -> DataTable:
    reasons = summary.withdrawn_by_reason or {}
    return DataTable(
        columns=("reason", "documents withdrawn"),
        rows=tuple((_words(name), f"{n:,}") for name, n in reasons.items()),
    )


def _withdrawn_languages(summary: CorpusSummary) -> DataTable:
    touched = [
        (name, one.documents, one.withdrawn, one.bytes, one.withdrawn_bytes)
        for name, one in summary.withdrawn_by_language.items()
        if one.withdrawn
    ]
    shown, rest = touched[:_MOST_ROWS], touched[_MOST_ROWS:]
    rows = [_withdrawn_row(_name(name), *told) for name, *told in shown]
    if rest:
        sums = [sum(row[column] for row in rest) for column in (1, 2, 3, 4)]  # type: ignore[misc]
        rows.append(_withdrawn_row(f"{counted(len(rest), 'more language')}, together", *sums))
    return DataTable(
        columns=(
            "language", "documents before", "withdrawn", "text before", "text withdrawn",
            "share of the text",
        ),
        rows=tuple(rows),
    )  # fmt: skip


def _unmatched(requests: DeletionRequests | None) -> DataTable:
    first = requests.first_unmatched if requests else ()
    left = requests.unmatched - len(first) if requests else 0
    return DataTable(
        columns=("list", "line", "SHA-256 of the address, or identifier"),
        rows=tuple((_name(one.list), f"{one.line:,}", _cell(one.key)) for one in first),
        note=f"{left:,} more are in corpus/requests.parquet." if left else "",
    )


def _withdrawn_row(name: str, before: int, gone: int, size: int, lost: int) -> tuple[str, ...]:
    return (
        name, f"{before:,}", f"{gone:,}", bytes_text(size), bytes_text(lost), _share(lost, size),
    )  # fmt: skip


def _share(part: int, whole: int) -> str:
    return percent(part / whole) if whole else ""


def _or_nothing(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _words(name: str) -> str:
    return one_line(name.replace("_", " "), _LONGEST_NAME)


def _name(text: str) -> str:
    return one_line(text, _LONGEST_NAME)


def _cell(text: str) -> str:
    return one_line(text, _LONGEST_CELL)
