"""Two models on the same items of evaluation tasks: paired differences, with Holm's correction over tasks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stamm.base.clustered_ratio import CONFIDENCE, ClusteredRatio
from stamm.base.schema import decode, read_lines, read_objects, read_record
from stamm.base.student_t import t_probability, t_quantile
from stamm.reports.figure import DataTable
from stamm.reports.formatting import fixed, signed
from stamm.reports.intervals import holm
from stamm.reports.text import one_line
from stamm.runs.schemas.evaluation import DocumentLoss, ItemLine, TaskFile

LOWER_IS_BETTER = frozenset({"bits_per_byte"})
Verdict = Literal["better", "worse", "no difference shown"]


@dataclass(frozen=True, kw_only=True)
class TaskDifference:
    """The second model minus the first on one task, over the items that both were asked.

    half_width      of the 95 % interval of the difference
    adjusted        two-sided p of the paired t test, after Holm's correction over the tasks
    smallest        the smallest difference that these items show with as many tasks
    verdict         on the second model
    """

    task: str
    metric: str
    items: int
    first: float
    second: float
    difference: float
    half_width: float
    adjusted: float
    smallest: float
    verdict: Verdict


@dataclass(frozen=True)
class _Line:
    key: str
    cluster: str
    value: float
    weight: float


def compare_tasks(
    first: Path, second: Path, named: Collection[str] | None = None
) -> tuple[TaskDifference, ...]:
    """Differences of two models on the tasks that both were evaluated on.

    first, second   folders of results, evaluate/ of an arm
    named           the tasks to compare; None: all of them

    A task is left out where the two were evaluated on other data or with other settings, or where
    items form fewer than two clusters.

    Checked  tests/unit/reports/test_task_comparison.py
    """
    found: dict[str, tuple[str, ClusteredRatio, ClusteredRatio, ClusteredRatio]] = {}
    for path in sorted(first.glob("*.json")):
        other = second / path.name
        if not other.is_file() or (named is not None and path.stem not in named):
            continue
        one, two = read_record(TaskFile, path), read_record(TaskFile, other)
        metric = _metric_of(one)
        if _settings_of(one) == _settings_of(two) and metric:
            ratios = _paired(path, other, metric)
            if ratios[2].clusters > 1:
                found[one.task] = (metric, *ratios)
    chances = {name: _chance(difference) for name, (_, _, _, difference) in found.items()}
    adjusted = holm(chances)
    return tuple(
        _difference(name, *parts, adjusted[name], len(found)) for name, parts in found.items()
    )


def difference_table(
    pairs: Sequence[tuple[str, str, Sequence[TaskDifference]]],
) -> DataTable | None:
    """A row for each task and pair of models; None without any.

    pairs   names of the first and the second model, and their differences
    """
    rows = [
        (
            one_line(each.task, 60), one_line(each.metric, 60), one_line(second, 60),
            one_line(first, 60), each.verdict, fixed(each.second, 3), fixed(each.first, 3),
            signed(each.difference, 3), fixed(each.half_width, 3), fixed(each.adjusted, 3),
            fixed(each.smallest, 3), f"{each.items:,}",
        )
        for first, second, differences in pairs
        for each in differences
    ]  # fmt: skip
    if not rows:
        return None
    return DataTable(
        columns=(
            "task", "metric", "model", "against", "verdict", "model, value", "against, value",
            "difference", "± 95 %", "p, Holm", "smallest shown", "items",
        ),
        rows=tuple(rows),
        words=5,
        note=(
            "Paired over the same items, with standard errors over clusters of items that depend on "
            "each other; p by Student's t, after Holm's correction over the tasks of a pair. Another "
            "seed of training may give another difference."
        ),
    )  # fmt: skip


def _settings_of(file: TaskFile) -> tuple[str, str, int, bool]:
    return file.data_sha256, file.settings_sha256, file.shots, file.chat


def _metric_of(file: TaskFile) -> str:
    if file.task == "held_out":
        return "bits_per_byte"
    return "accuracy" if file.task == "blimp" else file.metric


def _paired(
    first: Path, second: Path, metric: str
) -> tuple[ClusteredRatio, ClusteredRatio, ClusteredRatio]:
    """Values of both models and their difference, over the items that both have."""
    one, two, difference = ClusteredRatio(), ClusteredRatio(), ClusteredRatio()
    others = _lines(second, metric)
    waiting: dict[str, _Line] = {}
    for line in _lines(first, metric):
        # Both files have the order of the data, so that few lines wait for their other half.
        other = waiting.pop(line.key, None)
        while other is None and (read := next(others, None)) is not None:
            if read.key == line.key:
                other = read
            else:
                waiting[read.key] = read
        if other is not None and other.weight == line.weight:
            one.add(line.value * line.weight, line.weight, line.cluster)
            two.add(other.value * line.weight, line.weight, line.cluster)
            difference.add((other.value - line.value) * line.weight, line.weight, line.cluster)
    return one, two, difference


def _lines(result: Path, metric: str) -> Iterator[_Line]:
    folder, task = result.parent, result.stem
    if task == "held_out":
        for loss in read_lines(DocumentLoss, folder / "held_out_documents.jsonl"):
            bits = loss.nats / math.log(2) / max(loss.bytes, 1)
            yield _Line(loss.document_id, "", bits, float(loss.bytes))
    elif task == "blimp":
        for number, (where, plain) in enumerate(read_objects(folder / "blimp_pairs.jsonl")):
            paradigm = decode(str, plain.get("paradigm"), where, "paradigm")
            score = decode(float, plain.get("score"), where, "score")
            yield _Line(f"{number} {paradigm}", paradigm, score, 1.0)
    else:
        for item in read_lines(ItemLine, folder / f"{task}_items.jsonl"):
            if not item.rejected and metric in item.values:
                weight = item.weights.get(metric, item.weight)
                yield _Line(str(item.line), item.cluster, item.values[metric], weight)


def _error(difference: ClusteredRatio) -> float:
    """The standard error; where all clusters differ alike, that with the p of the sign test.

    Three of three items gained show little (p = 2^-2), though their spread is 0.
    """
    found, clusters = difference.standard_error or 0.0, difference.clusters
    if found > 1e-9 * abs(difference.value) or clusters < 2:
        return found
    alike: float = t_quantile(1 - 2.0 ** (1 - min(clusters, 50)), clusters - 1)
    return abs(difference.value) / alike


def _chance(difference: ClusteredRatio) -> float:
    error = _error(difference)
    return t_probability(difference.value / error, difference.clusters - 1) if error else 1.0


def _difference(
    task: str,
    metric: str,
    first: ClusteredRatio,
    second: ClusteredRatio,
    difference: ClusteredRatio,
    adjusted: float,
    tasks: int,
) -> TaskDifference:
    freedom = difference.clusters - 1
    error = _error(difference)
    verdict: Verdict = "no difference shown"
    if adjusted <= 1 - CONFIDENCE and difference.value != 0:
        up = difference.value > 0
        verdict = "better" if up != (metric in LOWER_IS_BETTER) else "worse"
    return TaskDifference(
        task=task,
        metric=metric,
        items=difference.count,
        first=first.value,
        second=second.value,
        difference=difference.value,
        half_width=t_quantile(CONFIDENCE, freedom) * error,
        adjusted=adjusted,
        smallest=t_quantile(1 - (1 - CONFIDENCE) / tasks, freedom) * error,
        verdict=verdict,
    )
