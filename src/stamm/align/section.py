"""Sections about alignment: verdict, answers, prepared data; and about a judge."""

from __future__ import annotations

from stamm.align.page.answer_figures import answer_figures
from stamm.align.page.judge import judge_section
from stamm.align.page.preference_figures import preference_figures
from stamm.align.page.results import read_alignment
from stamm.align.page.tables import AlignmentSection, alignment_tables
from stamm.pages.config import ReportConfig
from stamm.pages.frame import fill
from stamm.pages.section import Section
from stamm.runs.run_view import ALIGNMENT, JUDGE, RunView


def alignment_verdict(run: RunView) -> AlignmentSection | None:
    """The result of a run that fine-tunes or aligns a model, or prepares data for it; None for others.

    Raises   DataError when a file does not follow its schema, or was made from other weights than
             the arm's model has
    """
    return alignment_tables(read_alignment(run)) if run.kind == ALIGNMENT else None


def verdict_sections(run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    """The verdict on aligned models; nothing for a run of another kind."""
    verdict = alignment_verdict(run)
    if verdict is None:
        return ()
    return (_section("verdict", "Verdict", config, verdict=verdict),)


def sections(run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    """Measures of aligned answers, pairs of answers, and prepared data, if there are any.

    Raises   DataError as `alignment_verdict`
    """
    if run.kind != ALIGNMENT:
        return ()
    results = read_alignment(run)
    tables, aligned = alignment_tables(results), results.aligned
    figures = (*answer_figures(run, results), *preference_figures(run, results.trained, config))
    made = [
        _section("alignment", "Aligned answers", config, alignment=tables, figures=figures),
    ]
    if any(arm.file.examples for arm in aligned):
        made.append(_section("answers", "Side by side", config, aligned=aligned))
    if tables.prepared:
        made.append(_section("prepared", "Prepared data", config, prepared=tables.prepared))
    return tuple(made)


def judge_sections(run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    """The validation of a judge, and its ratings; nothing for a run of another kind."""
    judge = judge_section(run.root) if run.kind == JUDGE else None
    return () if judge is None else (_section("judge", "Judge", config, judge=judge),)


def _section(key: str, title: str, config: ReportConfig, **context: object) -> Section:
    excerpt = config.excerpt_characters
    html = fill(f"{key}.html", context, "stamm.align", excerpt_characters=excerpt)
    return Section(key=key, title=title, html=html)
