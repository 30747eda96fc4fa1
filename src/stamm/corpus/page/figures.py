"""Figures of the corpus: documents dropped by reason, kept text and tokens per line by language."""

from __future__ import annotations

from stamm.base.units import bytes_text
from stamm.corpus.page.record import Corpus
from stamm.corpus.records import ParallelCosts, ParallelRates, TokenizerSummary
from stamm.pages.config import ReportConfig
from stamm.pages.figure import DataTable, Figure
from stamm.pages.formatting import fixed, percent, spaced
from stamm.pages.svg_figure import Axes, draw, draw_panels
from stamm.pages.text import one_line
from stamm.pages.theme import drawn, series
from stamm.runs.run_view import RunView

_MOST_REASONS = 12
_LABEL = 30
Line = tuple[str, ParallelRates]


def dropped_figure(run: RunView, corpus: Corpus) -> Figure | None:
    """Documents dropped by reason, in number and in bytes; None when nothing was dropped."""
    if not corpus.reasons:
        return None
    shown = corpus.reasons[:_MOST_REASONS]

    def paint(panels: list[Axes]) -> None:
        by_count, by_size = panels
        bar_positions = range(len(shown))
        by_count.barh(bar_positions, [r.documents for r in shown], height=0.55, color=series(0))
        by_size.barh(bar_positions, [r.bytes / 1024 for r in shown], height=0.55, color=series(2))
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
            axes.set_yticks(bar_positions, [words(reason.name) for reason in shown])
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
        command=run.made_by(),
    )


def stayed_figure(run: RunView, corpus: Corpus, config: ReportConfig) -> Figure | None:
    """Kept text by language, or None when none was kept."""
    if not corpus.summary.kept_by_language:
        return None
    ordered = sorted(
        corpus.summary.kept_by_language.items(), key=lambda row: (-row[1].bytes, row[0])
    )
    shown = ordered[: config.languages]

    def paint(panels: list[Axes]) -> None:
        _bars(panels[0], [(name, counts.bytes / 1024) for name, counts in shown], "KiB of text")

    total = max(corpus.summary.bytes_kept, 1)
    return Figure(
        key="stayed",
        title="What stayed, by language",
        caption=(
            f"{bytes_text(corpus.summary.bytes_kept)} of text in {len(ordered)} languages and scripts. "
            f"The largest, {one_line(ordered[0][0], 40)}, has {percent(ordered[0][1].bytes / total)}."
        ),
        alt="; ".join(f"{name}: {bytes_text(counts.bytes)}" for name, counts in shown[:12]),
        svg=draw("stayed", 2.9, paint),
        data=DataTable(
            columns=("language", "documents", "bytes", "share", "bytes per token"),
            rows=tuple(
                (
                    one_line(name, 60), f"{counts.documents:,}", f"{counts.bytes:,}",
                    percent(counts.bytes / total),
                    _bytes_per_token(corpus.vocabulary, name),
                )
                for name, counts in ordered
            ),
        ),
        source="corpus/ledger*.parquet, tokenizer/summary.json",
        command=run.made_by(),
    )  # fmt: skip


def _bars(axes: Axes, bars: list[tuple[str, float]], unit: str, mean: float | None = None) -> None:
    """Draw a bar for each language, and a dotted line at the mean."""
    axes.bar(range(len(bars)), [height for _, height in bars], color=series(0))
    if mean is not None:
        axes.axhline(mean, color=drawn("ink"), lw=1, ls=(0, (2, 2)))
    names = [one_line(name, 16) for name, _ in bars]
    axes.set_xticks(range(len(bars)), names, rotation=90, fontsize=8)
    axes.set_ylabel(unit)
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.6, max(len(bars), 12) - 0.4)


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


def _bytes_per_token(vocabulary: TokenizerSummary | None, language: str) -> str:
    known = vocabulary.train.languages.get(language) if vocabulary else None
    rate = known.bytes_per_token if known else None
    return "" if rate is None else fixed(rate, 2)


def fairness_figure(run: RunView, corpus: Corpus, config: ReportConfig) -> Figure | None:
    """Tokens for a line of one text in many languages, cheapest first; None where none was measured."""
    parallel = corpus.vocabulary.parallel if corpus.vocabulary else None
    if parallel is None or not parallel.languages:
        return None
    ordered = sorted(
        parallel.languages.items(), key=lambda item: (item[1].tokens_per_line, item[0])
    )
    shown = [ordered[at] for at in spaced(len(ordered), max(config.languages, 2))]
    mean = sum(cost.tokens_per_line for _, cost in ordered) / len(ordered)

    def paint(panels: list[Axes]) -> None:
        bars = [(name, cost.tokens_per_line) for name, cost in shown]
        _bars(panels[0], bars, "tokens a line; dotted: mean", mean)

    num_hidden = len(ordered) - len(shown)
    return Figure(
        key="fairness",
        title="What the vocabulary costs each language",
        caption=_caption(parallel, ordered) + (f" {num_hidden} more are in the table." if num_hidden else ""),
        alt="; ".join(
            f"{one_line(name, 40)}: {fixed(cost.tokens_per_line, 1)} tokens a line"
            for name, cost in shown
        ),
        svg=draw("fairness", 2.9, paint),
        data=DataTable(
            columns=(
                "language", "tokens a line", "times the cheapest", "bytes per token",
                "tokens per word", "share of the vocabulary used",
            ),
            rows=tuple(_row(name, cost, ordered[0][1]) for name, cost in ordered),
            note=""
            if all(cost.tokens_per_word for _, cost in ordered)
            else "Without tokens per word: scripts that put no blanks between words.",
        ),
        source="tokenizer/summary.json",
        command=run.made_by(),
    )  # fmt: skip


def _caption(parallel: ParallelCosts, ordered: list[Line]) -> str:
    first, last = ordered[0], ordered[-1]
    return (
        f"The same {parallel.lines:,} lines of text ({one_line(parallel.text, 80)}) in "
        f"{len(ordered):,} languages, by the number of tokens that each needs: "
        f"{one_line(first[0], 40)} the fewest, {one_line(last[0], 40)} "
        f"{fixed(last[1].tokens_per_line / first[1].tokens_per_line, 2)} times as many. Gini coefficient "
        f"{fixed(parallel.gini, 3)}; 0 would be the same price for every language."
    )


def _row(name: str, rates: ParallelRates, cheapest: ParallelRates) -> tuple[str, ...]:
    return (
        one_line(name, 60),
        fixed(rates.tokens_per_line, 1),
        fixed(rates.tokens_per_line / cheapest.tokens_per_line, 2),
        fixed(rates.bytes_per_token, 2),
        "" if rates.tokens_per_word is None else fixed(rates.tokens_per_word, 2),
        percent(rates.vocabulary_used),
    )
