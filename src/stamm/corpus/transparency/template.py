"""Questions of the template with their answers, from the ledger or from the provider."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stamm.base.markdown import escape_markdown
from stamm.corpus.transparency.markdown import LONGEST_TEXT, MarkdownTable, table

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
class Section:
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
    shown = tuple(one for one in tables if one.rows)
    return Question(asks=asks, answer=answer, origin=LEDGER, tables=shown)


def from_provider(asks: str, answer: str, setting: str) -> Question:
    """A question for the provider, answered by `setting`; "" leaves it open."""
    return Question(
        asks=asks,
        answer=answer or None,
        origin=PROVIDER if answer else "",
        setting=f"evidence.{setting}",
    )


def yes_or_no(asks: str, answer: bool | None, setting: str, origin: str) -> Question:
    """A yes-or-no question, answered by the ledger or by the provider."""
    if answer is None:
        return from_provider(asks, "", setting)
    return Question(
        asks=asks,
        answer="Yes" if answer else "No",
        origin=origin,
        setting=f"evidence.{setting}" if origin == PROVIDER else "",
    )


def unanswered_questions(sections: Sequence[Section]) -> list[tuple[Section, Question]]:
    """The open questions, in order."""
    return [(one, field) for one in sections for field in one.fields if field.answer is None]


def as_json(sections: Sequence[Section]) -> list[dict[str, Any]]:
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
                            "columns": list(one.columns),
                            "rows": [list(row) for row in one.rows],
                            "rest": one.rest,
                        }
                        for one in field.tables
                    ],
                }
                for field in section.fields
            ],
        }
        for section in sections
    ]


def as_markdown(sections: Sequence[Section]) -> str:
    """The sections as Markdown. An open question names the setting that answers it."""
    return "\n\n".join(part for section in sections for part in _parts(section))


def _parts(section: Section) -> Iterator[str]:
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
        yield from (table(one) for one in field.tables)
