"""Figures of a comparison: differences with intervals, loss over steps, loss over learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stamm.compare.results import Compared, ComparedArm
from stamm.compare.verdict import Judgement, span
from stamm.pages.config import ReportConfig
from stamm.pages.figure import DataTable, Figure, thinned
from stamm.pages.formatting import fixed, percent, signed, smoothed
from stamm.pages.svg_figure import Axes, draw, draw_panels, legend, legend_name, note, whole_steps
from stamm.pages.theme import drawn, series

_MOST_POINTS = 600
_DASHES = ("-", (0, (5, 1.6)), (0, (1.4, 1.4)), (0, (6, 1.5, 1.5, 1.5)))
_MARKS = "osD^v<>P"


@dataclass(frozen=True, kw_only=True)
class Band:
    """Smoothed training loss of an arm over its seeds: mean, lowest and highest, by step."""

    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def comparison_figures(
    compared: Compared, judgement: Judgement, config: ReportConfig
) -> tuple[Figure, ...]:
    """The figures that can be drawn from what is there."""
    figures = (
        difference_figure(compared, judgement),
        tuning_figure(compared),
        loss_band_figure(compared, config),
    )
    return tuple(figure for figure in figures if figure is not None)


def difference_figure(compared: Compared, judgement: Judgement) -> Figure | None:
    """Each arm's difference to the baseline with its interval; None before there is one."""
    lines = [line for line in judgement.lines if line.difference is not None]
    if not lines:
        return None
    differences = [line.difference for line in lines if line.difference is not None]
    base = next(arm for arm in compared.arms if arm.name == compared.baseline).judged()
    apart = {
        arm.name: [value - base[seed] for seed, value in arm.judged().items() if seed in base]
        for arm in compared.arms
    }

    def paint(panels: list[Axes]) -> None:
        (axes,) = panels
        axes.axvline(0.0, color=drawn("muted"), linewidth=0.9)
        for row, (line, difference) in enumerate(zip(lines, differences, strict=True)):
            mean = difference.interval.mean
            if not math.isfinite(mean):
                gone = "diverged" if line.diverged else f"{compared.baseline} diverged"
                axes.annotate(
                    legend_name(gone), (0.0, row), xytext=(6, 0), textcoords="offset points",
                    va="center", color=drawn("muted"), fontsize=8,
                )  # fmt: skip
                continue
            colour = series(line.number)
            if difference.interval.low is not None and difference.interval.high is not None:
                axes.plot(
                    [difference.interval.low, difference.interval.high], [row] * 2, color=colour
                )
            axes.plot(apart[line.name], [row] * len(apart[line.name]), "|", color=colour, ms=9)
            filled = colour if difference.shown else drawn("card")
            axes.plot([mean], [row], "o", color=colour, markerfacecolor=filled, ms=7)
        axes.set_yticks(range(len(lines)), [legend_name(line.name) for line in lines])
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.set_xlabel(f"bits per byte against {legend_name(compared.baseline)}; lower is better")

    return Figure(
        key="difference",
        title=f"Held-out loss against {legend_name(compared.baseline)}",
        caption=(
            "A dot is the mean over seeds of the difference to the baseline of the same seed, the "
            "strokes are the seeds, a line is the interval; all of them together hold the truth with the "
            "confidence of the comparison. A filled dot is a difference that is shown."
        ),
        alt="; ".join(
            f"{line.name}: {signed(difference.interval.mean, 4)}, interval {span(difference.interval, signs=True)}"
            for line, difference in zip(lines, differences, strict=True)
        ),
        svg=draw("difference", 1.0 + 0.36 * len(lines), paint),
        data=DataTable(
            columns=("arm", "difference, bits per byte", "interval", "p", "p, corrected"),
            rows=tuple(
                (
                    difference.name,
                    signed(difference.interval.mean, 5),
                    span(difference.interval, signs=True),
                    "" if difference.p_value is None else f"{difference.p_value:.3g}",
                    "" if difference.adjusted is None else f"{difference.adjusted:.3g}",
                )
                for difference in differences
            ),
        ),
        source="final/*/*/evaluate/held_out.json",
        command=compared.view.made_by(),
    )


