"""Section "Corpus and consent": the corpus of a run, and why documents were left out."""

from __future__ import annotations

from typing import Any

from stamm.base.schema import read_record_if_present
from stamm.corpus.page.figures import dropped_figure, fairness_figure, stayed_figure
from stamm.corpus.page.record import read_corpus
from stamm.corpus.page.tables import corpus_tables
from stamm.corpus.records import CorpusSummary
from stamm.pages.config import ReportConfig
from stamm.pages.frame import fill
from stamm.pages.section import Section
from stamm.runs.run_view import ALIGNMENT, CORPUS, STUDY, RunView


def sections(run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    """The corpus of a run; nothing about a run that aligns a model without one.

    Raises   DataError when a file of it cannot be read, or its ledger and its summary differ
    """
    if run.kind not in (CORPUS, STUDY, ALIGNMENT):
        return ()
    corpus = read_corpus(run.root)
    if corpus is None and run.kind == ALIGNMENT:
        return ()
    context: dict[str, Any] = {"run": run, "corpus": None}
    if corpus is not None:
        figures = (
            dropped_figure(run, corpus),
            stayed_figure(run, corpus, config),
            fairness_figure(run, corpus, config),
        )
        context |= {
            "corpus": corpus_tables(corpus, config),
            "is_alone": run.kind == CORPUS,
            "is_replay": corpus.summary.withdrawn_by_reason is not None,
            "figures": [figure for figure in figures if figure is not None],
        }
    html = fill(
        "corpus.html", context, "stamm.corpus", excerpt_characters=config.excerpt_characters
    )
    facts = corpus_facts(run) if corpus else ()
    return (Section(key="corpus", title="Corpus and consent", html=html, facts=facts),)


def corpus_facts(run: RunView) -> tuple[str, ...]:
    """Number of documents and languages of the corpus of a run, for the head of its page."""
    summary = read_record_if_present(CorpusSummary, run.root / "corpus" / "summary.json")
    if summary is None:
        return ()
    return (f"{summary.n_kept:,} documents", f"{len(summary.kept_by_language)} languages")
