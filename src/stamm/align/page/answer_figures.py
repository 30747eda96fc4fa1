"""Figures of aligned answers: win rate, KL against quantile, distributions, length."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from stamm.align.page.results import AlignedArm, AlignmentResults
from stamm.align.page.tables import interval_text, moved_text, percent_text
from stamm.align.records import CurvePoint, DistributionBin
from stamm.pages.figure import DataTable, Figure
from stamm.pages.formatting import fixed, percent
from stamm.pages.svg_figure import (
    Axes,
    draw,
    draw_panels,
    legend,
    legend_name,
)
from stamm.pages.text import one_line
from stamm.pages.theme import drawn, mark, series
from stamm.runs.run_view import RunView
from stamm.statistics.estimates import MeanInterval


def answer_figures(run: RunView, results: AlignmentResults) -> tuple[Figure, ...]:
    """The figures of aligned answers; () where none were evaluated."""
    aligned = results.aligned
    if not aligned:
        return ()
    betas = {arm.name: training.beta for arm, training in results.trained}
    return (
        win_figure(run, aligned), optimum_figure(run, aligned, betas),
        distribution_figure(run, aligned), length_figure(run, aligned),
    )  # fmt: skip


def win_figure(run: RunView, aligned: Sequence[AlignedArm]) -> Figure:
    """Win rate against the start model by arm and reward, with intervals."""
    shown = [
        (arm, position, reward)
        for arm in aligned
        for position, reward in enumerate(arm.file.rewards)
    ]
    names = [
        legend_name(arm.name)
        + (f", {one_line(reward.column, 16)}" if len(arm.file.rewards) > 1 else "")
        for arm, _, reward in shown
    ]

    def paint(panels: list[Axes]) -> None:
        (axes,) = panels
        axes.axvline(50, color=drawn("muted"), lw=1, ls=(0, (2, 2)))
        for at, (arm, position, reward) in enumerate(shown):
            _interval(axes, reward.win_rate, at, arm.number, filled=position == 0, scale=100)
        axes.set_yticks(range(len(shown)), names)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlabel("% of pairs won against the start model; dotted: no difference")

    several = any(len(arm.file.rewards) > 1 for arm in aligned)
    return Figure(
        key="wins",
        title="Win rate against the start model",
        caption=(
            "How often an answer of the aligned model has a higher reward than an answer of the start "
            "model to the same prompt; a tie counts as half. Lines are intervals."
            + (" Hollow: by a reward that was not trained on." if several else "")
        ),
        alt="; ".join(
            f"{name}: {percent_text(reward.win_rate)}"
            for name, (_, _, reward) in zip(names, shown, strict=True)
        ),
        svg=draw("wins", 0.9 + 0.34 * len(shown), paint),
        data=DataTable(
            columns=("arm", "reward", "win rate", "ties", "p", "prompts", "seeds"),
            rows=tuple(
                (
                    one_line(arm.name, 60), one_line(reward.column, 40), percent_text(reward.win_rate),
                    percent(reward.ties), f"{reward.win_p_value:.3g}", f"{arm.file.prompts:,}",
                    f"{len(arm.file.seeds)}",
                )
                for arm, _, reward in shown
            ),
            words=2,
        ),
        source=_sources(aligned),
        command=run.made_by(),
    )  # fmt: skip


def optimum_figure(
    run: RunView, aligned: Sequence[AlignedArm], betas: Mapping[str, float | None]
) -> Figure:
    """Each arm's KL and mean quantile beside the curve that no policy exceeds.

    betas   of the training of an arm, by its name; None where no closed form is known
    """
    curve = max((arm.file.curve for arm in aligned), key=len)
    most = max((arm.file.kl.k1.high or arm.file.kl.k1.mean for arm in aligned), default=1.0)
    targets = [
        (arm, optimum)
        for arm in aligned
        if (optimum := _target(arm, betas.get(arm.name))) is not None
    ]
    end = 1.15 * max([most, 0.1, *(optimum.kl for _, optimum in targets)])

    def paint(panels: list[Axes]) -> None:
        (axes,) = panels
        points = [(0.0, 0.5), *((point.kl, point.quantile) for point in curve)]
        axes.plot(*zip(*points, strict=True), color=drawn("muted"), lw=1.3, label="optimum")
        axes.plot([0], [0.5], "x", color=drawn("ink"), ms=6, label="start model")
        for arm in aligned:
            kl, mean = arm.file.kl.k1, arm.file.rewards[0].quantile.after
            axes.errorbar(
                [kl.mean], [mean.mean], xerr=_reach(kl), yerr=_reach(mean),
                fmt=mark(arm.number), ms=6, lw=1.2, color=series(arm.number),
                label=legend_name(arm.name),
            )  # fmt: skip
        for arm, optimum in targets:
            axes.plot(
                [optimum.kl], [optimum.quantile], "*", ms=11, mfc="none", mec=series(arm.number)
            )
        lowest = min([0.5, *(_low(arm.file.rewards[0].quantile.after) for arm in aligned)])
        axes.set_xlim(-0.03 * end, end)
        axes.set_ylim(lowest - 0.03, 1.02)
        axes.set_xlabel("KL to the start model, nats per answer")
        axes.set_ylabel("mean quantile")
        legend(axes)

    starred = (
        " A star is the optimum of the beta that the arm of this colour was trained with."
        if targets
        else ""
    )
    return Figure(
        key="kl-quantile",
        title="Mean quantile against KL",
        caption=(
            "The higher the mean quantile and the smaller the KL, the better. The line is the "
            "closed-form optimum: no policy has a higher mean quantile at the same KL, if rewards "
            "have no ties. A point above it means an interval, ties, or too few references."
            f"{starred}"
        ),
        alt="; ".join(
            f"{arm.name}: KL {fixed(arm.file.kl.k1.mean, 2)}, mean quantile "
            f"{fixed(arm.file.rewards[0].quantile.after.mean, 3)}, the optimum there is "
            f"{fixed(arm.file.optimum.best_quantile, 3)}"
            for arm in aligned
        ),
        svg=draw("kl-quantile", 3.5, paint),
        data=DataTable(
            columns=(
                "arm", "KL, nats", "mean quantile", "optimum at this KL", "below it",
                "KL more than needed",
            ),
            rows=tuple(
                (
                    one_line(arm.name, 60), interval_text(arm.file.kl.k1, 3),
                    interval_text(arm.file.rewards[0].quantile.after, 3),
                    fixed(arm.file.optimum.best_quantile, 3),
                    interval_text(arm.file.optimum.below, 3),
                    "" if (excess := arm.file.optimum.excess_kl) is None else fixed(excess, 3),
                )
                for arm in aligned
            ),
        ),
        source=_sources(aligned),
        command=run.made_by(),
    )  # fmt: skip


def distribution_figure(run: RunView, aligned: Sequence[AlignedArm]) -> Figure:
    """Quantiles and rewards of answers before and after."""
    first = aligned[0]

    def paint(panels: list[Axes]) -> None:
        left, right = panels
        for axes, bins in ((left, _quantiles), (right, _rewards)):
            _steps(axes, bins(first), [b.before for b in bins(first)], drawn("ink"), "start", True)
            for arm in aligned:
                after = [b.after for b in bins(arm)]
                _steps(axes, bins(arm), after, series(arm.number), legend_name(arm.name), False)
            axes.set_ylim(bottom=0)
        left.set_title("Rank among references", pad=36)
        left.set_ylabel("share of answers")
        left.set_xlabel("rank")
        right.set_title("Reward", pad=36)
        right.set_xlabel(one_line(first.file.rewards[0].column, 40))
        _legend(left, [arm.name for arm in aligned])

    return Figure(
        key="distributions",
        title="Rewards before and after",
        caption=(
            "Left, the rank of each answer's reward among fresh answers of the start model to the same "
            "prompt, from 0 to 1: the start model's own are level but for chance and ties. Right, the reward itself; for a "
            "reward of few values a point is the share of answers that have it."
        ),
        alt="; ".join(
            f"{arm.name}: mean quantile {moved_text(arm.file.rewards[0].quantile, 3)}, mean reward "
            f"{moved_text(arm.file.rewards[0].reward, 3)}"
            for arm in aligned
        ),
        svg=draw_panels("distributions", 3.2, paint, 2),
        data=DataTable(
            columns=("arm", "of", "from", "to", "start, share", "aligned, share"),
            rows=tuple(
                (
                    one_line(arm.name, 60), what, fixed(b.low, 3), fixed(b.high, 3),
                    percent(b.before), percent(b.after),
                )
                for arm in aligned
                for what, bins in (("rank", _quantiles), ("reward", _rewards))
                for b in bins(arm)
            ),
            words=2,
        ),
        source=_sources(aligned),
        command=run.made_by(),
    )  # fmt: skip


def length_figure(run: RunView, aligned: Sequence[AlignedArm]) -> Figure:
    """Length of answers by quantile, and over all, before and after."""
    first = aligned[0]

    def paint(panels: list[Axes]) -> None:
        left, right = panels
        _lengths(left, first, "before", drawn("ink"), "start", dashed=True)
        for arm in aligned:
            _lengths(left, arm, "after", series(arm.number), legend_name(arm.name), dashed=False)
        left.set_xlabel("quantile of the answer's reward")
        left.set_title("Tokens by quantile", pad=36)
        left.set_ylim(0, 1.08 * left.get_ylim()[1])
        left.set_xlim(0, 1)
        _legend(left, [arm.name for arm in aligned])
        right.axvline(first.file.tokens.before.mean, color=drawn("ink"), lw=1, ls=(0, (4, 2)))
        for at, arm in enumerate(aligned):
            _interval(right, arm.file.tokens.after, at, arm.number, filled=True)
        right.set_yticks(range(len(aligned)), [legend_name(arm.name) for arm in aligned])
        right.set_ylim(len(aligned) - 0.4, -0.6)
        right.set_title("Tokens, all answers; dashed: start", pad=36)

    return Figure(
        key="length",
        title="Length before and after",
        caption=(
            "If the dashed line rises, the reward itself prefers long answers. An aligned model whose "
            "answers are longer at every quantile has learned length beyond what its reward pays for. "
            "The slope in the table is within prompts, in tokens from the lowest quantile to the highest."
        ),
        alt="; ".join(
            f"{arm.name}: {moved_text(arm.file.tokens, 1)} tokens" for arm in aligned
        ),
        svg=draw_panels("length", 3.2, paint, 2),
        data=DataTable(
            columns=(
                "arm", "quantile", "start, tokens", "aligned, tokens", "slope, start", "slope, aligned",
            ),
            rows=tuple(row for arm in aligned for row in _length_rows(arm)),
            words=2,
        ),
        source=_sources(aligned),
        command=run.made_by(),
    )  # fmt: skip


def _target(aligned: AlignedArm, beta: float | None) -> CurvePoint | None:
    """The optimum of the beta that an arm was trained with, as recorded or by its configuration's `beta`.

    The latter lies on the chord of the two nearest points of the curve.
    """
    if aligned.file.optimum.target is not None:
        return aligned.file.optimum.target
    for high, low in itertools.pairwise(aligned.file.curve):
        if beta is not None and low.beta <= beta <= high.beta and low.beta < high.beta:
            share = math.log(high.beta / beta) / math.log(high.beta / low.beta)
            return CurvePoint(
                beta=beta,
                kl=high.kl + share * (low.kl - high.kl),
                quantile=high.quantile + share * (low.quantile - high.quantile),
            )
    return None


def _legend(axes: Axes, names: Sequence[str]) -> None:
    """The start model and the arms: in one line where one panel of two has room for it."""
    short = len(names) <= 3 and sum(map(len, names)) <= 18
    legend(axes, columns=len(names) + 1 if short else 3)


def _quantiles(arm: AlignedArm) -> Sequence[DistributionBin]:
    return arm.file.rewards[0].quantiles


def _rewards(arm: AlignedArm) -> Sequence[DistributionBin]:
    return arm.file.rewards[0].rewards


def _steps(
    axes: Axes,
    bins: Sequence[DistributionBin],
    shares: Sequence[float],
    colour: str,
    name: str,
    dashed: bool,
) -> None:
    style = (0, (4, 2)) if dashed else "-"
    if all(length_bin.low == length_bin.high for length_bin in bins):
        axes.plot(
            [length_bin.low for length_bin in bins], shares, "o", ls=style, color=colour, ms=4, lw=1.3,
            label=name,
        )  # fmt: skip
        return
    axes.stairs(
        shares, [bins[0].low, *(length_bin.high for length_bin in bins)], color=colour, lw=1.5, ls=style,
        label=name,
    )  # fmt: skip


def _lengths(
    axes: Axes, arm: AlignedArm, side: str, colour: str, name: str, *, dashed: bool
) -> None:
    means = [
        ((length_bin.low + length_bin.high) / 2, value)
        for length_bin in arm.file.length_bins
        if (value := length_bin.before if side == "before" else length_bin.after) is not None
    ]
    shift = 0.0 if dashed else 0.008 * (arm.number % 5 - 2)
    axes.errorbar(
        [at + shift for at, _ in means],
        [value.mean for _, value in means],
        yerr=[
            [value.mean - _low(value) for _, value in means],
            [_high(value) - value.mean for _, value in means],
        ],
        fmt="o", ls=(0, (4, 2)) if dashed else "-", ms=4, lw=1.2, color=colour, label=name,
    )  # fmt: skip


def _length_rows(arm: AlignedArm) -> list[tuple[str, ...]]:
    name, slope = one_line(arm.name, 60), arm.file.length_slope
    rows: list[tuple[str, ...]] = [
        (
            name, f"{fixed(length_bin.low, 1)} to {fixed(length_bin.high, 1)}",
            interval_text(length_bin.before, 1) if length_bin.before else "",
            interval_text(length_bin.after, 1) if length_bin.after else "", "", "",
        )
        for length_bin in arm.file.length_bins
    ]  # fmt: skip
    tokens = arm.file.tokens
    rows.append(
        (
            name, "all", interval_text(tokens.before, 1), interval_text(tokens.after, 1),
            interval_text(slope.before, 1) if slope else "",
            interval_text(slope.after, 1) if slope else "",
        )
    )  # fmt: skip
    return rows


def _interval(
    axes: Axes, value: MeanInterval, at: float, number: int, *, filled: bool, scale: float = 1.0
) -> None:
    colour = series(number)
    axes.plot([scale * _low(value), scale * _high(value)], [at, at], color=colour, lw=1.3)
    axes.plot(
        [scale * value.mean], [at], mark(number), ms=6.5, color=colour,
        markerfacecolor=colour if filled else drawn("card"),
    )  # fmt: skip


def _low(value: MeanInterval) -> float:
    return value.mean if value.low is None else value.low


def _high(value: MeanInterval) -> float:
    return value.mean if value.high is None else value.high


def _reach(value: MeanInterval) -> list[list[float]]:
    return [[value.mean - _low(value)], [_high(value) - value.mean]]


def _sources(aligned: Sequence[AlignedArm]) -> str:
    """The files of all arms: "arms/{qrpo,dpo}/answers/alignment.json"."""
    parts = [arm.source.split(arm.name) for arm in aligned]
    if len(parts) > 1 and all(len(pieces) == 2 and pieces == parts[0] for pieces in parts):
        return f"{{{','.join(arm.name for arm in aligned)}}}".join(parts[0])
    return ", ".join(arm.source for arm in aligned)
