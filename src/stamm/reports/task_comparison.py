"""Two models on the same items of evaluation tasks: paired differences, with Holm's correction over tasks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stamm.base.clustered_ratio import CONFIDENCE, ClusteredRatio
from stamm.base.receipts import is_present
from stamm.base.schema import decode, read_lines, read_objects, read_record
from stamm.base.student_t import NORMAL_80, t_probability, t_quantile
from stamm.reports.figure import DataTable
from stamm.reports.formatting import fixed, signed
from stamm.reports.intervals import holm
from stamm.reports.power import detectable
from stamm.reports.text import one_line
from stamm.runs.schemas.evaluation import DocumentLoss, ItemLine, TaskFile

LOWER_IS_BETTER = frozenset({"bits_per_byte"})
Verdict = Literal["better", "worse", "no difference shown"]


@dataclass(frozen=True, kw_only=True)
class TaskDifference:
    """The second model minus the first on one task, over the items that both were asked.

    half_width      of the 95 % interval of the difference
    adjusted        two-sided p of the paired t test, after Holm's correction over the tasks
    smallest        the difference that these items show with power 0.8, with as many tasks; None where
                    they can show none
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
    smallest: float | None
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

    Checked  tests/unit/reports/test_task_comparison.py
    """
    return compare_folders(first, second, named)[0]


def compare_folders(
    first: Path, second: Path, named: Collection[str] | None = None
) -> tuple[tuple[TaskDifference, ...], dict[str, str]]:
    """As `compare_tasks`, and why other tasks are not compared, by task."""
    found: dict[str, tuple[TaskFile, str, ClusteredRatio, ClusteredRatio, ClusteredRatio]] = {}
    reasons: dict[str, str] = {}
    paths = {path.stem: path for path in sorted(first.glob("*.json"))}
    others = {path.stem: path for path in sorted(second.glob("*.json"))}
    for name in sorted(paths.keys() | others.keys() if named is None else named):
        if name not in paths or name not in others:
            reasons[name] = "only one of the two has results"
            continue
        one, two = read_record(TaskFile, paths[name]), read_record(TaskFile, others[name])
        metric = _metric_of(one)
        if one.data_sha256 != two.data_sha256:
            reasons[name] = "the data differ"
        elif _settings_of(one) != _settings_of(two):
            reasons[name] = "the settings differ"
        elif not metric:
            reasons[name] = "no metric of it is a mean over items"
        else:
            ratios = _paired(paths[name], others[name], metric)
            if ratios[2].clusters > 1:
                found[one.task] = (one, metric, *ratios)
            else:
                reasons[name] = "fewer than two clusters of items in both"
    chances = {name: _chance(parts[-1]) for name, parts in found.items()}
    adjusted = holm(chances)
    return tuple(
        _difference(*parts, adjusted[name], len(found)) for name, parts in found.items()
    ), reasons


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
            "nothing" if each.smallest is None else fixed(each.smallest, 3), f"{each.items:,}",
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
            "each other; p by Student's t, after Holm's correction over the tasks of a pair. Smallest "
            "shown: the difference that is shown with probability 0.8. Another "
            "seed of training may give another difference."
        ),
    )  # fmt: skip


def _settings_of(file: TaskFile) -> tuple[str, str, int, bool]:
    return file.data_sha256, file.settings_sha256, file.shots, file.chat


def _metric_of(file: TaskFile) -> str:
    return file.metric or ("bits_per_byte" if "bits_per_byte" in file.metrics else "")


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
    documents, pairs = folder / f"{task}_documents.jsonl", folder / f"{task}_pairs.jsonl"
    if is_present(documents):
        for loss in read_lines(DocumentLoss, documents):
            bits = loss.nats / math.log(2) / max(loss.bytes, 1)
            yield _Line(loss.document_id, "", bits, float(loss.bytes))
    elif is_present(pairs):
        for number, (where, plain) in enumerate(read_objects(pairs)):
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


def _detectable(clusters: int, tasks: int) -> float:
    """The difference shown with power 0.8, in standard errors; above 100 clusters by the normal quantile."""
    if clusters > 100:
        return t_quantile(1 - (1 - CONFIDENCE) / tasks, clusters - 1) + NORMAL_80
    return detectable([clusters], tasks, CONFIDENCE) * math.sqrt(clusters)


def _difference(
    file: TaskFile,
    metric: str,
    first: ClusteredRatio,
    second: ClusteredRatio,
    difference: ClusteredRatio,
    adjusted: float,
    tasks: int,
) -> TaskDifference:
    clusters, error = difference.clusters, _error(difference)
    lower_is_better = metric in LOWER_IS_BETTER or file.lower_is_better
    verdict: Verdict = "no difference shown"
    if adjusted <= 1 - CONFIDENCE and difference.value != 0:
        verdict = "better" if (difference.value > 0) != lower_is_better else "worse"
    level = (1 - CONFIDENCE) / tasks
    # Of so few right and wrong answers not even a difference in each is shown by the sign test.
    nothing = error == 0 or (metric not in LOWER_IS_BETTER and 2.0 ** (1 - clusters) > level)
    return TaskDifference(
        task=file.task,
        metric=metric,
        items=difference.count,
        first=first.value,
        second=second.value,
        difference=difference.value,
        half_width=t_quantile(CONFIDENCE, clusters - 1) * error,
        adjusted=adjusted,
        smallest=None if nothing else _detectable(clusters, tasks) * error,
        verdict=verdict,
    )