def tuning_figure(compared: Compared) -> Figure | None:
    """Loss at the end of each short run over its learning rate; None before an arm was tuned."""
    arms = [arm for arm in compared.arms if arm.trials]
    if not arms:
        return None
    rates = sorted({trial.rate for arm in arms for trial in arm.trials})
    cut = _cut(arms)

    def paint(panels: list[Axes]) -> None:
        (axes,) = panels
        for arm in arms:
            there = [
                (t.rate, t.loss_nats)
                for t in arm.trials
                if t.loss_nats is not None and t.shape_factor == arm.shape_factor
            ]
            axes.plot(
                [rate for rate, _ in there],
                [loss for _, loss in there],
                color=series(arm.number),
                marker=_MARKS[arm.number % len(_MARKS)],
                markersize=4.5,
                linestyle=_DASHES[arm.number % len(_DASHES)],
                label=legend_name(arm.name),
            )
            for rate, loss in there:
                if rate == arm.rate:
                    axes.plot([rate], [loss], "o", ms=12, mfc="none", mec=series(arm.number))
        axes.set_xscale("log")
        axes.set_xticks(_apart(rates), [f"{rate:.2g}" for rate in _apart(rates)])
        axes.minorticks_off()
        if cut is not None:
            axes.set_ylim(*cut)
        axes.set_xlabel("learning rate")
        axes.set_ylabel("nats per kept token")
        legend(axes, columns=4)

    gone = [
        f"{arm.name} at {trial.rate:.3g}"
        for arm in arms
        for trial in arm.trials
        if trial.loss_nats is None
    ]
    above = (
        ""
        if cut is None
        else f" Losses above {fixed(cut[1], 2)} lie outside of the drawing; the table has them."
    )
    shaped = (
        " Of arms with trained shapes the runs at the chosen factor of their rate are drawn."
        if any(arm.shape_factor is not None for arm in arms)
        else ""
    )
    diverged = f" Without a finite loss, and not drawn: {', '.join(gone)}." if gone else ""
    edge = [arm.name for arm in arms if arm.at_edge]
    inside = (
        f"At the edge of what was tried: {', '.join(edge)}."
        if edge
        else "Every chosen rate lies inside what was tried."
    )
    return Figure(
        key="tuning",
        title="Short runs by learning rate",
        caption=(
            f"Training loss at the end of runs of {percent(compared.short, 0)} of the length; the "
            f"ringed one was chosen. {inside}{shaped}{above}{diverged}"
        ),
        alt="; ".join(f"{arm.name}: {arm.rate:.3g} chosen" for arm in arms if arm.rate is not None),
        svg=draw("tuning", 3.3, paint),
        data=DataTable(
            columns=(
                "arm",
                "learning rate",
                "factor of the shapes",
                "loss, nats per kept token",
                "chosen",
            ),
            rows=tuple(
                (
                    arm.name,
                    f"{trial.rate:.4g}",
                    "" if trial.shape_factor is None else f"{trial.shape_factor:g}",
                    "not finite" if trial.loss_nats is None else fixed(trial.loss_nats, 4),
                    "chosen"
                    if (trial.rate, trial.shape_factor) == (arm.rate, arm.shape_factor)
                    else "",
                )
                for arm in arms
                for trial in arm.trials
            ),
        ),
        source="tune/*/chosen/chosen.json",
        command=compared.view.made_by(),
    )


