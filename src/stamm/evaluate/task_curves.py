"""Learning curves: evaluation tasks at every checkpoint that was evaluated, and during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stamm.base.receipts import is_present
from stamm.base.schema import read_record_if_present
from stamm.evaluate.records import MetricValue, TaskFile
from stamm.evaluate.results import EvaluatedArms
from stamm.evaluate.task_results import half_width
from stamm.pages.figure import Figure, thinned
from stamm.pages.formatting import fixed, percent
from stamm.pages.svg_figure import Axes, draw, legend, legend_name, whole_steps
from stamm.pages.text import one_line
from stamm.pages.theme import drawn, series
from stamm.pretrain.records import HELD_OUT_ROWS, TimingFile
from stamm.runs.metric_series import Series, read_series
from stamm.runs.run_view import ArmView, RunView

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


def curve_figures(run: RunView, arms: EvaluatedArms) -> tuple[Figure, ...]:
    """A figure for each task; () where nothing was evaluated before the end of training.

    Raises   DataError when the metrics or the timing of an arm do not follow their schema
    """
    checkpoints: dict[tuple[str, str], list[tuple[ArmView, list[Point]]]] = {}
    samples: dict[tuple[str, str], list[tuple[ArmView, list[Point]]]] = {}
    for arm, evaluated in arms:
        for key, points in _curves(evaluated.curves).items():
            checkpoints.setdefault(key, []).append((arm, points))
        for key, points in _during_training(arm).items():
            samples.setdefault(key, []).append((arm, points))
    return tuple(
        _figure(run, number, *key, curves[key], origin)
        for curves, origin in ((checkpoints, _CHECKPOINTS), (samples, _SAMPLES))
        for number, key in enumerate(sorted(curves)[:_MOST_FIGURES])
    )


def _during_training(arm: ArmView) -> dict[tuple[str, str], list[Point]]:
    """Metrics of evaluation during training, with 1.96 standard errors, by task and metric."""
    metrics = arm.folder / "metrics.jsonl"
    known = read_series(metrics).evaluations if is_present(metrics) else {}
    points = {}
    for key, values in known.items():
        _, task, metric = key.split("/")
        if metric == _ERROR or (task == HELD_OUT_ROWS and metric not in _OF_ROWS):
            continue
        errors = known.get(f"evaluate/{task}/{_ERROR}", Series())
        error_at = dict(zip(errors.steps, errors.values, strict=True))
        points[task, metric] = [
            (step, MetricValue(value=value, interval_95=_around(value, error_at.get(step))))
            for step, value in zip(values.steps, values.values, strict=True)
        ]
    return points


def _around(value: float, error: float | None) -> tuple[float, float] | None:
    return None if error is None else (value - 1.96 * error, value + 1.96 * error)


def _time(arms: Sequence[ArmView]) -> str:
    """The measured share of the training time that evaluations took, of each arm."""
    timings = [
        (arm.name, read_record_if_present(TimingFile, arm.folder / "log" / "timing.json"))
        for arm in arms
    ]
    shares = [
        f"{one_line(name, 60)} {percent(timing.evaluation_seconds / timing.seconds, 1)}"
        for name, timing in timings
        if timing is not None and timing.seconds
    ]
    return f" Measured share of the training time: {', '.join(shares)}." if shares else ""


def _curves(
    curves: Sequence[tuple[int, tuple[TaskFile, ...]]],
) -> dict[tuple[str, str], list[Point]]:
    points: dict[tuple[str, str], list[Point]] = {}
    for step, tasks in curves:
        for task in tasks:
            name = task.metric or next(iter(task.metrics), "")
            if name in task.metrics:
                points.setdefault((task.task, name), []).append((step, task.metrics[name]))
    return points


def _figure(
    run: RunView,
    number: int,
    task: str,
    metric: str,
    arms: Sequence[tuple[ArmView, list[Point]]],
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
        "Points of one arm share their items, so the change between two points is known more "
        "precisely than each of them."
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
        source=run.files([arm for arm, _ in arms], origin.source.format(task=shown_task)),
        command=origin.command.format(run=run.name) or run.made_by(),
    )
