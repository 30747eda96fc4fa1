"""Figure of tokens per line of the same text in each language."""

from __future__ import annotations

from stamm.reports.config import ReportConfig
from stamm.reports.figure import DataTable, Figure
from stamm.reports.formatting import fixed, percent, spaced
from stamm.reports.run_data import RunResults
from stamm.reports.svg_figure import Axes, draw
from stamm.reports.text import one_line
from stamm.reports.theme import drawn, series
from stamm.runs.schemas.corpus import ParallelCosts, ParallelRates

Line = tuple[str, ParallelRates]


def fairness_figure(study: RunResults, config: ReportConfig) -> Figure | None:
    """Tokens for a line of one text in many languages, cheapest first; None where none was measured."""
    parallel = study.vocabulary.parallel if study.vocabulary else None
    if parallel is None or not parallel.languages:
        return None
    ordered = sorted(
        parallel.languages.items(), key=lambda item: (item[1].tokens_per_line, item[0])
    )
    shown = [ordered[at] for at in spaced(len(ordered), max(config.languages, 2))]
    mean = sum(one.tokens_per_line for _, one in ordered) / len(ordered)

    def paint(panels: list[Axes]) -> None:
        axes = panels[0]
        places = range(len(shown))
        axes.bar(places, [one.tokens_per_line for _, one in shown], color=series(0))
        axes.axhline(mean, color=drawn("ink"), lw=1, ls=(0, (2, 2)))
        axes.set_xticks(places, [one_line(name, 16) for name, _ in shown], rotation=90, fontsize=8)
        axes.set_ylabel("tokens a line; dotted: mean")
        axes.grid(visible=False, axis="x")
        axes.set_xlim(-0.6, max(len(shown), 12) - 0.4)

    left = len(ordered) - len(shown)
    return Figure(
        key="fairness",
        title="What the vocabulary costs each language",
        caption=_caption(parallel, ordered) + (f" {left} more are in the table." if left else ""),
        alt="; ".join(
            f"{one_line(name, 40)}: {fixed(one.tokens_per_line, 1)} tokens a line"
            for name, one in shown
        ),
        svg=draw("fairness", 2.9, paint),
        data=DataTable(
            columns=(
                "language", "tokens a line", "times the cheapest", "bytes per token",
                "tokens per word", "share of the vocabulary used",
            ),
            rows=tuple(_row(name, one, ordered[0][1]) for name, one in ordered),
            note=""
            if all(one.tokens_per_word for _, one in ordered)
            else "Without tokens per word: scripts that put no blanks between words.",
        ),
        source="tokenizer/summary.json",
        command=study.made_by(),
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


def _row(name: str, one: ParallelRates, cheapest: ParallelRates) -> tuple[str, ...]:
    return (
        one_line(name, 60),
        fixed(one.tokens_per_line, 1),
        fixed(one.tokens_per_line / cheapest.tokens_per_line, 2),
        fixed(one.bytes_per_token, 2),
        "" if one.tokens_per_word is None else fixed(one.tokens_per_word, 2),
        percent(one.vocabulary_used),
    )
