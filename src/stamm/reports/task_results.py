"""Results of evaluation tasks as tables: metrics with intervals, blind baselines, groups, sources."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

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
_FAIRNESS_NOTE = (
    "Each language counts once. Gini coefficient: 0 where all languages have the same value. Texts and "
    "scripts differ between languages: compare arms, not tasks."
)
_LONGEST_HASH = 12
Arms = Iterable[tuple[str, tuple[TaskFile, ...]]]
"""Name and results of each arm."""


@dataclass(frozen=True, kw_only=True)
class TaskTables:
    """Tables of evaluation tasks; None where there is nothing to show.

    results    main metric of each task, with its blind baseline
    metrics    other metrics of the tasks
    fairness   over languages, of held_out too
    groups     main metric by language and other groups
    sources    origin, licence, hash and contamination of the data, and rows that were not asked
    """

    results: DataTable | None
    metrics: DataTable | None
    fairness: DataTable | None
    groups: DataTable | None
    sources: DataTable | None


def task_tables(arms: Arms, held_out: Arms = ()) -> TaskTables:
    """All tables of tasks.

    held_out   results that are shown in the fairness table alone
    """
    arms = list(arms)
    return TaskTables(
        results=task_table(arms),
        metrics=metric_table(arms),
        fairness=fairness_table([*held_out, *arms]),
        groups=group_table(arms),
        sources=source_table(arms),
    )


def task_table(arms: Arms) -> DataTable | None:
    """A row for the main metric of each task and arm, or for each metric of a task without a main one."""
    rows = []
    warnings: dict[str, None] = {}
    for arm, tasks in arms:
        for task in tasks:
            name_of_task = one_line(task.task, 60)
            if task.warning:
                warnings[f"Warning, {name_of_task}: {one_line(task.warning, 300)}."] = None
            for name, metric in task.metrics.items():
                if task.metric in task.metrics and name != task.metric:
                    continue
                blind = _blind(task) if name == task.metric else ("–", "–")
                rows.append(
                    (
                        name_of_task + (" (!)" if task.warning else ""), one_line(name, 60),
                        one_line(arm, 60), verdict(metric, max(task.num_items, 1)), _number(metric.value),
                        _number(half_width(metric)), _number(metric.chance), *blind, _in_corpus(task),
                        f"{task.num_items:,}",
                    )
                )  # fmt: skip
    if not rows:
        return None
    return DataTable(
        columns=(
            "task", "metric", "arm", "verdict", "value", "± 95 %", "chance", "blind",
            "sighted minus blind", "in corpus", "items",
        ),
        rows=tuple(sorted(rows, key=lambda row: (row[0], row[2]))),
        words=4,
        note=_NOTE + " ".join(warnings),
    )  # fmt: skip


def metric_table(arms: Arms) -> DataTable | None:
    """A row for each further metric of the tasks that have a main one."""
    rows = [
        (
            one_line(task.task, 60), one_line(name, 60), one_line(arm, 60),
            verdict(metric, max(task.num_items, 1)), _number(metric.value),
            _number(half_width(metric)), _number(metric.chance),
        )
        for arm, tasks in arms
        for task in tasks
        for name, metric in task.metrics.items()
        if task.metric in task.metrics and name != task.metric
    ]  # fmt: skip
    if not rows:
        return None
    return DataTable(
        columns=("task", "metric", "arm", "verdict", "value", "± 95 %", "chance"),
        rows=tuple(sorted(rows, key=lambda row: (row[0], row[2]))),
        words=4,
    )


def fairness_table(arms: Arms) -> DataTable | None:
    """A row for each task with several languages and arm: mean over languages, best, worst, Gini."""
    rows = [
        (
            one_line(task.task, 60), one_line(_main(task), 60), one_line(arm, 60),
            f"{one_line(found.best, 40)} {fixed(found.best_value, 3)}",
            f"{one_line(found.worst, 40)} {fixed(found.worst_value, 3)}",
            fixed(found.mean, 3), _number(found.gini), f"{found.languages:,}",
        )
        for arm, tasks in arms
        for task in tasks
        if (found := task.fairness)
    ]  # fmt: skip
    if not rows:
        return None
    return DataTable(
        columns=(
            "task", "metric", "arm", "best language", "worst language", "mean over languages", "Gini",
            "languages",
        ),
        rows=tuple(sorted(rows, key=lambda row: (row[0], row[2]))),
        words=5,
        note=_FAIRNESS_NOTE,
    )  # fmt: skip


def source_table(arms: Arms) -> DataTable | None:
    """A row for the data of each task: source, licence, SHA-256, contamination, rows not asked."""
    rows: dict[tuple[str, ...], None] = {}
    for _, tasks in arms:
        for task in tasks:
            left = ", ".join(f"{n:,} {one_line(why, 80)}" for why, n in task.rejected.items())
            parts = (
                one_line(task.source, 200),
                one_line(task.license, 60),
                task.data_sha256[:_LONGEST_HASH],
                one_line(task.contamination, 200),
                left,
            )
            if any(parts):
                rows[one_line(task.task, 60), *(part or "–" for part in parts)] = None
    if not rows:
        return None
    return DataTable(
        columns=("task", "source", "licence", "SHA-256 of the data", "contamination", "not asked"),
        rows=tuple(sorted(rows)),
        words=6,
    )


def _main(task: TaskFile) -> str:
    return "bits_per_byte" if task.task == "held_out" else task.metric


def group_table(arms: Arms) -> DataTable | None:
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
