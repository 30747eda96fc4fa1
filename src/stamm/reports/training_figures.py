"""Figures of training: loss, learning rate and gradient norm, Goldfish coverage."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stamm.reports.config import ReportConfig
from stamm.reports.figure import DataTable, Figure, thinned
from stamm.reports.formatting import fixed, percent, smoothed
from stamm.reports.run_data import ArmResults, RunResults
from stamm.reports.svg_figure import (
    Axes,
    draw_panels,
    legend,
    legend_name,
    log_scale,
    note,
    whole_steps,
)
from stamm.reports.theme import drawn, series
from stamm.reports.training import Series
from stamm.runs.schemas.training import GoldfishCoverage

# the eye cannot tell more points apart in a column of this width, and the page stays small
MOST_POINTS = 600
_DASHES = ("-", (0, (5, 1.6)), (0, (1.4, 1.4)), (0, (6, 1.5, 1.5, 1.5)))


def loss_figure(study: RunResults, config: ReportConfig) -> Figure | None:
    """Training loss of every arm by step, in nats per kept token; None when nothing was trained."""
    curves = {
        arm.name: arm.training.metrics.loss
        for arm in study.arms
        if arm.training.metrics and arm.training.metrics.loss.values
    }
    if not curves:
        return None
    smooth = {name: _smoothed(curve, config.smoothing) for name, curve in curves.items()}
    starts = _cooldown_starts(study)

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
        "All arms see the same tokens in the same order, so the steps' own ups and downs are "
        "shared; look at the gap between the strong lines."
        if study.same_tokens and len(curves) > 1
        else "Steps go up and down with the text they happen to hold."
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
        source=study.files(_with_metrics(study), "metrics.jsonl"),
        command=study.made_by(),
    )


def optimisation_figure(study: RunResults, config: ReportConfig) -> Figure | None:
    """Learning rate and gradient norm by step, or None when nothing was trained."""
    arms = _with_rates(study)
    if not arms:
        return None
    rates = {a.name: a.training.metrics.learning_rate for a in arms if a.training.metrics}
    norms = {a.name: a.training.metrics.gradient_norm for a in arms if a.training.metrics}
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
            "The rate warms up, stays, and cools down. A norm that settles is a run at rest; "
            "spikes that grow towards the end would be a warning."
        ),
        alt=f"Learning rates of the arms {same}; gradient norms are listed in the table below.",
        svg=draw_panels("optimisation", 2.8, paint, 2),
        data=_optimisation_table(rates, norms, config.rows),
        source=study.files(arms, "metrics.jsonl"),
        command=study.made_by(),
    )


def goldfish_figure(study: RunResults) -> Figure | None:
    """Coverage of the Goldfish loss mask; None when no arm was trained with one."""
    covered = [
        (arm, arm.training.summary.goldfish)
        for arm in study.arms
        if arm.training.summary and arm.training.summary.goldfish
    ]
    if not covered:
        return None
    # arms of a study share the mask; drawing equal ones again would only repeat them
    groups: list[tuple[list[str], GoldfishCoverage]] = []
    for arm, coverage in covered:
        for names, known in groups:
            if known == coverage:
                names.append(arm.name)
                break
        else:
            groups.append(([arm.name], coverage))
    labels = [_group_name(names, len(covered)) for names, _ in groups]

    def paint(panels: list[Axes]) -> None:
        left, right = panels
        for index, (_, coverage) in enumerate(groups):
            at = index
            left.barh(at, 100 * coverage.rate, height=0.5, color=series(index))
            left.plot([100 / coverage.k] * 2, [at - 0.4, at + 0.4], color=drawn("ink"), lw=1.4)
            expected = expected_gaps(coverage.k)
            marks = range(len(_GAP_NAMES))
            right.plot(
                marks,
                coverage.gap_quantiles,
                "o-",
                color=series(index),
                label=legend_name(labels[index]),
                ms=5,
            )
            right.plot(marks[:3], expected, "_", color=drawn("ink"), ms=14, mew=1.4)
        left.set_yticks(range(len(labels)), labels)
        left.set_ylim(-0.9, len(labels) - 0.1)
        left.invert_yaxis()
        left.set_xlabel("% of labels masked; the upright stroke is 1/k")
        left.set_title("How much is masked")
        right.set_xticks(range(len(_GAP_NAMES)), _GAP_NAMES)
        log_scale(right)
        right.set_title("Tokens between two masked ones")
        right.set_ylabel("tokens")

    first = groups[0][1]
    return Figure(
        key="goldfish",
        title="What the Goldfish mask covered",
        caption=(
            f"One label in {first.k} should never be learned, so that a repeated passage breaks "
            f"off. Here {percent(first.rate, 2)} are masked, and 1/k is {percent(1 / first.k, 2)}; labels without a full "
            f"window of {first.h} tokens before them are always learned. "
            f"Long gaps remain: {percent(first.long_share)} of the labels lie in learned runs of "
            f"more than 100. Even a mask that chose each label independently would leave "
            f"{percent(expected_long_share(first.k))} there; its gaps are the black strokes."
        ),
        alt="; ".join(
            f"{label}: {percent(c.rate, 2)} of labels masked, the longest learned run has "
            f"{fixed(c.gap_quantiles[-1], 0)} tokens"
            for label, (_, c) in zip(labels, groups, strict=True)
        ),
        svg=draw_panels("goldfish", 1.9 + 0.3 * len(groups), paint, 2),
        data=_goldfish_table(labels, [coverage for _, coverage in groups]),
        source=study.files([arm for arm, _ in covered], "summary.json"),
        command=study.made_by(),
    )


_GAP_NAMES = ("median", "90 %", "99 %", "longest")


def expected_gaps(k: int) -> list[float]:
    """Gap lengths that a mask choosing each label with probability 1/k would have.

    A non-empty run of learned labels is longer than n with probability (1 - 1/k)^n.
    """
    return [max(math.ceil(math.log(1 - q) / math.log(1 - 1 / k)), 1) for q in (0.5, 0.9, 0.99)]


def expected_long_share(k: int, run: int = 100) -> float:
    """Share of labels in learned runs longer than `run` under independent masking at rate p = 1/k.

    A run of length L begins at a label with probability p (1 - p)^L p, and holds L labels; the
    sum over L > run is (1 - p)^(run + 1) (1 + run p).
    """
    rate = 1.0 / k
    return float((1.0 - rate) ** (run + 1) * (1.0 + run * rate))


def _goldfish_table(labels: Sequence[str], rows: Sequence[GoldfishCoverage]) -> DataTable:
    return DataTable(
        columns=(
            "arm", "hash", "k", "h", "labels", "masked", "rate", "1/k", "median gap",
            "90 % gap", "99 % gap", "longest gap", "in runs over 100", "zero windows",
        ),
        rows=tuple(
            (
                label, c.hash, str(c.k), str(c.h), f"{c.labels:,}", f"{c.masked:,}",
                percent(c.rate, 3), percent(1 / c.k, 3),
                *(fixed(gap, 0) for gap in c.gap_quantiles),
                percent(c.long_share), percent(c.zero_share),
            )
            for label, c in zip(labels, rows, strict=True)
        ),
        words=2,
    )  # fmt: skip


def _group_name(names: list[str], total: int) -> str:
    return "every arm" if len(names) == total > 1 else ", ".join(names)


def _with_metrics(study: RunResults) -> list[ArmResults]:
    return [a for a in study.arms if a.training.metrics and a.training.metrics.loss.values]


def _with_rates(study: RunResults) -> list[ArmResults]:
    """Preference losses and those of reward models are drawn in the section of alignment."""
    return [a for a in study.arms if a.training.metrics and a.training.metrics.learning_rate.values]


def _cooldown_starts(study: RunResults) -> list[int]:
    starts = {
        arm.training.summary.decay_start_step
        for arm in study.arms
        if arm.training.summary
        and 0 < arm.training.summary.decay_start_step < arm.training.summary.steps
    }
    return sorted(starts)


def _smoothed(curve: Series, share: float) -> Series:
    window = max(round(share * len(curve.values)), 1)
    return Series(steps=curve.steps, values=tuple(smoothed(curve.values, window)))


def _line(axes: Axes, curve: Series, index: int, label: str, faint: bool = False) -> None:
    stride = -(-len(curve.steps) // MOST_POINTS)
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
