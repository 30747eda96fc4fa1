"""Figure of the vocabulary: what the same text costs each language, in tokens."""

from __future__ import annotations

from stamm.reports.config import ReportConfig
from stamm.reports.corpus_record import Parallel, ParallelCost
from stamm.reports.figure import Figure, Table
from stamm.reports.formatting import fixed, percent, spaced
from stamm.reports.run_data import Study
from stamm.reports.svg_figure import Axes, draw
from stamm.reports.text import one_line
from stamm.reports.theme import drawn, series


def fairness_figure(study: Study, config: ReportConfig) -> Figure | None:
    """Tokens for a line of one text in many languages, cheapest first; None where none was measured."""
    parallel = study.vocabulary.parallel if study.vocabulary else None
    if parallel is None or not parallel.languages:
        return None
    ordered = sorted(parallel.languages, key=lambda one: (one.tokens_per_line, one.language))
    shown = [ordered[at] for at in spaced(len(ordered), max(config.languages, 2))]
    mean = sum(one.tokens_per_line for one in ordered) / len(ordered)

    def paint(panels: list[Axes]) -> None:
        axes = panels[0]
        places = range(len(shown))
        axes.bar(places, [one.tokens_per_line for one in shown], color=series(0))
        axes.axhline(mean, color=drawn("ink"), lw=1, ls=(0, (2, 2)))
        axes.set_xticks(
            places, [one_line(one.language, 16) for one in shown], rotation=90, fontsize=8
        )
        axes.set_ylabel("tokens a line; dotted: mean")
        axes.grid(visible=False, axis="x")
        axes.set_xlim(-0.6, max(len(shown), 12) - 0.4)

    left = len(ordered) - len(shown)
    return Figure(
        key="fairness",
        title="What the vocabulary costs each language",
        caption=_caption(parallel, ordered) + (f" {left} more are in the table." if left else ""),
        alt="; ".join(
            f"{one_line(one.language, 40)}: {fixed(one.tokens_per_line, 1)} tokens a line"
            for one in shown
        ),
        svg=draw("fairness", 2.9, paint),
        data=Table(
            columns=(
                "language", "tokens a line", "times the cheapest", "bytes per token",
                "tokens per word", "share of the vocabulary used",
            ),
            rows=tuple(_row(one, ordered[0]) for one in ordered),
            note=""
            if all(one.tokens_per_word for one in ordered)
            else "Without tokens per word: scripts that put no blanks between words.",
        ),
        source="tokenizer/summary.json",
        command=study.made_by(),
    )  # fmt: skip


def _caption(parallel: Parallel, ordered: list[ParallelCost]) -> str:
    first, last = ordered[0], ordered[-1]
    return (
        f"The same {parallel.lines:,} lines of text ({one_line(parallel.text, 80)}) in "
        f"{len(ordered):,} languages, told by how many tokens each needs: "
        f"{one_line(first.language, 40)} the fewest, {one_line(last.language, 40)} "
        f"{fixed(last.tokens_per_line / first.tokens_per_line, 2)} times as many. Gini coefficient "
        f"{fixed(parallel.gini, 3)}; 0 would be the same price for every language."
    )


def _row(one: ParallelCost, cheapest: ParallelCost) -> tuple[str, ...]:
    return (
        one_line(one.language, 60),
        fixed(one.tokens_per_line, 1),
        fixed(one.tokens_per_line / cheapest.tokens_per_line, 2),
        fixed(one.bytes_per_token, 2),
        "" if one.tokens_per_word is None else fixed(one.tokens_per_word, 2),
        percent(one.vocabulary_used),
    )
