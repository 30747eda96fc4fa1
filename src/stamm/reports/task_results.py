"""Results of evaluation tasks that have no figure of their own, as one generic table."""

from __future__ import annotations

from collections.abc import Iterable

from stamm.reports.figure import DataTable
from stamm.reports.formatting import fixed
from stamm.reports.text import one_line
from stamm.runs.schemas.evaluation import MetricValue, TaskFile


def task_table(arms: Iterable[tuple[str, tuple[TaskFile, ...]]]) -> DataTable | None:
    """One row per task, metric and arm; None when no arm has such a result.

    arms   (name, results)
    """
    rows = [
        (
            one_line(task.task, 60), one_line(name, 60), one_line(arm, 60),
            _number(metric.value), _number(metric.standard_error), _number(metric.chance),
            _verdict(metric), f"{task.num_items:,}",
        )
        for arm, tasks in arms
        for task in tasks
        for name, metric in task.metrics.items()
    ]  # fmt: skip
    if not rows:
        return None
    return DataTable(
        columns=("task", "metric", "arm", "value", "standard error", "chance", "above chance", "items"),
        rows=tuple(sorted(rows, key=lambda row: row[:3])),
        words=3,
        note="Above chance: by more than 1.96 standard errors.",
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "–" if value is None else fixed(value, 3)


def _verdict(metric: MetricValue) -> str:
    difference = metric.smallest_difference_from_chance
    if metric.chance is None or difference is None:
        return "–"
    return "yes" if metric.value - metric.chance > difference else "no"
