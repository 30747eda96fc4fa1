"""Learning curves: the main metric of each evaluation task at every checkpoint that was evaluated."""

from __future__ import annotations

from collections.abc import Sequence

from stamm.reports.figure import Figure, thinned
from stamm.reports.formatting import fixed
from stamm.reports.run_data import ArmResults, RunResults
from stamm.reports.svg_figure import Axes, draw, legend, legend_name, whole_steps
from stamm.reports.task_results import half_width
from stamm.reports.text import one_line
from stamm.reports.theme import drawn, series
from stamm.runs.schemas.evaluation import MetricValue, TaskFile

_MOST_FIGURES = 12
_ROWS = 200
Point = tuple[int, MetricValue]


def curve_figures(study: RunResults) -> tuple[Figure, ...]:
    """A figure for each task; () where no checkpoint was evaluated."""
    found: dict[tuple[str, str], list[tuple[ArmResults, list[Point]]]] = {}
    for arm in study.arms:
        for key, points in _curves(arm.measured.curves).items():
            found.setdefault(key, []).append((arm, points))
    keys = sorted(found)[:_MOST_FIGURES]
    return tuple(_figure(study, n, *key, found[key]) for n, key in enumerate(keys))


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
) -> Figure:
    shown_task, shown_metric = one_line(task, 60), one_line(metric, 60)

    def paint(panels: list[Axes]) -> None:
        axes = panels[0]
        for arm, points in arms:
            axes.errorbar(
                [step for step, _ in points], [value.value for _, value in points],
                yerr=[half_width(value) or 0.0 for _, value in points],
                fmt="o-", ms=4, lw=1.2, color=series(arm.number), label=legend_name(arm.name),
            )  # fmt: skip
        chance = arms[0][1][-1][1].chance
        if chance is not None:
            axes.axhline(chance, color=drawn("muted"), lw=1, ls=(0, (2, 2)))
        axes.set_ylabel(one_line(metric, 30))
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
    return Figure(
        key=f"curve-{number}",
        title=f"Learning curve: {shown_task}",
        caption=(
            f"{shown_metric} at every checkpoint, with 95 % intervals over items; dotted: guessing. "
            "Points of one arm share their items, so their intervals are wider than what is known of "
            "the change from one to the next."
        ),
        alt=ends,
        svg=draw(f"curve-{number}", 2.6, paint),
        data=thinned(("arm", "step", shown_metric, "± 95 %"), rows, _ROWS, "curves/"),
        source=study.files([arm for arm, _ in arms], f"curves/step-*/{shown_task}.json"),
        command=f"stamm evaluate {study.name} checkpoints=all",
    )
