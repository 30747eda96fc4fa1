"""Figures of training: loss, learning rate and gradient norm."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stamm.pages.config import ReportConfig
from stamm.pages.figure import DataTable, Figure, thinned
from stamm.pages.formatting import fixed, smoothed
from stamm.pages.svg_figure import (
    Axes,
    draw_panels,
    legend,
    legend_name,
    log_scale,
    note,
    whole_steps,
)
from stamm.pages.theme import series
from stamm.pretrain.results import ArmTraining, same_tokens
from stamm.runs.metric_series import Series
from stamm.runs.run_view import ArmView, RunView

Arms = Sequence[tuple[ArmView, ArmTraining]]

# more points cannot be distinguished in a column of this width, and the page stays small
MOST_POINTS = 600
_DASHES = ("-", (0, (5, 1.6)), (0, (1.4, 1.4)), (0, (6, 1.5, 1.5, 1.5)))


def loss_figure(run: RunView, arms: Arms, config: ReportConfig) -> Figure | None:
    """Training loss of every arm by step, in nats per kept token; None when nothing was trained."""
    curves = {
        arm.name: training.metrics.loss
        for arm, training in arms
        if training.metrics and training.metrics.loss.values
    }
    if not curves:
        return None
    smooth = {name: _smoothed(curve, config.smoothing) for name, curve in curves.items()}
    starts = _cooldown_starts(arms)

    def paint(panels: list[Axes]) -> None:
        whole, end = panels
        for axes in panels:
            for index, name in enumerate(curves):
                _line(axes, curves[name], index, "", faint=True)
                _line(axes, smooth[name], index, name)
            whole_steps(axes)
        whole.set_ylabel("nats per kept token")
        whole.set_title("All steps", pad=22)
        end.set_title("The last third, closer", pad=22)
        legend(whole, columns=4)
        _zoom(end, list(smooth.values()))
        for start in starts:
            note(whole, start, "cooldown")

    window = round(100 * config.smoothing)
    cooled = " The dotted line marks where the learning rate begins to fall." if starts else ""
    same = (
        "All arms see the same tokens in the same order, so the variation from step to step is "
        "common to them: compare the strong lines."
        if same_tokens(arms) and len(curves) > 1
        else "The loss varies from step to step with the text."
    )
    ends = [f"{name} ends at {fixed(curve.values[-1], 3)}" for name, curve in smooth.items()]
    return Figure(
        key="loss",
        title="Training loss",
        caption=(
            "Lower is better. Strong lines are moving averages over "
            f"{window} % of the steps, faint lines the single steps.{cooled} "
            f"{same}"
        ),
        alt=f"Loss falls with the steps. Moving averages: {'; '.join(ends)} nats per kept token.",
        svg=draw_panels("loss", 3.3, paint, 2),
        data=_series_table(curves, smooth, config.rows),
        source=run.files([arm for arm, _ in arms if arm.name in curves], "metrics.jsonl"),
        command=run.made_by(),
    )


def optimisation_figure(run: RunView, arms: Arms, config: ReportConfig) -> Figure | None:
    """Learning rate and gradient norm by step, or None when nothing was trained."""
    # Preference losses and those of reward models are drawn in the section of alignment.
    measured = [
        (arm, training.metrics)
        for arm, training in arms
        if training.metrics and training.metrics.learning_rate.values
    ]
    if not measured:
        return None
    rates = {arm.name: metrics.learning_rate for arm, metrics in measured}
    norms = {arm.name: metrics.gradient_norm for arm, metrics in measured}
    smooth = {name: _smoothed(curve, config.smoothing) for name, curve in norms.items()}
    shared = len({curve.values for curve in rates.values()}) == 1

    def paint(panels: list[Axes]) -> None:
        left, right = panels
        for index, name in enumerate(rates):
            if index == 0 or not shared:
                _line(left, rates[name], index, name)
            _line(right, norms[name], index, "", faint=True)
            _line(right, smooth[name], index, name)
        left.set_title(
            "Learning rate" + (", the same for every arm" if shared and len(rates) > 1 else ""),
            pad=22,
        )
        left.set_ylim(bottom=0)
        left.ticklabel_format(axis="y", style="plain")
        right.set_title("Gradient norm before clipping", pad=22)
        positive = [v for curve in norms.values() for v in curve.values if math.isfinite(v)]
        if positive and min(positive) > 0 and max(positive) / min(positive) > 20:
            log_scale(right)
        else:
            right.set_ylim(bottom=0)
        legend(right, columns=4)
        for axes in panels:
            whole_steps(axes)

    same = "are the same" if shared else "differ"
    return Figure(
        key="optimisation",
        title="Learning rate and gradient norm",
        caption=(
            "The learning rate warms up, stays constant, and cools down. A steady norm is "
            "expected; spikes that grow towards the end are a warning."
        ),
        alt=f"Learning rates of the arms {same}; gradient norms are listed in the table below.",
        svg=draw_panels("optimisation", 2.8, paint, 2),
        data=_optimisation_table(rates, norms, config.rows),
        source=run.files([arm for arm, _ in measured], "metrics.jsonl"),
        command=run.made_by(),
    )


def _cooldown_starts(arms: Arms) -> list[int]:
    summaries = [training.summary for _, training in arms if training.summary]
    return sorted({s.decay_start_step for s in summaries if 0 < s.decay_start_step < s.steps})


def _smoothed(curve: Series, share: float) -> Series:
    window = max(round(share * len(curve.values)), 1)
    return Series(steps=curve.steps, values=tuple(smoothed(curve.values, window)))


def _line(axes: Axes, curve: Series, index: int, label: str, faint: bool = False) -> None:
    stride = max(1, -(-len(curve.steps) // MOST_POINTS))
    axes.plot(
        curve.steps[::stride],
        curve.values[::stride],
        color=series(index),
        linestyle="-" if faint else _DASHES[index % len(_DASHES)],
        linewidth=0.7 if faint else 1.7,
        alpha=0.28 if faint else 1.0,
        label=legend_name(label) if label else None,
    )


def _zoom(axes: Axes, curves: Sequence[Series]) -> None:
    last = max(curve.steps[-1] for curve in curves)
    first = last - last // 3
    seen = [
        value
        for curve in curves
        for step, value in zip(curve.steps, curve.values, strict=True)
        if step >= first and math.isfinite(value)
    ]
    axes.set_xlim(first, last + 0.01 * (last - first + 1))
    if seen:
        margin = 0.12 * (max(seen) - min(seen)) or 0.1
        axes.set_ylim(min(seen) - margin, max(seen) + margin)


def _series_table(curves: dict[str, Series], smooth: dict[str, Series], limit: int) -> DataTable:
    raw = {name: dict(zip(c.steps, c.values, strict=True)) for name, c in curves.items()}
    mean = {name: dict(zip(c.steps, c.values, strict=True)) for name, c in smooth.items()}
    steps = sorted({step for curve in raw.values() for step in curve})
    columns = ["step"]
    for name in curves:
        columns += [f"{name}, nats", f"{name}, moving average"]
    rows = [
        [
            str(s),
            *(
                fixed(v[name].get(s), 4) if s in v[name] else ""
                for name in curves
                for v in (raw, mean)
            ),
        ]
        for s in steps
    ]
    return thinned(columns, rows, limit, "metrics.jsonl", words=0)


def _optimisation_table(
    rates: dict[str, Series], norms: dict[str, Series], limit: int
) -> DataTable:
    rate = {name: dict(zip(c.steps, c.values, strict=True)) for name, c in rates.items()}
    norm = {name: dict(zip(c.steps, c.values, strict=True)) for name, c in norms.items()}
    steps = sorted({step for curve in norm.values() for step in curve})
    columns = ["step"]
    for name in rates:
        columns += [f"{name}, learning rate", f"{name}, gradient norm"]
    rows = [
        [
            str(s),
            *(
                text
                for name in rates
                for text in (_cell(rate[name], s, "{:.3g}"), _cell(norm[name], s, "{:.3f}"))
            ),
        ]
        for s in steps
    ]
    return thinned(columns, rows, limit, "metrics.jsonl", words=0)


def _cell(values: dict[int, float], step: int, form: str) -> str:
    return form.format(values[step]) if step in values else ""
