"""Learning curves: evaluation tasks at every checkpoint that was evaluated, and during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stamm.reports.figure import Figure, thinned
from stamm.reports.formatting import fixed, percent
from stamm.reports.run_data import ArmResults, RunResults
from stamm.reports.svg_figure import Axes, draw, legend, legend_name, whole_steps
from stamm.reports.task_results import half_width
from stamm.reports.text import one_line
from stamm.reports.theme import drawn, series
from stamm.reports.training import Series
from stamm.runs.schemas.evaluation import MetricValue, TaskFile
from stamm.runs.schemas.training import HELD_OUT_ROWS

_MOST_FIGURES = 12
_ROWS = 200
_ERROR = "standard_error"
_OF_ROWS = ("loss_nats", "loss", "accuracy", "margin")
_UNITS = {"loss_nats": "loss, nats per token", "bits_per_byte": "bits per byte"}
Point = tuple[int, MetricValue]


@dataclass(frozen=True, kw_only=True)
class _Origin:
    """Where the points of a learning curve come from."""

    key: str
    title: str
    where: str
    folder: str
    source: str
    command: str


_CHECKPOINTS = _Origin(
    key="task-curve",
    title="Learning curve",
    where="at every checkpoint",
    folder="curves/",
    source="curves/step-*/{task}.json",
    command="stamm evaluate {run} checkpoints=all",
)
_SAMPLES = _Origin(
    key="sampled-curve",
    title="During training",
    where="of a sample, evaluated while the model was trained",
    folder="metrics.jsonl",
    source="metrics.jsonl",
    command="",
)


def curve_figures(study: RunResults) -> tuple[Figure, ...]:
    """A figure for each task; () where nothing was evaluated before the end of training."""
    found: dict[tuple[str, str], list[tuple[ArmResults, list[Point]]]] = {}
    for arm in study.arms:
        for key, points in _curves(arm.measured.curves).items():
            found.setdefault(key, []).append((arm, points))
    keys = sorted(found)[:_MOST_FIGURES]
    curves = [_figure(study, n, *key, found[key], _CHECKPOINTS) for n, key in enumerate(keys)]
    sampled: dict[tuple[str, str], list[tuple[ArmResults, list[Point]]]] = {}
    for arm in study.arms:
        for key, points in _during_training(arm).items():
            sampled.setdefault(key, []).append((arm, points))
    keys = sorted(sampled)[:_MOST_FIGURES]
    during = [_figure(study, n, *key, sampled[key], _SAMPLES) for n, key in enumerate(keys)]
    return (*curves, *during)


def _during_training(arm: ArmResults) -> dict[tuple[str, str], list[Point]]:
    """Metrics of evaluation during training, with 1.96 standard errors, by task and metric."""
    known = arm.training.metrics.evaluations if arm.training.metrics else {}
    found = {}
    for key, values in known.items():
        _, task, metric = key.split("/")
        if metric == _ERROR or (task == HELD_OUT_ROWS and metric not in _OF_ROWS):
            continue
        errors = known.get(f"evaluate/{task}/{_ERROR}", Series())
        error_at = dict(zip(errors.steps, errors.values, strict=True))
        found[task, metric] = [
            (step, MetricValue(value=value, interval_95=_around(value, error_at.get(step))))
            for step, value in zip(values.steps, values.values, strict=True)
        ]
    return found


def _around(value: float, error: float | None) -> tuple[float, float] | None:
    return None if error is None else (value - 1.96 * error, value + 1.96 * error)


def _time(arms: Sequence[ArmResults]) -> str:
    """The measured share of the training time that evaluations took, of each arm."""
    timings = [(arm.name, arm.training.timing) for arm in arms]
    shares = [
        f"{one_line(name, 60)} {percent(timing.evaluation_seconds / timing.seconds, 1)}"
        for name, timing in timings
        if timing is not None and timing.seconds
    ]
    return f" Measured share of the training time: {', '.join(shares)}." if shares else ""


def _curves(
    curves: Sequence[tuple[int, tuple[TaskFile, ...]]],
) -> dict[tuple[str, str], list[Point]]:
    found: dict[tuple[str, str], list[Point]] = {}
    for step, tasks in curves:
        for task in tasks:
            name = task.metric or next(iter(task.metrics), "")
            if name in task.metrics:
                found.setdefault((task.task, name), []).append((step, task.metrics[name]))
    return found


def _figure(
    study: RunResults,
    number: int,
    task: str,
    metric: str,
    arms: Sequence[tuple[ArmResults, list[Point]]],
    origin: _Origin,
) -> Figure:
    shown_task, shown_metric = one_line(task, 60), one_line(metric, 60)
    chance = arms[0][1][-1][1].chance
    guessing = "" if chance is None else "; dotted: guessing"

    def paint(panels: list[Axes]) -> None:
        axes = panels[0]
        for arm, points in arms:
            axes.errorbar(
                [step for step, _ in points], [value.value for _, value in points],
                yerr=[half_width(value) or 0.0 for _, value in points],
                fmt="o-", ms=4, lw=1.2, color=series(arm.number), label=legend_name(arm.name),
            )  # fmt: skip
        if chance is not None:
            axes.axhline(chance, color=drawn("muted"), lw=1, ls=(0, (2, 2)))
        axes.set_ylabel(_UNITS.get(metric, one_line(metric, 30)))
        whole_steps(axes)
        legend(axes)

    rows = [
        (
            one_line(arm.name, 60), f"{step:,}", fixed(value.value, 3),
            "–" if (half := half_width(value)) is None else fixed(half, 3),
        )
        for arm, points in arms
        for step, value in points
    ]  # fmt: skip
    ends = "; ".join(
        f"{arm.name}: {fixed(points[-1][1].value, 3)} at step {points[-1][0]:,}"
        for arm, points in arms
    )
    caption = (
        f"{shown_metric} {origin.where}, with 95 % intervals over items{guessing}. "
        "Points of one arm share their items, so their intervals are wider than what is known of "
        "the change from one to the next."
    )
    if task == HELD_OUT_ROWS:
        caption = (
            f"Mean {shown_metric} of the rows of the data that are not trained on: before training "
            "(step 0), during it, and after the last step."
        )
        shown_task = f"held-out rows, {shown_metric.removesuffix('_nats')}"
    return Figure(
        key=f"{origin.key}-{number}",
        title=f"{origin.title}: {shown_task}",
        caption=caption + (_time([arm for arm, _ in arms]) if origin is _SAMPLES else ""),
        alt=ends,
        svg=draw(f"{origin.key}-{number}", 2.6, paint),
        data=thinned(("arm", "step", shown_metric, "± 95 %"), rows, _ROWS, origin.folder),
        source=study.files([arm for arm, _ in arms], origin.source.format(task=shown_task)),
        command=origin.command.format(run=study.name) or study.made_by(),
    )
