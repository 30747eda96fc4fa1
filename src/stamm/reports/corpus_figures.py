"""Figures of the corpus: documents dropped by reason, and kept text by language."""

from __future__ import annotations

from stamm.base.units import bytes_text
from stamm.reports.config import ReportConfig
from stamm.reports.corpus_record import Corpus
from stamm.reports.figure import DataTable, Figure
from stamm.reports.formatting import fixed, percent
from stamm.reports.run_data import RunResults
from stamm.reports.svg_figure import Axes, draw, draw_panels
from stamm.reports.text import one_line
from stamm.reports.theme import drawn, series

_MOST_REASONS = 12
_LABEL = 30


def dropped_figure(study: RunResults) -> Figure | None:
    """Documents dropped by reason, in number and in bytes; None when nothing was dropped."""
    corpus = study.corpus
    if corpus is None or not corpus.reasons:
        return None
    shown = corpus.reasons[:_MOST_REASONS]

    def paint(panels: list[Axes]) -> None:
        by_count, by_size = panels
        places = range(len(shown))
        by_count.barh(places, [r.documents for r in shown], height=0.55, color=series(0))
        by_size.barh(places, [r.bytes / 1024 for r in shown], height=0.55, color=series(2))
        for at, reason in enumerate(shown):
            for axes, value, text in (
                (by_count, reason.documents, f"{reason.documents:,}"),
                (by_size, reason.bytes / 1024, bytes_text(reason.bytes)),
            ):
                axes.annotate(
                    text, (value, at), xytext=(4, 0), textcoords="offset points", va="center",
                    color=drawn("muted"), fontsize=8,
                )  # fmt: skip
        for axes, title in ((by_count, "Documents"), (by_size, "Text, KiB")):
            axes.set_yticks(places, [words(reason.name) for reason in shown])
            axes.set_ylim(len(shown) - 0.4, -0.6)
            axes.set_title(title)
            axes.margins(x=0.2)
            axes.grid(visible=False, axis="y")

    return Figure(
        key="dropped",
        title="What was left out, and why",
        caption=(
            f"{corpus.documents_dropped:,} of {corpus.summary.n_in:,} documents "
            f"({percent(corpus.documents_dropped / corpus.summary.n_in)}) were left out. Each has "
            "one reason, a row in the ledger and, where a website refused, the rule that applies."
        ),
        alt="; ".join(f"{words(r.name)}: {r.documents:,} documents" for r in shown),
        svg=draw_panels("dropped", 0.9 + 0.3 * len(shown), paint, 2),
        data=_reasons(corpus),
        source="corpus/ledger*.parquet",
        command=study.made_by(),
    )


def stayed_figure(study: RunResults, config: ReportConfig) -> Figure | None:
    """Kept text by language, or None when there is no corpus."""
    corpus = study.corpus
    if corpus is None or not corpus.summary.kept_by_language:
        return None
    ordered = sorted(
        corpus.summary.kept_by_language.items(), key=lambda row: (-row[1].bytes, row[0])
    )
    shown = ordered[: config.languages]

    def paint(panels: list[Axes]) -> None:
        axes = panels[0]
        axes.bar(range(len(shown)), [one.bytes / 1024 for _, one in shown], color=series(0))
        axes.set_xticks(
            range(len(shown)), [one_line(name, 16) for name, _ in shown],
            rotation=90, fontsize=8,
        )  # fmt: skip
        axes.set_ylabel("KiB of text")
        axes.grid(visible=False, axis="x")
        axes.set_xlim(-0.6, max(len(shown), 12) - 0.4)

    total = max(corpus.summary.bytes_kept, 1)
    return Figure(
        key="stayed",
        title="What stayed, by language",
        caption=(
            f"{bytes_text(corpus.summary.bytes_kept)} of text in {len(ordered)} languages and scripts. "
            f"The largest, {one_line(ordered[0][0], 40)}, has {percent(ordered[0][1].bytes / total)}."
        ),
        alt="; ".join(f"{name}: {bytes_text(one.bytes)}" for name, one in shown[:12]),
        svg=draw("stayed", 2.9, paint),
        data=DataTable(
            columns=("language", "documents", "bytes", "share", "bytes per token"),
            rows=tuple(
                (
                    one_line(name, 60), f"{one.documents:,}", f"{one.bytes:,}",
                    percent(one.bytes / total),
                    _bytes_per_token(study, name),
                )
                for name, one in ordered
            ),
        ),
        source="corpus/ledger*.parquet, tokenizer/summary.json",
        command=study.made_by(),
    )  # fmt: skip


def words(name: str) -> str:
    """A ledger's reason as words: "robots_disallow" as "robots disallow"."""
    return one_line(name.replace("_", " "), _LABEL)


def _reasons(corpus: Corpus) -> DataTable:
    return DataTable(
        columns=("reason", "documents", "share of all", "bytes"),
        rows=tuple(
            (
                words(reason.name), f"{reason.documents:,}",
                percent(reason.documents / corpus.summary.n_in), f"{reason.bytes:,}",
            )
            for reason in corpus.reasons
        ),
    )  # fmt: skip


def _bytes_per_token(study: RunResults, language: str) -> str:
    known = study.vocabulary.train.languages.get(language) if study.vocabulary else None
    rate = known.bytes_per_token if known else None
    return "" if rate is None else fixed(rate, 2)
