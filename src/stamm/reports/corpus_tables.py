"""The tables of the page's part about the corpus. Every text in them is cut and made visible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stamm.base.units import bytes_text
from stamm.reports.config import ReportConfig
from stamm.reports.corpus_ledger import Dropped
from stamm.reports.corpus_record import Corpus, Pack, Requests, Shard, Withdrawn
from stamm.reports.figure import Table
from stamm.reports.formatting import fixed, percent
from stamm.reports.run_data import Study
from stamm.reports.text import one_line

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
    shown: tuple[Dropped, ...]


@dataclass(frozen=True, kw_only=True)
class CorpusTables:
    """What the page says about the corpus beside its figures. A table without rows is not shown."""

    sentences: tuple[str, ...]
    tiles: tuple[tuple[str, str], ...]
    examples: tuple[Examples, ...]
    consents: Table
    hosts: Table
    sources: Table
    duplicates: Table
    pii: Table
    splits: Table
    tokens: Table
    stages: Table
    shards: Table
    withdrawn: Table
    withdrawn_languages: Table
    unmatched: Table


def corpus_tables(study: Study, config: ReportConfig) -> CorpusTables | None:
    """The tables about the corpus of `study`; None when it has none."""
    corpus = study.corpus
    if corpus is None:
        return None
    return CorpusTables(
        sentences=corpus_sentences(corpus),
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
        withdrawn=_withdrawn(corpus.withdrawn),
        withdrawn_languages=_withdrawn_languages(corpus.withdrawn),
        unmatched=_unmatched(corpus.withdrawn.requests if corpus.withdrawn else None),
    )


def corpus_sentences(corpus: Corpus) -> tuple[str, ...]:
    """What became of the documents, in plain sentences, the most important first."""
    stayed = (
        f"{corpus.documents_kept:,} of {counted(corpus.documents_in, 'document')} stayed "
        f"({bytes_text(corpus.bytes_kept)} of text), {corpus.documents_dropped:,} were left out."
    )
    ignored = _ignored(*corpus.absolute_rules)
    gone = corpus.withdrawn
    if gone is None:
        return (stayed, *ignored)
    before = sum(documents for _, documents, _, _, _ in gone.languages)
    said = [
        f"A newer word withdrew {gone.documents:,} of the {counted(before, 'document')} of a "
        f"finished corpus: {counted(gone.ranges, 'stretch', 'stretches')} of its token stream, "
        f"{counted(sum(n for _, n in gone.tokens), 'token')} in all.",
        stayed,
    ]
    if gone.probes:
        said.append(
            f"{counted(gone.probes, 'planted passage')} went, too: no audit measures them any more."
        )
    if gone.lost_twins:
        said.append(
            f"{counted(gone.lost_twins, 'document')}, left out before because a withdrawn one said "
            "the same, stayed out: only a new build brings them back."
        )
    if gone.requests:
        said.append(_answer(gone.requests))
    return (*said, *ignored)


def _ignored(documents: int, websites: int) -> tuple[str, ...]:
    """A sentence about rules that nobody can follow, where there are any."""
    if not documents:
        return ()
    return (
        f"The robots.txt of {counted(websites, 'website')} ({counted(documents, 'document')}) has "
        "rules written as absolute URLs of the same site. No parser follows them; the ledger names "
        "the first.",
    )


def _answer(requests: Requests) -> str:
    """What became of the requests for deletion; which met nothing, by list and line."""
    said = (
        f"Of {counted(requests.asked, 'request')} for deletion {requests.withdrew:,} took something "
        f"out, {requests.out_before:,} met what was out already and {requests.unmatched:,} met "
        "nothing that came in"
    )
    first = requests.first_unmatched[:_MOST_LINES]
    if not first:
        return f"{said}."
    lines = ", ".join(f"{one_line(name, _LONGEST_NAME)} line {line}" for name, line, _ in first)
    more = requests.unmatched - len(first)
    return f"{said}: {lines}" + (f", and {more:,} more." if more else ".")


def counted(number: int, one: str, more: str = "") -> str:
    """A number with its noun: "1 document", "2 documents"."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def _tiles(study: Study, corpus: Corpus) -> tuple[tuple[str, str], ...]:
    tiles = [
        (f"{corpus.documents_in:,}", "documents came in"),
        (f"{corpus.documents_kept:,}", f"stayed, {bytes_text(corpus.bytes_kept)}"),
        (f"{corpus.documents_dropped:,}", "were left out, each with its reason"),
        (f"{sum(n for _, n in corpus.pii):,}", "personal data replaced"),
        (f"{corpus.planted:,}", "passages planted to test memory"),
    ]
    if study.vocabulary:
        rate = fixed(study.vocabulary.bytes_per_token, 2)
        tiles.append((f"{study.vocabulary.size:,}", f"tokens in the vocabulary, {rate} bytes each"))
    for name, documents, tokens in study.pack.splits if study.pack else ():
        tiles.append((f"{tokens:,}", f"tokens of {_cell(name)}, {counted(documents, 'document')}"))
    return tuple(tiles)


