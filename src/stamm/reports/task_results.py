"""Results of evaluation tasks that have no figure of their own, as one generic table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stamm.reports.figure import Table
from stamm.reports.formatting import fixed
from stamm.reports.json_reader import Record, record_in
from stamm.reports.text import one_line

_WITH_FIGURES = ("held_out.json", "blimp.json")
_MOST_TASKS = 50


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """One metric of an evaluation task. The names are a user's: untrusted."""

    task: str
    metric: str
    items: int
    value: float
    standard_error: float | None
    chance: float | None
    smallest_difference: float | None


def read_task_scores(folder: Path) -> tuple[TaskScore, ...]:
    """The metrics in `folder` (an arm's evaluate/) of tasks other than held_out and blimp.

    Raises   DataError when a result file is not what it should be.
    """
    files = [path for path in sorted(folder.glob("*.json")) if path.name not in _WITH_FIGURES]
    return tuple(
        score
        for path in files[:_MOST_TASKS]
        if (record := record_in(path)).has("metrics")
        for score in _scores(record)
    )


def _scores(record: Record) -> Iterable[TaskScore]:
    for name, metric in record.items("metrics"):
        yield TaskScore(
            task=record.text("task"),
            metric=name,
            items=record.whole("num_items"),
            value=metric.number("value"),
            standard_error=_optional(metric, "standard_error"),
            chance=_optional(metric, "chance"),
            smallest_difference=_optional(metric, "smallest_difference_from_chance"),
        )


def _optional(record: Record, key: str) -> float | None:
    return record.number(key) if record.has(key) else None


def task_table(arms: Iterable[tuple[str, tuple[TaskScore, ...]]]) -> Table | None:
    """One row per task, metric and arm; None when no arm has such a result.

    arms   (name, scores)
    """
    rows = [
        (
            one_line(score.task, 60), one_line(score.metric, 60), one_line(arm, 60),
            _number(score.value), _number(score.standard_error), _number(score.chance),
            _verdict(score), f"{score.items:,}",
        )
        for arm, scores in arms
        for score in scores
    ]  # fmt: skip
    if not rows:
        return None
    return Table(
        columns=("task", "metric", "arm", "value", "standard error", "chance", "above chance", "items"),
        rows=tuple(sorted(rows, key=lambda row: row[:3])),
        words=3,
        note="Above chance: by more than 1.96 standard errors.",
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "–" if value is None else fixed(value, 3)


def _verdict(score: TaskScore) -> str:
    if score.chance is None or score.smallest_difference is None:
        return "–"
    return "yes" if score.value - score.chance > score.smallest_difference else "no"
