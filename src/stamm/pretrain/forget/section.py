"""Section "Forgotten documents": the documents that a model was trained without, and how it changed."""

from __future__ import annotations

from stamm.pages.config import ReportConfig
from stamm.pages.figure import DataTable
from stamm.pages.formatting import fixed
from stamm.pages.section import Section, section_of
from stamm.pages.text import one_line
from stamm.pretrain.forget.results import COLUMNS, read_forgetting, summary_lines
from stamm.runs.run_view import RunView


def sections(run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    """The model before and after it forgot documents; nothing for other runs.

    Raises   DataError when a record does not follow its schema
    """
    forgetting = read_forgetting(run.root, run.arms[0].folder) if len(run.arms) == 1 else None
    if forgetting is None:
        return ()
    record = forgetting.record
    tables = {"Before and after": DataTable(columns=COLUMNS, rows=forgetting.rows, words=3)}
    if forgetting.passages:
        tables["Loss of each forgotten passage"] = DataTable(
            columns=("document", "nats per token before", "after", "change"),
            rows=tuple(
                (one_line(name, 60), fixed(old, 3), fixed(new, 3), fixed(new - old, 3))
                for name, (old, new) in list(forgetting.passages.items())[: config.rows]
            ),
            note="The change is what this model knew of the passage from these documents alone: what it also"
            " learned from others stays.",
        )
    near = record.near_duplicates
    also = f"{near:,} documents like them stay (forget/near_duplicates.txt)." if near else ""
    section = section_of(
        "forgotten",
        "Forgotten documents",
        paragraphs=(*summary_lines(record), *([also] if also else [])),
        tables=tables,
        facts=(f"{record.documents:,} documents forgotten",),
    )
    return (section,)