def _examples(corpus: Corpus, limit: int) -> tuple[Examples, ...]:
    if not limit:
        return ()
    return tuple(
        Examples(
            reason=_words(reason.name),
            documents=reason.documents,
            shown=tuple(
                Dropped(
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


def _consents(corpus: Corpus) -> Table:
    return Table(
        columns=(
            "what is known of the host's word", "robots.txt read, first", "robots.txt read, last",
            "documents", "share",
        ),
        rows=tuple(
            (
                _words(one.state), _cell(one.first_read) or "not read",
                _cell(one.last_read) or "not read", f"{one.documents:,}",
                _share(one.documents, corpus.documents_in),
            )
            for one in corpus.consents
        ),
        words=3,
    )  # fmt: skip


def _hosts(corpus: Corpus, limit: int) -> Table:
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
    left = corpus.num_hosts - len(largest)
    if left > 0:
        kept = corpus.documents_kept - sum(host.kept for host in largest)
        dropped = corpus.documents_dropped - sum(host.dropped for host in largest)
        words = f"{counted(left, 'more website')}, together"
        rows.append((words, "", "", "", f"{kept:,}", f"{dropped:,}"))
    return Table(
        columns=("website", "decision", "agents refused", "robots.txt read", "kept", "dropped"),
        rows=tuple(rows),
        words=4,
    )


def _sources(corpus: Corpus) -> Table:
    shown, rest = corpus.sources[:_MOST_ROWS], corpus.sources[_MOST_ROWS:]
    left = sum(one.documents for one in rest) + corpus.unnamed_sources
    return Table(
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


def _duplicates(corpus: Corpus) -> Table:
    return Table(
        columns=("kind", "documents", "share of all", "text"),
        rows=tuple(
            (
                _words(one.name), f"{one.documents:,}",
                _share(one.documents, corpus.documents_in), bytes_text(one.bytes),
            )
            for one in corpus.reasons
            if "duplicate" in one.name
        ),
    )  # fmt: skip


def _pii(corpus: Corpus) -> Table:
    return Table(
        columns=("kind", "replaced"),
        rows=tuple((_PII_NAMES.get(kind, _words(kind)), f"{n:,}") for kind, n in corpus.pii),
    )


def _splits(corpus: Corpus, pack: Pack | None) -> Table:
    packed = {name: (documents, tokens) for name, documents, tokens in pack.splits} if pack else {}
    rows = []
    for name, documents, size in corpus.splits:
        occurrences, tokens = packed.get(name, (None, None))
        rows.append(
            (
                _words(name), f"{documents:,}", bytes_text(size), _or_nothing(occurrences),
                _or_nothing(tokens),
            )
        )  # fmt: skip
    return Table(
        columns=("split", "documents", "text", "documents packed, with repeats", "tokens"),
        rows=tuple(rows),
        note="Planted passages are counted here; a control passage is never trained on."
        if corpus.planted
        else "",
    )


def _tokens(pack: Pack | None) -> Table:
    if pack is None:
        return Table(columns=("language",), rows=())
    splits = [name for name, _, _ in pack.splits]
    sizes: dict[str, dict[str, int]] = {}
    for split, language, tokens in pack.languages:
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
    return Table(
        columns=("language", *(f"tokens, {_words(split)}" for split in splits)), rows=tuple(rows)
    )


def _stages(pack: Pack | None) -> Table:
    # One stage is no mixture: it says what the split already says.
    stages = pack.stages if pack and len(pack.stages) > 1 else ()
    total = sum(tokens for _, _, tokens in stages)
    return Table(
        columns=("stage", "documents, with repeats", "tokens", "share"),
        rows=tuple(
            (_name(name), f"{documents:,}", f"{tokens:,}", _share(tokens, total))
            for name, documents, tokens in stages
        ),
    )


def _shards(shards: Sequence[Shard]) -> Table:
    rows = [
        (
            _name(one.name), f"{one.came_in:,}", f"{one.kept:,}",
            f"{sum(n for _, n in one.dropped):,}", *_hashes(one),
        )
        for one in shards[:_MOST_ROWS]
    ]  # fmt: skip
    if shards:
        rows.append(
            (
                f"all {len(shards):,}", f"{sum(one.came_in for one in shards):,}",
                f"{sum(one.kept for one in shards):,}",
                f"{sum(n for one in shards for _, n in one.dropped):,}", "", "",
            )
        )  # fmt: skip
    left = len(shards) - _MOST_ROWS
    return Table(
        columns=("shard", "in", "kept", "dropped", "documents, SHA-256", "ledger, SHA-256"),
        rows=tuple(rows),
        note=f"{left:,} more are in corpus/manifests." if left > 0 else "",
    )


def _hashes(shard: Shard) -> tuple[str, str]:
    known = {name.partition("-")[0]: value[:_HASH_DIGITS] for name, value in shard.hashes}
    return _cell(known.get("documents", "")), _cell(known.get("ledger", ""))


def _withdrawn(gone: Withdrawn | None) -> Table:
    reasons = gone.reasons if gone else ()
    return Table(
        columns=("reason", "documents withdrawn"),
        rows=tuple((_words(name), f"{n:,}") for name, n in reasons),
    )


def _withdrawn_languages(gone: Withdrawn | None) -> Table:
    touched = [row for row in gone.languages if row[2]] if gone else []
    shown, rest = touched[:_MOST_ROWS], touched[_MOST_ROWS:]
    rows = [_withdrawn_row(_name(name), *told) for name, *told in shown]
    if rest:
        sums = [sum(row[column] for row in rest) for column in (1, 2, 3, 4)]  # type: ignore[misc]
        rows.append(_withdrawn_row(f"{counted(len(rest), 'more language')}, together", *sums))
    return Table(
        columns=(
            "language", "documents before", "withdrawn", "text before", "text withdrawn",
            "share of the text",
        ),
        rows=tuple(rows),
    )  # fmt: skip


def _unmatched(requests: Requests | None) -> Table:
    first = requests.first_unmatched if requests else ()
    left = requests.unmatched - len(first) if requests else 0
    return Table(
        columns=("list", "line", "SHA-256 of the address, or identifier"),
        rows=tuple((_name(name), f"{line:,}", _cell(key)) for name, line, key in first),
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
