"""The tables that both documents show: reasons, consent, sources, languages, domains."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

from stamm.corpus.language.declared import UNDETERMINED
from stamm.corpus.reasons import reason_text
from stamm.corpus.transparency.domains import DomainCounts
from stamm.corpus.transparency.facts import LedgerFacts
from stamm.corpus.transparency.markdown import MarkdownTable

UNSTATED = "(unstated)"
_MOST_ROWS = 100
_DOMAINS_SHOWN = 20
# Source: Council Regulation No 1/1958 in the consolidated text of 2013; codes of ISO 639-3, with
# those of the standard form of Latvian and Estonian.
EU_LANGUAGES = (
    ("bul",), ("hrv",), ("ces",), ("dan",), ("nld",), ("eng",), ("est", "ekk"), ("fin",), ("fra",),
    ("deu",), ("ell",), ("hun",), ("gle",), ("ita",), ("lav", "lvs"), ("lit",), ("mlt",), ("pol",),
    ("por",), ("ron",), ("slk",), ("slv",), ("spa",), ("swe",),
)  # fmt: skip


def reasons_table(facts: LedgerFacts, only: tuple[str, ...] | None = None) -> MarkdownTable:
    """Dropped documents and bytes by reason; `only` some reasons, where given."""
    return MarkdownTable(
        columns=("reason", "what it means", "documents", "bytes"),
        rows=tuple(
            (name, reason_text(name), counts["documents"], counts["bytes"])
            for name, counts in facts.reasons.items()
            if only is None or name in only
        ),
    )


def consents_table(facts: LedgerFacts) -> MarkdownTable:
    """Documents by state of consent, with the days on which robots.txt was read."""
    return MarkdownTable(
        columns=(
            "state of consent", "read first", "read last", "kept", "dropped",
        ),
        rows=tuple(
            (one.state, one.first_read, one.last_read, one.kept, one.dropped)
            for one in facts.consents
        ),
        quoted=3,
    )  # fmt: skip


def agents_table(facts: LedgerFacts) -> MarkdownTable:
    """Crawlers that websites refused, with the number of documents."""
    return MarkdownTable(columns=("crawler refused", "documents"), rows=facts.agents)


def sources_table(facts: LedgerFacts, kind: str | None = None) -> MarkdownTable:
    """Kept documents by source and licence; of one kind, where given."""
    fitting = [one for one in facts.sources if kind is None or one.kind == kind]
    shown = fitting[:_MOST_ROWS]
    if kind is None:
        left, documents = facts.num_sources - len(shown), facts.kept
    else:
        # Beyond the largest thousand the kinds are only counted in documents.
        left, documents = len(fitting) - len(shown), facts.kinds.get(kind, (0, 0))[0]
    missing = documents - sum(one.documents for one in shown)
    return MarkdownTable(
        columns=("source", "licence", "documents", "bytes"),
        rows=tuple(
            (one.name or "(unnamed)", one.licence or UNSTATED, one.documents, one.bytes)
            for one in shown
        ),
        quoted=2,
        rest=_rest(left, missing),
    )


def licences_table(facts: LedgerFacts) -> MarkdownTable:
    """Kept documents by licence, as the documents state it."""
    shown = facts.licences[:_MOST_ROWS]
    missing = facts.kept - sum(n for _, n, _ in shown)
    return MarkdownTable(
        columns=("licence as stated", "documents", "bytes"),
        rows=tuple((name or UNSTATED, n, size) for name, n, size in shown),
        rest=_rest(len(facts.licences) - len(shown), missing),
    )


def languages_table(facts: LedgerFacts) -> MarkdownTable:
    """Kept documents and bytes by language, with its tokens where the corpus is packed."""
    tokens = facts.tokens["splits"]["train"].get("tokens_by_language", {}) if facts.tokens else {}
    every = list(facts.languages.items())
    columns = ("language", "documents", "bytes", "tokens, with repeats and planted passages")
    rows = [
        (name or UNDETERMINED, counts["documents"], counts["bytes"], tokens.get(name, 0))
        for name, counts in every[:_MOST_ROWS]
    ]
    width = len(columns) if tokens else len(columns) - 1
    missing = sum(counts["documents"] for _, counts in every[_MOST_ROWS:])
    return MarkdownTable(
        columns=columns[:width],
        rows=tuple(row[:width] for row in rows),
        rest=_rest(len(every) - len(rows), missing),
    )


def domains_table(path: Path, domains: DomainCounts) -> MarkdownTable:
    """The largest domains of the list in `path`."""
    with path.open(encoding="utf-8") as lines:
        shown = [json.loads(line) for line in islice(lines, _DOMAINS_SHOWN)]
    left = domains.listed - len(shown)
    return MarkdownTable(
        columns=("domain", "documents", "bytes", "share of the text"),
        rows=tuple((one["domain"], one["documents"], one["bytes"], one["share"]) for one in shown),
        rest=f"{left:,} more are listed in {path.name}." if left else "",
    )


def eu_languages(facts: LedgerFacts) -> int:
    """Number of the 24 official languages of the Union with a kept document."""
    there = {name.partition("_")[0] for name in facts.languages}
    return sum(bool(there & set(codes)) for codes in EU_LANGUAGES)


def _rest(left: int, documents: int) -> str:
    return f"{left:,} more, with {documents:,} documents, are in the ledger." if left > 0 else ""
