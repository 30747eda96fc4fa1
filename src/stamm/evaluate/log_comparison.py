"""Two models on the items that another evaluation tool asked both: paired, clustered, corrected for the number of tests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stamm.base.errors import ConfigError, DataError
from stamm.evaluate.sample_logs import LoggedItem, find_logs, read_items
from stamm.evaluate.task_comparison import chance_of, detectable_errors, error_of
from stamm.statistics.clustered_ratio import CONFIDENCE, ClusteredRatio
from stamm.statistics.intervals import holm
from stamm.statistics.student_t import t_quantile


@dataclass(frozen=True, kw_only=True)
class LoggedDifference:
    """The second model minus the first, in one metric of one task.

    items, clusters   answered by both
    half_width        of the 95 % interval of the difference
    adjusted          two-sided p of the paired t test, after Holm's correction over all tasks and metrics
    smallest          the difference that so many items show with power 0.8; None where they show none
    """

    task: str
    metric: str
    items: int
    clusters: int
    first: float
    second: float
    difference: float
    half_width: float
    adjusted: float
    smallest: float | None

    @property
    def is_shown(self) -> bool:
        """Whether the difference is shown at 95 % over all tests together."""
        return self.adjusted <= 1 - CONFIDENCE and self.difference != 0


@dataclass(frozen=True, kw_only=True)
class LogComparison:
    """All differences, and what was not compared.

    notes   a sentence for each task or metric that only one log has, and for items of one alone
    """

    differences: tuple[LoggedDifference, ...]
    notes: tuple[str, ...]


def compare_samples(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    metric: str = "",
    cluster: str = "",
) -> LogComparison:
    """Compare two models by logs of single items of lm-evaluation-harness, lighteval or Inspect.

    first, second   a log, or a folder with one log a task, of each model
    metric          the one to compare; "": all
    cluster         field of an item that names its cluster, such as doc.passage_id; "": items are independent,
                    but epochs of a sample of Inspect are a cluster

    All differences are one family (Holm): name the metric where a task has several that say the same.

    Raises          DataError for logs that are damaged, of other questions, or share no task
    Checked         tests/unit/evaluate/test_log_comparison.py
    """
    folders = Path(first), Path(second)
    logs = tuple(map(find_logs, folders))
    notes: list[str] = []
    pairs: dict[str, tuple[Path, Path]] = {}
    if all(folder.is_file() for folder in folders):  # whatever the tasks are called
        pairs[next(iter(logs[0]))] = (folders[0], folders[1])
    else:
        for task in sorted(logs[0].keys() | logs[1].keys()):
            if task in logs[0] and task in logs[1]:
                pairs[task] = (logs[0][task], logs[1][task])
            else:
                notes.append(f"{task}: only {folders[task in logs[1]]} has a log")
    if not pairs:
        raise DataError(
            f"{folders[0]} and {folders[1]} have no task in common: {_listed(logs[0])}; {_listed(logs[1])}",
            fix="Name logs of the same tasks",
        )
    ratios: dict[tuple[str, str], tuple[ClusteredRatio, ClusteredRatio, ClusteredRatio]] = {}
    known: set[str] = set()
    for task, (left, right) in pairs.items():
        for name, parts in _paired(task, left, right, cluster, notes).items():
            known.add(name)
            if metric in ("", name):
                if parts[2].clusters > 1:
                    ratios[task, name] = parts
                else:
                    notes.append(
                        f"{task}: fewer than two clusters of items have {name} in both logs"
                    )
    if metric and metric not in known:
        raise ConfigError(
            f"no log has the metric {metric!r}",
            where="metric",
            fix=f"Known: {', '.join(sorted(known)) or 'none that is a number for each item'}",
        )
    chances = {f"{task}\n{name}": chance_of(parts[2]) for (task, name), parts in ratios.items()}
    adjusted = holm(chances)
    rows = [
        _difference(task, name, parts, adjusted[f"{task}\n{name}"], len(ratios))
        for (task, name), parts in ratios.items()
    ]
    return LogComparison(differences=tuple(rows), notes=tuple(notes))


def _paired(
    task: str, left: Path, right: Path, cluster: str, notes: list[str]
) -> dict[str, tuple[ClusteredRatio, ClusteredRatio, ClusteredRatio]]:
    """Both models and their difference by metric, over the items of both logs."""
    ours, theirs = _by_key(left, cluster), _by_key(right, cluster)
    others = sum(
        theirs[key].question != item.question
        for key, item in ours.items()
        if key in theirs and item.question and theirs[key].question
    )
    if others:
        raise DataError(
            f"{task}: {others:,} items of {left} and {right} are different questions",
            fix="Evaluate both models on the same data",
        )
    common = [key for key in ours if key in theirs]
    alone = len(ours) + len(theirs) - 2 * len(common)
    if alone:
        notes.append(f"{task}: {alone:,} items are in one log alone, and left out")
    names = {name for key in common for name in ours[key].values}
    unread = {name for key in common for item in (ours[key], theirs[key]) for name in item.unread}
    notes += [
        f"{task}: {name} is not a number for each item, and left out"
        for name in sorted(unread - names)
    ]
    ratios: dict[str, tuple[ClusteredRatio, ClusteredRatio, ClusteredRatio]] = {}
    for name in sorted(names):
        parts = ClusteredRatio(), ClusteredRatio(), ClusteredRatio()
        for key in common:
            item = ours[key]
            a, b = item.values.get(name), theirs[key].values.get(name)
            if a is not None and b is not None:
                for ratio, value in zip(parts, (a, b, b - a), strict=True):
                    ratio.add(value, 1.0, item.cluster)
        ratios[name] = parts
        if missing := len(common) - parts[2].count:
            notes.append(f"{task}: {missing:,} common items have no finite {name} in both logs")
    return ratios


def _by_key(path: Path, cluster: str) -> dict[str, LoggedItem]:
    """The items of a log; those of an item that several filters of lm-evaluation-harness scored are one."""
    items: dict[str, LoggedItem] = {}
    for item in read_items(path, cluster):
        before = items.get(item.key)
        if before is None:
            items[item.key] = item
            continue
        if before.values.keys() & item.values.keys():
            raise DataError(f"{path} has item {item.key} twice", fix="Name a log of one evaluation")
        items[item.key] = replace(
            item,
            values={**before.values, **item.values},
            unread=before.unread | item.unread,
        )
    return items


def _difference(
    task: str, metric: str, parts: Sequence[ClusteredRatio], adjusted: float, tests: int
) -> LoggedDifference:
    first, second, difference = parts
    error, clusters = error_of(difference), difference.clusters
    return LoggedDifference(
        task=task,
        metric=metric,
        items=difference.count,
        clusters=clusters,
        first=first.value,
        second=second.value,
        difference=difference.value,
        half_width=t_quantile(CONFIDENCE, clusters - 1) * error,
        adjusted=adjusted,
        smallest=detectable_errors(clusters, tests) * error if error else None,
    )


def _listed(logs: dict[str, Path]) -> str:
    names = list(logs)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
