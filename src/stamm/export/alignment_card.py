"""The section "Alignment data" of a model card, from the summaries of prepared data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from stamm.align.records import PreparedDecontamination, PreparedSummary
from stamm.base.markdown import escape_markdown
from stamm.base.schema import read_record
from stamm.corpus.ledger import reason_text
from stamm.export.card_table import LONGEST_CELL, card_table
from stamm.runs.arms import prepared_data_of_arm

_KINDS = {
    "chat": "Conversations",
    "preference": "Preference pairs",
    "rated": "Rated answers",
}


def alignment_summaries(model: Path) -> list[PreparedSummary]:
    """The summaries of the data that a model was aligned on, in the order of training.

    model    the folder of the stored decoder, beside the manifest of its arm

    Raises   DataError when a summary cannot be read
    """
    folders = prepared_data_of_arm(model.parent)
    return [read_record(PreparedSummary, folder / "summary.json") for folder in folders]


def alignment_section(summaries: Sequence[PreparedSummary]) -> Iterator[str]:
    """The paragraphs of the section; none without a summary."""
    if not summaries:
        return
    yield "## Alignment data"
    for number, summary in enumerate(summaries, 1):
        title = _KINDS[summary.kind]
        yield f"### {number}. {title}" if len(summaries) > 1 else f"### {title}"
        yield from _stage(summary)


def _stage(summary: PreparedSummary) -> Iterator[str]:
    train, held_out = summary.splits["train"], summary.splits.get("held_out")
    text = (
        f"{summary.kept} of {summary.read} rows were kept: {train.examples} to train on"
        f" ({train.tokens} tokens, {train.supervised_tokens} of them in the loss)"
    )
    text += f" and {held_out.examples} held out." if held_out and held_out.examples else "."
    name = escape_markdown(summary.chat_format, LONGEST_CELL)
    yield f"{text} The chat format is {name}, SHA-256 `{_hash(summary.chat_format_sha256)}`."
    yield card_table(
        ("source", "licence", "rows kept", "rows dropped"),
        (
            (source.source or "not stated", source.licence or "not stated", *_numbers(source.kept, source.dropped))
            for source in summary.sources
        ),
    )  # fmt: skip
    refused = ", ".join(
        escape_markdown(licence, LONGEST_CELL) for licence in summary.refused_licences
    )
    yield f"Refused licences: {refused}." if refused else "No licence was refused."
    if summary.dropped:
        yield card_table(
            ("dropped", "meaning", "rows"),
            (
                (reason, reason_text(reason), str(count))
                for reason, count in summary.dropped.items()
            ),
        )
    yield from _decontamination(summary.decontamination)


def _decontamination(decontamination: PreparedDecontamination | None) -> Iterator[str]:
    if decontamination is None:
        yield "The rows were not compared with evaluation texts."
        return
    yield (
        f"Rows were compared with the texts of these evaluation sets. A row is dropped when it shares"
        f" {decontamination.gram_words} words in a row and {decontamination.share:.0%} of all words with one."
    )
    yield card_table(
        ("evaluation set", "items", "items that cannot be found", "rows dropped"),
        (
            (name, *_numbers(counts.items, counts.blind, decontamination.contaminated.get(name, 0)))
            for name, counts in decontamination.sets.items()
        ),
    )


def _numbers(*values: int) -> list[str]:
    return [str(value) for value in values]


def _hash(text: str) -> str:
    return "".join(c for c in text if c.isalnum())[:64]
