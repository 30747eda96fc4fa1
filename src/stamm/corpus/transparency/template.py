"""Questions of the template with their answers, and Markdown in which untrusted text is escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from stamm.base.errors import visible
from stamm.base.markdown import escape_markdown
from stamm.corpus.language.codes import UNDETERMINED
from stamm.corpus.ledger import reason_text
from stamm.corpus.transparency.facts import DomainCounts, LedgerFacts

_LONGEST_CELL = 200
LONGEST_TEXT = 10_000
_TICKS = re.compile(r"`+")


@dataclass(frozen=True, kw_only=True)
class MarkdownTable:
    """Rows of plain values under trusted headings.

    quoted   number of columns from the left with untrusted text, which is shown as code
    rest     a sentence about omitted rows, or ""
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float, ...], ...]
    quoted: int = 1
    rest: str = ""


def code_span(text: str) -> str:
    """`text` as a code span, shown literally; "" stays "".

    Edge     bars are escaped for tables, and so are control and invisible characters.
    """
    shown = visible(" ".join(text.split()), _LONGEST_CELL).replace("|", "\\|")
    if not shown:
        return ""
    longest = max((len(run) for run in _TICKS.findall(shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def counted(number: int, one: str) -> str:
    """A number with its noun: "1 document", "2 documents"."""
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def table(rows: MarkdownTable) -> str:
    """A Markdown table, with `rest` below it."""
    body = [_line([_cell(x, i < rows.quoted) for i, x in enumerate(row)]) for row in rows.rows]
    rest = ["", rows.rest] if rows.rest else []
    return "\n".join([_line(rows.columns), _line(_sides(rows)), *body, *rest])


def _sides(rows: MarkdownTable) -> list[str]:
    """Alignment: numbers right, text left."""
    return [
        "---" if all(isinstance(row[i], str) for row in rows.rows) else "---:"
        for i in range(len(rows.columns))
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: str | int | float, quoted: bool) -> str:
    if isinstance(value, str):
        return code_span(value) if quoted else escape_markdown(value, LONGEST_TEXT)
    return f"{value:,}"


LEDGER, PROVIDER = "ledger", "provider"


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question.

    answer    None for an open question
    origin    "ledger", "provider", or "" for an open question
    setting   the configuration key of the answer; "" where only the ledger answers
    tables    rows that support the answer
    """

    asks: str
    answer: str | None
    origin: str
    setting: str = ""
    tables: tuple[MarkdownTable, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TemplateSection:
    """A numbered section of the template; level counts from 1."""

    number: str
    title: str
    fields: tuple[Question, ...] = ()

    @property
    def level(self) -> int:
        """The depth: 1 for "2", 3 for "2.2.1"."""
        return self.number.count(".") + 1


def from_ledger(asks: str, answer: str, *tables: MarkdownTable) -> Question:
    """A question answered by the ledger; tables without rows are omitted."""
    shown = tuple(markdown_table for markdown_table in tables if markdown_table.rows)
    return Question(asks=asks, answer=answer, origin=LEDGER, tables=shown)


def unanswered_questions(
    sections: Sequence[TemplateSection],
) -> list[tuple[TemplateSection, Question]]:
    """The open questions, in order."""
    return [
        (section, field) for section in sections for field in section.fields if field.answer is None
    ]


def as_json(sections: Sequence[TemplateSection]) -> list[dict[str, Any]]:
    """The sections as JSON values."""
    return [
        {
            "number": section.number,
            "title": section.title,
            "fields": [
                {
                    "asks": field.asks,
                    "answer": field.answer,
                    "origin": field.origin or None,
                    "set": field.setting or None,
                    "tables": [
                        {
                            "columns": list(markdown_table.columns),
                            "rows": [list(row) for row in markdown_table.rows],
                            "rest": markdown_table.rest,
                        }
                        for markdown_table in field.tables
                    ],
                }
                for field in section.fields
            ],
        }
        for section in sections
    ]


def as_markdown(sections: Sequence[TemplateSection]) -> str:
    """The sections as Markdown. An open question names the setting that answers it."""
    return "\n\n".join(part for section in sections for part in _parts(section))


def _parts(section: TemplateSection) -> Iterator[str]:
    yield f"{'#' * (section.level + 1)} {section.number}. {section.title}"
    for field in section.fields:
        yield f"**{field.asks}**"
        if field.answer is None:
            yield (
                "> Not in the ledger. The provider can answer: set "
                f"`{field.setting}=...` and run the step again."
            )
        else:
            yield escape_markdown(field.answer, LONGEST_TEXT)
        yield from (table(markdown_table) for markdown_table in field.tables)


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
            (name, reason_text(name), counts.documents, counts.bytes)
            for name, counts in facts.summary.dropped_by_reason.items()
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
            (consent.state, consent.first_read, consent.last_read, consent.kept, consent.dropped)
            for consent in facts.consents
        ),
        quoted=3,
    )  # fmt: skip


def agents_table(facts: LedgerFacts) -> MarkdownTable:
    """Crawlers that websites refused, with the number of documents."""
    return MarkdownTable(columns=("crawler refused", "documents"), rows=facts.agents)


def sources_table(facts: LedgerFacts, kind: str | None = None) -> MarkdownTable:
    """Kept documents by source and licence; of one kind, where given."""
    fitting = [source for source in facts.sources if kind is None or source.kind == kind]
    shown = fitting[:_MOST_ROWS]
    if kind is None:
        num_hidden, documents = facts.num_sources - len(shown), facts.summary.n_kept
    else:
        # Beyond the largest thousand the kinds are only counted in documents.
        num_hidden, documents = len(fitting) - len(shown), facts.kinds.get(kind, (0, 0))[0]
    missing = documents - sum(source.documents for source in shown)
    return MarkdownTable(
        columns=("source", "licence", "documents", "bytes"),
        rows=tuple(
            (source.name or "(unnamed)", source.licence or UNSTATED, source.documents, source.bytes)
            for source in shown
        ),
        quoted=2,
        rest=_rest(num_hidden, missing),
    )


def licences_table(facts: LedgerFacts) -> MarkdownTable:
    """Kept documents by licence, as the documents state it."""
    shown = facts.licences[:_MOST_ROWS]
    missing = facts.summary.n_kept - sum(n for _, n, _ in shown)
    return MarkdownTable(
        columns=("licence as stated", "documents", "bytes"),
        rows=tuple((name or UNSTATED, n, size) for name, n, size in shown),
        rest=_rest(len(facts.licences) - len(shown), missing),
    )


def languages_table(facts: LedgerFacts) -> MarkdownTable:
    """Kept documents and bytes by language, with its tokens where the corpus is packed."""
    tokens = facts.train.tokens_by_language if facts.train else {}
    every = list(facts.summary.kept_by_language.items())
    columns = ("language", "documents", "bytes", "tokens, with repeats and planted passages")
    rows = [
        (name or UNDETERMINED, counts.documents, counts.bytes, tokens.get(name, 0))
        for name, counts in every[:_MOST_ROWS]
    ]
    width = len(columns) if tokens else len(columns) - 1
    missing = sum(counts.documents for _, counts in every[_MOST_ROWS:])
    return MarkdownTable(
        columns=columns[:width],
        rows=tuple(row[:width] for row in rows),
        rest=_rest(len(every) - len(rows), missing),
    )


def domains_table(path: Path, domains: DomainCounts) -> MarkdownTable:
    """The largest domains of the list in `path`."""
    with path.open(encoding="utf-8") as lines:
        shown = [json.loads(line) for line in islice(lines, _DOMAINS_SHOWN)]
    num_hidden = domains.listed - len(shown)
    return MarkdownTable(
        columns=("domain", "documents", "bytes", "share of the text"),
        rows=tuple(
            (domain["domain"], domain["documents"], domain["bytes"], domain["share"])
            for domain in shown
        ),
        rest=f"{num_hidden:,} more are listed in {path.name}." if num_hidden else "",
    )


def eu_languages(facts: LedgerFacts) -> int:
    """Number of the 24 official languages of the Union with a kept document."""
    languages = {name.partition("_")[0] for name in facts.summary.kept_by_language}
    return sum(bool(languages & set(codes)) for codes in EU_LANGUAGES)


def _rest(num_hidden: int, documents: int) -> str:
    return (
        f"{num_hidden:,} more, with {documents:,} documents, are in the ledger."
        if num_hidden > 0
        else ""
    )
