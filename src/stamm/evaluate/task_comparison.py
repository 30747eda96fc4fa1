"""Two models on the same items of evaluation tasks: paired differences, with Holm's correction over tasks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stamm.base.receipts import is_present
from stamm.base.schema import decode, read_lines, read_objects, read_record
from stamm.evaluate.records import DocumentLoss, ItemLine, TaskFile
from stamm.evaluate.results import EvaluatedArms
from stamm.pages.figure import DataTable
from stamm.pages.formatting import fixed, signed
from stamm.pages.text import one_line
from stamm.statistics.clustered_ratio import CONFIDENCE, ClusteredRatio
from stamm.statistics.intervals import holm
from stamm.statistics.paired import REFERENCE
from stamm.statistics.power import detectable
from stamm.statistics.student_t import NORMAL_80, t_probability, t_quantile

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

    Checked  tests/unit/evaluate/test_task_comparison.py
    """
    return compare_folders(first, second, named)[0]


def compare_folders(
    first: Path, second: Path, named: Collection[str] | None = None
) -> tuple[tuple[TaskDifference, ...], dict[str, str]]:
    """As `compare_tasks`, and why other tasks are not compared, by task."""
    compared: dict[str, tuple[TaskFile, str, ClusteredRatio, ClusteredRatio, ClusteredRatio]] = {}
    reasons: dict[str, str] = {}
    paths = {path.stem: path for path in sorted(first.glob("*.json"))}
    others = {path.stem: path for path in sorted(second.glob("*.json"))}
    for name in sorted(paths.keys() | others.keys() if named is None else named):
        if name not in paths or name not in others:
            reasons[name] = "only one of the two has results"
            continue
        first_file, second_file = (
            read_record(TaskFile, paths[name]),
            read_record(TaskFile, others[name]),
        )
        metric = _metric_of(first_file)
        if first_file.data_sha256 != second_file.data_sha256:
            reasons[name] = "the data differ"
        elif _settings_of(first_file) != _settings_of(second_file):
            reasons[name] = "the settings differ"
        elif not metric:
            reasons[name] = "no metric of it is a mean over items"
        else:
            ratios = _paired(paths[name], others[name], metric)
            if ratios[2].clusters > 1:
                compared[first_file.task] = (first_file, metric, *ratios)
            else:
                reasons[name] = "fewer than two clusters of items in both"
    chances = {name: chance_of(parts[-1]) for name, parts in compared.items()}
    adjusted = holm(chances)
    return tuple(
        _difference(*parts, adjusted[name], len(compared)) for name, parts in compared.items()
    ), reasons


Pairs = Sequence[tuple[str, str, Sequence[TaskDifference]]]
"""Names of a first and a second model, and their differences."""


def arm_differences(arms: EvaluatedArms) -> Pairs:
    """Every arm against the reference arm, or the first, on all tasks of both; () without tasks from files."""
    asked = [(arm, evaluated.tasks) for arm, evaluated in arms if evaluated.tasks]
    if not any(task.identity for _, tasks in asked for task in tasks):
        return ()
    base = next((arm for arm, _ in asked if arm.name == REFERENCE), asked[0][0])
    return [
        (base.name, arm.name, compare_tasks(base.evaluate, arm.evaluate))
        for arm, _ in asked
        if arm is not base
    ]


def difference_table(pairs: Pairs) -> DataTable | None:
    """A row for each task and pair of models; None without any."""
    rows = [
        (
            one_line(difference.task, 60), one_line(difference.metric, 60), one_line(second, 60),
            one_line(first, 60), difference.verdict, fixed(difference.second, 3), fixed(difference.first, 3),
            signed(difference.difference, 3), fixed(difference.half_width, 3), fixed(difference.adjusted, 3),
            "nothing" if difference.smallest is None else fixed(difference.smallest, 3), f"{difference.items:,}",
        )
        for first, second, differences in pairs
        for difference in differences
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
    first_ratio, second_ratio, difference = ClusteredRatio(), ClusteredRatio(), ClusteredRatio()
    others = _lines(second, metric)
    waiting: dict[str, _Line] = {}
    for line in _lines(first, metric):
        # Both files are in the order of the data, so that few lines wait for their counterpart.
        other = waiting.pop(line.key, None)
        while other is None and (read := next(others, None)) is not None:
            if read.key == line.key:
                other = read
            else:
                waiting[read.key] = read
        if other is not None and other.weight == line.weight:
            first_ratio.add(line.value * line.weight, line.weight, line.cluster)
            second_ratio.add(other.value * line.weight, line.weight, line.cluster)
            difference.add((other.value - line.value) * line.weight, line.weight, line.cluster)
    return first_ratio, second_ratio, difference


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


def error_of(difference: ClusteredRatio) -> float:
    """The standard error; where all clusters differ alike, that with the p of the sign test.

    Three of three items gained show little (p = 2^-2), though their spread is 0.
    """
    error, clusters = difference.standard_error or 0.0, difference.clusters
    if error > 1e-9 * abs(difference.value) or clusters < 2:
        return error
    alike: float = t_quantile(1 - 2.0 ** (1 - min(clusters, 50)), clusters - 1)
    return abs(difference.value) / alike


def chance_of(difference: ClusteredRatio) -> float:
    """Two-sided p of the t test over clusters; 1 without any difference."""
    error = error_of(difference)
    return t_probability(difference.value / error, difference.clusters - 1) if error else 1.0


def detectable_errors(clusters: int, tasks: int) -> float:
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
    clusters, error = difference.clusters, error_of(difference)
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
        smallest=None if nothing else detectable_errors(clusters, tasks) * error,
        verdict=verdict,
    )
