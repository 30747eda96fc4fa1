"""Results of evaluation tasks as tables: metrics with intervals, blind baselines, groups."""

from __future__ import annotations

import math
from collections.abc import Iterable

from stamm.reports.figure import DataTable
from stamm.reports.formatting import fixed, signed
from stamm.reports.text import one_line
from stamm.runs.schemas.evaluation import MetricValue, TaskFile

_MOST_GROUPS = 200  # rows by group
_NORMAL_95 = 1.96
_NOTE = (
    "At chance: the 95 % interval contains the value of guessing, so accuracies are not ranked. "
    "Blind: the best baseline that does not see the question (the choices alone, the longest or "
    "shortest, token frequencies of the training corpus, the most frequent answer). In corpus: items "
    "whose question is in the run's training text. "
)


def task_table(arms: Iterable[tuple[str, tuple[TaskFile, ...]]]) -> DataTable | None:
    """One row per task, metric and arm; None when no arm has such a result.

    arms   (name, results)
    """
    rows = []
    notes: dict[str, None] = {}
    for arm, tasks in arms:
        for task in tasks:
            name_of_task = one_line(task.task, 60)
            if task.warning:
                notes[f"Warning, {name_of_task}: {one_line(task.warning, 300)}."] = None
            if task.contamination:
                contamination = one_line(task.contamination, 200)
                notes[f"Contamination, {name_of_task}: {contamination}."] = None
            if task.rejected:
                left = ", ".join(f"{n:,} {one_line(why, 80)}" for why, n in task.rejected.items())
                notes[f"Not asked, {name_of_task}: {left}."] = None
            for name, metric in task.metrics.items():
                is_main = name == task.metric
                rows.append(
                    (
                        name_of_task + (" (!)" if task.warning else ""), one_line(name, 60),
                        one_line(arm, 60), verdict(metric, max(task.num_items, 1)), _number(metric.value),
                        _number(half_width(metric)), _number(metric.chance),
                        *(_blind(task) if is_main else ("–", "–")), f"{task.num_items:,}",
                        _in_corpus(task),
                    )
                )  # fmt: skip
    if not rows:
        return None
    return DataTable(
        columns=(
            "task", "metric", "arm", "verdict", "value", "± 95 %", "chance", "blind",
            "sighted minus blind", "items",
            "in corpus",
        ),
        rows=tuple(sorted(rows, key=lambda row: (row[0], row[2]))),
        words=4,
        note=_NOTE + " ".join(notes),
    )  # fmt: skip


def group_table(arms: Iterable[tuple[str, tuple[TaskFile, ...]]]) -> DataTable | None:
    """The main metric of each task by language and other groups; None where there are none.

    Edge   200 rows at most
    """
    rows = [
        (
            one_line(task.task, 60), one_line(field, 60), one_line(name, 60), one_line(arm, 60),
            _number(group.value), _number(group.standard_error), _number(group.chance),
            f"{group.items:,}",
        )
        for arm, tasks in arms
        for task in tasks
        for field, groups in task.groups.items()
        for name, group in groups.items()
    ]  # fmt: skip
    if not rows:
        return None
    left = len(rows) - _MOST_GROUPS
    return DataTable(
        columns=("task", "field", "group", "arm", "value", "standard error", "chance", "items"),
        rows=tuple(sorted(rows, key=lambda row: row[:4])[:_MOST_GROUPS]),
        words=4,
        note=f"{left:,} more rows are in the JSON files of the tasks." if left > 0 else "",
    )


def verdict(metric: MetricValue, items: int) -> str:
    """Whether an accuracy is above chance, below it or not distinguishable from it; "–" without chance.

    items   that it is computed from: three right answers of three show nothing, though their
            standard error is 0, so the interval is at least that of guessing
    """
    half = half_width(metric)
    if metric.chance is None or half is None:
        return "–"
    guessing = _NORMAL_95 * math.sqrt(metric.chance * (1 - metric.chance) / items)
    if abs(metric.value - metric.chance) <= max(half, guessing):
        return "at chance"
    return "above chance" if metric.value > metric.chance else "below chance"


def half_width(metric: MetricValue) -> float | None:
    """Half of the 95 % interval; None where there is none."""
    if metric.interval_95 is not None and len(metric.interval_95) == 2:
        return (metric.interval_95[1] - metric.interval_95[0]) / 2
    return metric.smallest_difference_from_chance


def _in_corpus(task: TaskFile) -> str:
    """Items that are in the training text."""
    known = "unknown" if task.contamination else "–"
    return known if task.contaminated is None else f"{task.contaminated:,}"


def _blind(task: TaskFile) -> tuple[str, str]:
    best, difference = task.blind.get(task.strongest_blind), task.sighted_minus_blind
    if best is None or difference is None:
        return "–", "–"
    name = task.strongest_blind.replace("_", " ")
    shown = signed(difference.value, 3)
    half = half_width(difference)
    return f"{_number(best.value)} {name}", shown if half is None else f"{shown} ± {fixed(half, 3)}"


def _number(value: float | None) -> str:
    return "–" if value is None else fixed(value, 3)