def _cut(arms: Sequence[ComparedArm]) -> tuple[float, float] | None:
    """The ends of the axis of losses where diverged runs would flatten the others."""
    losses = sorted(t.loss_nats for arm in arms for t in arm.trials if t.loss_nats is not None)
    if not losses:
        return None
    low, middle = losses[0], losses[len(losses) // 2]
    high = middle + 4 * (middle - low)
    return (low - 0.05 * (high - low), high) if low < high < losses[-1] else None


def loss_band_figure(compared: Compared, config: ReportConfig) -> Figure | None:
    """Training loss by step: the mean over seeds in a band of all seeds; None before a run ended.

    Beside it the same against the baseline, seed by seed, where the runs have the same steps.
    """
    share = config.smoothing
    curves = {arm.name: by_seed for arm in compared.arms if (by_seed := _curves(arm))}
    bands = {name: band for name, by_seed in curves.items() if (band := _band(by_seed, share))}
    if not bands:
        return None
    against = _against(curves, compared.baseline, share)
    numbers = {arm.name: arm.number for arm in compared.arms}

    def paint(panels: list[Axes]) -> None:
        whole, right = panels
        for name, band in bands.items():
            _draw_band(whole, band, numbers[name], name)
        for name, band in (against or bands).items():
            _draw_band(right, band, numbers[name], name)
        whole.set_ylabel("nats per kept token")
        whole.set_title("All steps", pad=36)
        legend(whole, columns=4)
        if against:
            right.set_ylabel("difference, nats per kept token")
            right.axhline(0.0, color=series(numbers[compared.baseline]), linewidth=1.2)
            right.set_title(f"Against {legend_name(compared.baseline)}, seed by seed", pad=36)
            _fit(right, list(against.values()), 0)
        else:
            right.set_title("The last third, closer", pad=36)
            last = max(band.steps[-1] for band in bands.values())
            right.set_xlim(last - last // 3, 1.005 * last)
            _fit(right, list(bands.values()), last - last // 3)
        for axes in panels:
            whole_steps(axes)
        for start in _cooldown_starts(compared):
            note(whole, start, "cooldown")

    gone = [f"{arm.name} with seed {seed}" for arm in compared.arms for seed in arm.diverged]
    beside = (
        "On the right the baseline of the same seed is subtracted, so text that is hard for both cancels."
        if against
        else "Runs have different lengths, so steps are not compared one by one."
    )
    return Figure(
        key="bands",
        title="Training loss",
        caption=(
            "Lower is better. A line is the mean over seeds of moving averages over "
            f"{round(100 * share)} % of the steps; the band reaches from the lowest seed to the "
            "highest. Seeds see the text in different orders, so bands on the left are wider than "
            f"the differences of arms within a seed. {beside}"
            + (f" Not drawn, for they diverged: {', '.join(gone)}." if gone else "")
        ),
        alt="; ".join(
            f"{name} ends at {fixed(band.mean[-1], 3)} nats per kept token"
            for name, band in bands.items()
        ),
        svg=draw_panels("bands", 3.5, paint, 2),
        data=_band_table(bands, config.rows),
        source="final/*/*/metrics.jsonl",
        command=compared.view.made_by(),
    )


Curves = Mapping[int, Mapping[int, float]]
"""Loss by step, by seed."""


def _curves(arm: ComparedArm) -> Curves:
    return {
        run.seed: dict(zip(metrics.loss.steps, metrics.loss.values, strict=True))
        for run in arm.runs
        if (metrics := run.training.metrics) and metrics.loss.values and not run.diverged
    }


def _band(curves: Curves, share: float) -> Band | None:
    # A policy for non-finite losses may have skipped a step in one of them.
    steps = sorted(set.intersection(*(set(curve) for curve in curves.values())))
    if not steps:
        return None
    window = max(round(share * len(steps)), 1)
    smooth = [smoothed([curve[step] for step in steps], window) for curve in curves.values()]
    columns = list(zip(*smooth, strict=True))
    return Band(
        steps=tuple(steps),
        mean=tuple(sum(column) / len(column) for column in columns),
        low=tuple(min(column) for column in columns),
        high=tuple(max(column) for column in columns),
    )


def _against(curves: Mapping[str, Curves], baseline: str, share: float) -> dict[str, Band]:
    """Bands of differences to the baseline of the same seed; empty where lengths differ."""
    if len({max(curve) for by_seed in curves.values() for curve in by_seed.values()}) > 1:
        return {}
    base = curves.get(baseline, {})
    bands = {}
    for name, by_seed in curves.items():
        apart = {
            seed: {step: curve[step] - base[seed][step] for step in curve if step in base[seed]}
            for seed, curve in by_seed.items()
            if seed in base
        }
        if name != baseline and apart and (band := _band(apart, share)):
            bands[name] = band
    return bands


def _draw_band(axes: Axes, band: Band, number: int, name: str) -> None:
    stride = -(-len(band.steps) // _MOST_POINTS)
    steps = band.steps[::stride]
    axes.fill_between(
        steps, band.low[::stride], band.high[::stride], color=series(number), alpha=0.12, lw=0
    )
    axes.plot(
        steps,
        band.mean[::stride],
        color=series(number),
        linestyle=_DASHES[number % len(_DASHES)],
        linewidth=1.5,
        label=legend_name(name),
    )


def _fit(axes: Axes, bands: Sequence[Band], first: int) -> None:
    """A y axis for the means from step `first` on; the first tenth, where all fall, is left out."""
    seen = [
        value
        for band in bands
        for step, value in zip(band.steps, band.mean, strict=True)
        if step >= max(first, band.steps[-1] // 10) and math.isfinite(value)
    ]
    if seen:
        low, high = min(seen), max(seen)
        margin = 0.12 * (high - low) or 0.1
        axes.set_ylim(low - margin, high + margin)


def _cooldown_starts(compared: Compared) -> list[int]:
    summaries = [run.training.summary for arm in compared.arms for run in arm.runs]
    return sorted(
        {
            summary.decay_start_step
            for summary in summaries
            if summary is not None and 0 < summary.decay_start_step < summary.steps
        }
    )[:1]


def _apart(rates: Sequence[float]) -> list[float]:
    """The rates whose names do not overlap on a logarithmic axis."""
    kept: list[float] = []
    reach = math.log(rates[-1] / rates[0]) / 14
    for rate in rates:
        if not kept or math.log(rate / kept[-1]) > reach:
            kept.append(rate)
    return kept


def _band_table(bands: dict[str, Band], limit: int) -> DataTable:
    means = {name: dict(zip(b.steps, b.mean, strict=True)) for name, b in bands.items()}
    steps = sorted({step for band in bands.values() for step in band.steps})
    rows = [
        [str(step), *(fixed(mean[step], 4) if step in mean else "" for mean in means.values())]
        for step in steps
    ]
    columns = ["step", *(f"{name}, mean of seeds" for name in bands)]
    return thinned(columns, rows, limit, "metrics.jsonl", words=0)
