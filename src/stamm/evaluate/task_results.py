"""Results of evaluation tasks as tables: metrics with intervals, blind baselines, groups, sources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stamm.evaluate.records import GroupValue, MetricValue, TaskFile
from stamm.pages.figure import DataTable
from stamm.pages.formatting import fixed, signed
from stamm.pages.text import one_line
from stamm.statistics.clustered_ratio import CONFIDENCE
from stamm.statistics.intervals import holm
from stamm.statistics.student_t import binomial_probability, t_probability, t_quantile

_MOST_GROUPS = 200  # rows by group
_NOTE = (
    "At chance: not distinguished from guessing by an exact binomial test and Student's t over clusters, "
    "after Holm's correction over the tasks of an arm, so accuracies are not ranked. "
    "Contexts cut: questions that did not fit into the model's context; a score with (!) has some. "
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
        mains = {
            (number, name): (metric, task.num_items)
            for number, task in enumerate(tasks)
            for name, metric in task.metrics.items()
            if task.metric not in task.metrics or name == task.metric
        }
        verdicts = dict(zip(mains, verdicts_of(list(mains.values())), strict=True))
        for (number, name), (metric, _) in mains.items():
            task = tasks[number]
            name_of_task = one_line(task.task, 60)
            if task.warning:
                warnings[f"Warning, {name_of_task}: {one_line(task.warning, 300)}."] = None
            blind = _blind(task) if name == task.metric else ("–", "–")
            rows.append(
                (
                    name_of_task + (" (!)" if task.warning else ""), one_line(name, 60),
                    one_line(arm, 60), verdicts[number, name],
                    _number(metric.value) + (" (!)" if task.truncated else ""),
                    _number(half_width(metric)), _number(metric.chance), *blind,
                    _in_corpus(task), f"{task.truncated:,}" if task.truncated else "–",
                    f"{task.num_items:,}",
                )
            )  # fmt: skip
    if not rows:
        return None
    return DataTable(
        columns=(
            "task", "metric", "arm", "verdict", "value", "± 95 %", "chance", "blind",
            "sighted minus blind", "in corpus", "contexts cut", "items",
        ),
        rows=tuple(sorted(rows, key=lambda row: (row[0], row[2]))),
        words=4,
        note=_NOTE + " ".join(warnings),
    )  # fmt: skip


def metric_table(arms: Arms) -> DataTable | None:
    """A row for each further metric of the tasks that have a main one."""
    rows = [
        (
            one_line(task.task, 60), one_line(name, 60), one_line(arm, 60), verdict,
            _number(metric.value), _number(half_width(metric)), _number(metric.chance),
        )
        for arm, tasks in arms
        for task in tasks
        for (name, metric), verdict in zip(
            task.metrics.items(),
            verdicts_of([(metric, task.num_items) for metric in task.metrics.values()]),
            strict=True,
        )
        if task.metric in task.metrics and name != task.metric
    ]  # fmt: skip
    if not rows:
        return None
    return DataTable(
        columns=("task", "metric", "arm", "verdict", "value", "± 95 %", "chance"),
        rows=tuple(sorted(rows, key=lambda row: (row[0], row[2]))),
        words=4,
        note="Verdicts after Holm's correction over all metrics of a task, the main one included.",
    )


def fairness_table(arms: Arms) -> DataTable | None:
    """A row for each task with several languages and arm: mean over languages, best, worst, Gini."""
    rows = [
        (
            one_line(task.task, 60), one_line(_main(task), 60), one_line(arm, 60),
            f"{one_line(fairness.best, 40)} {fixed(fairness.best_value, 3)}",
            f"{one_line(fairness.worst, 40)} {fixed(fairness.worst_value, 3)}",
            fixed(fairness.mean, 3), _number(fairness.gini), f"{fairness.languages:,}",
        )
        for arm, tasks in arms
        for task in tasks
        if (fairness := task.fairness)
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
            not_asked = ", ".join(f"{n:,} {one_line(why, 80)}" for why, n in task.rejected.items())
            parts = (
                one_line(task.source, 200),
                one_line(task.license, 60),
                task.data_sha256[:_LONGEST_HASH],
                one_line(task.contamination, 200),
                not_asked,
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
            one_line(task.task, 60), one_line(field, 60), one_line(name, 60), one_line(arm, 60), verdict,
            _number(group.value), _number(half_width(group)), _number(group.chance),
            f"{group.items:,}",
        )
        for arm, tasks in arms
        for task in tasks
        for field, groups in task.groups.items()
        for (name, group), verdict in zip(
            groups.items(),
            verdicts_of([(group, group.items) for group in groups.values()]),
            strict=True,
        )
    ]  # fmt: skip
    if not rows:
        return None
    more = len(rows) - _MOST_GROUPS
    return DataTable(
        columns=("task", "field", "group", "arm", "verdict", "value", "± 95 %", "chance", "items"),
        rows=tuple(sorted(rows, key=lambda row: row[:4])[:_MOST_GROUPS]),
        words=5,
        note="Verdicts after Holm's correction over the groups of a field. "
        + (f"{more:,} more rows are in the JSON files of the tasks." if more > 0 else ""),
    )


def verdicts_of(measured: Sequence[tuple[MetricValue | GroupValue, int]]) -> list[str]:
    """Whether each accuracy is above chance, below it or not distinguished from it; "–" without chance.

    measured   values, with the items that each is computed from

    p is the larger one of two: of the exact binomial test, by which three right answers of three show
    nothing, though their standard error is 0; and of Student's t over clusters. Holm's correction is
    taken over all of `measured` that have a chance.
    """
    p_values = {
        str(number): p
        for number, (metric, items) in enumerate(measured)
        if (p := _p_value(metric, items)) is not None
    }
    adjusted = holm(p_values)
    verdicts = []
    for number, (metric, _) in enumerate(measured):
        p = adjusted.get(str(number))
        if p is None or metric.chance is None:
            verdicts.append("–")
        elif p > 1 - CONFIDENCE:
            verdicts.append("at chance")
        else:
            verdicts.append("above chance" if metric.value > metric.chance else "below chance")
    return verdicts


def _p_value(metric: MetricValue | GroupValue, items: int) -> float | None:
    chance, half = metric.chance, half_width(metric)
    if chance is None or half is None:
        return None
    is_share = 0 <= metric.value <= 1 and 0 < chance < 1
    exact = binomial_probability(metric.value * items, items, chance) if is_share else 0.0
    error = metric.standard_error
    if not error or not half:
        return exact
    # The interval was taken by Student's t: half / error is its quantile, which gives the clusters.
    return max(exact, t_probability((metric.value - chance) / error, _freedom(half / error)))


def _freedom(quantile: float) -> int:
    """The degrees of freedom whose 0.95 quantile of Student's t this is; 1,000,000 for the normal one."""
    low, high = 1, 1_000_000
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle)
            if t_quantile(CONFIDENCE, middle) <= quantile + 1e-9
            else (middle + 1, high)
        )
    return low


def half_width(metric: MetricValue | GroupValue) -> float | None:
    """Half of the 95 % interval; None where there is none."""
    if metric.interval_95 is not None and len(metric.interval_95) == 2:
        return (metric.interval_95[1] - metric.interval_95[0]) / 2
    return None


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
