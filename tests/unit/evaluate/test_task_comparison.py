"""Two models on the same items: paired differences, Holm's correction, and tables of results."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from stamm.base.files import write_json
from stamm.evaluate.records import GroupValue, LanguageFairness, MetricValue, TaskFile
from stamm.evaluate.task_comparison import compare_folders, compare_tasks, difference_table
from stamm.evaluate.task_results import (
    TaskTables,
    metric_table,
    task_table,
    task_tables,
    verdicts_of,
)


def results(folder: Path, task: str, values: list[float], **changes: Any) -> None:
    folder.mkdir(exist_ok=True)
    record = {
        "schema": 1, "task": task, "metric": "acc", "data_sha256": "d", "num_items": len(values),
        "metrics": {"acc": {"value": 0.5}}, **changes,
    }  # fmt: skip
    write_json(folder / f"{task}.json", record)
    lines = [
        {"line": n, "values": {record["metric"]: value}}
        if value >= 0
        else {"line": n, "rejected": "x"}
        for n, value in enumerate(values)
    ]
    (folder / f"{task}_items.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))


def test_a_paired_difference_is_shown_where_values_apart_would_not(tmp_path: Path) -> None:
    draw = random.Random(1)
    easy = [float(draw.random() < 0.5) for _ in range(300)]
    better = [1.0 if value or n % 15 == 0 else 0.0 for n, value in enumerate(easy)]
    other = [float(draw.random() < 0.5) for _ in range(300)]
    results(tmp_path / "a", "easy", easy)
    results(tmp_path / "b", "easy", better)
    results(tmp_path / "a", "noise", easy)
    results(tmp_path / "b", "noise", other)
    found = {one.task: one for one in compare_tasks(tmp_path / "a", tmp_path / "b")}
    one = found["easy"]
    assert one.verdict == "better"
    assert one.difference == pytest.approx(one.second - one.first)
    assert one.difference > one.half_width > 0
    assert one.smallest > one.half_width  # two tasks
    assert found["noise"].verdict == "no difference shown"
    (back, _) = compare_tasks(tmp_path / "b", tmp_path / "a")
    assert (back.verdict, back.difference) == ("worse", -one.difference)
    table = difference_table([("a", "b", tuple(found.values()))])
    assert table is not None
    assert table.rows[0][:5] == ("easy", "acc", "b", "a", "better")
    assert difference_table([("a", "b", ())]) is None


@pytest.mark.parametrize(("items", "verdict"), [(3, "no difference shown"), (8, "better")])
def test_a_few_items_that_all_differ_alike_show_little(
    tmp_path: Path, items: int, verdict: str
) -> None:
    """Their spread is 0; p is that of the sign test, 2^-2 and 2^-7."""
    results(tmp_path / "a", "few", [0.0] * items)
    results(tmp_path / "b", "few", [1.0] * items)
    (found,) = compare_tasks(tmp_path / "a", tmp_path / "b")
    assert found.adjusted == pytest.approx(2.0 ** (1 - items), rel=1e-6)
    assert (found.verdict, found.difference) == (verdict, 1.0)
    assert (found.half_width > 1) == (items == 3)
    results(tmp_path / "b", "few", [0.0] * items)
    (same,) = compare_tasks(tmp_path / "a", tmp_path / "b")
    assert (same.adjusted, same.half_width, same.verdict) == (1.0, 0.0, "no difference shown")
    assert same.smallest is None
    assert (found.smallest is None) == (items == 3)


def test_items_have_the_weight_of_the_metric(tmp_path: Path) -> None:
    results(tmp_path / "a", "of", [0.0, 1.0], metric="strict")
    results(tmp_path / "b", "of", [0.0, 0.0], metric="strict")
    for name in ("a", "b"):
        path = tmp_path / name / "of_items.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line, weight in zip(lines, (1.0, 9.0), strict=True):
            line["weights"] = {"strict": weight}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (found,) = compare_tasks(tmp_path / "a", tmp_path / "b")
    assert (found.first, found.second) == (pytest.approx(0.9), 0.0)


def test_only_the_same_items_and_settings_are_compared(tmp_path: Path) -> None:
    results(tmp_path / "a", "gaps", [1.0, -1.0, 0.0, 1.0, 1.0])
    results(tmp_path / "b", "gaps", [1.0, 1.0, -1.0, 0.0, 1.0])
    results(tmp_path / "a", "other", [1.0, 0.0])
    results(tmp_path / "b", "other", [1.0, 0.0], shots=2)
    results(tmp_path / "a", "windows", [1.0, 0.0], settings_sha256="256, 32")
    results(tmp_path / "b", "windows", [1.0, 0.0], settings_sha256="64, 32")
    results(tmp_path / "a", "alone", [1.0, 0.0])
    results(tmp_path / "a", "bits", [1.0, 2.0, 1.5, 1.0], metric="bits_per_byte")
    results(tmp_path / "b", "bits", [0.5, 1.5, 1.0, 0.501], metric="bits_per_byte")
    found = {one.task: one for one in compare_tasks(tmp_path / "a", tmp_path / "b")}
    assert set(found) == {"gaps", "bits"}
    assert compare_folders(tmp_path / "a", tmp_path / "b")[1] == {
        "alone": "only one of the two has results",
        "other": "the settings differ",
        "windows": "the settings differ",
    }
    assert (found["gaps"].items, found["gaps"].difference) == (3, pytest.approx(-1 / 3))
    assert found["bits"].verdict == "better"  # lower
    # Tasks that are not asked for do not count in Holm's correction.
    (alone,) = compare_tasks(tmp_path / "a", tmp_path / "b", {"bits"})
    assert alone.task == "bits"
    assert alone.smallest is not None
    assert found["bits"].smallest is not None
    assert alone.smallest < found["bits"].smallest


def test_a_table_names_chance_blind_baselines_and_warnings() -> None:
    def metric(value: float) -> MetricValue:
        interval = (value - 0.05, value + 0.05)
        return MetricValue(value=value, standard_error=0.025, interval_95=interval, chance=0.25)

    def verdict(metric: MetricValue, items: int) -> str:
        return verdicts_of([(metric, items)])[0]

    assert verdict(metric(0.28), 500) == "at chance"
    assert verdict(metric(0.35), 500) == "above chance"
    assert verdict(metric(0.15), 500) == "below chance"
    assert verdict(MetricValue(value=0.3), 500) == "–"
    certain = MetricValue(value=1.0, standard_error=0.0, interval_95=(1.0, 1.0), chance=0.5)
    assert (verdict(certain, 3), verdict(certain, 30)) == ("at chance", "above chance")
    task = TaskFile(
        task="mine",
        num_items=1000,
        metric="acc_norm",
        metrics={"acc_norm": metric(0.35), "acc": metric(0.28)},
        source="<i>someone",
        license="MIT",
        data_sha256="0123456789abcdef",
        blind={"longest": metric(0.4)},
        strongest_blind="longest",
        sighted_minus_blind=MetricValue(value=-0.05, interval_95=(-0.09, -0.01)),
        warning="solved blind above chance: longest 0.400",
        contamination="7 of 1,000 items are in the training text",
        contaminated=7,
        rejected={"<b>no field": 2},
        groups={"language": {"<script>": GroupValue(items=3, value=0.5)}},
        fairness=LanguageFairness(
            languages=3, mean=0.4, best="<s>", best_value=0.5, worst="b", worst_value=0.3, gini=0.1
        ),
    )
    found = task_tables([("arm", (task,))])
    table = found.results
    assert table is not None
    (row,) = (dict(zip(table.columns, cells, strict=True)) for cells in table.rows)
    assert (row["task"], row["metric"], row["verdict"]) == ("mine (!)", "acc_norm", "above chance")
    assert (row["blind"], row["sighted minus blind"]) == ("0.400 longest", "−0.050 ± 0.040")
    assert row["in corpus"] == "7"
    assert "solved blind above chance" in table.note
    assert found.metrics is not None
    assert [cells[:5] for cells in found.metrics.rows] == [
        ("mine", "acc", "arm", "at chance", "0.280")
    ]
    assert found.sources is not None
    assert found.sources.rows == (
        (
            "mine", "<i>someone", "MIT", "0123456789ab", "7 of 1,000 items are in the training text",
            "2 <b>no field",
        ),
    )  # fmt: skip
    assert found.fairness is not None
    assert found.fairness.rows[0][3:] == ("<s> 0.500", "b 0.300", "0.400", "0.100", "3")
    assert found.groups is not None
    assert found.groups.rows[0][:5] == ("mine", "language", "<script>", "arm", "–")
    empty = task_tables([("arm", (TaskFile(),))])
    assert empty == TaskTables(results=None, metrics=None, fairness=None, groups=None, sources=None)
    # A user's own task has no main metric: each of its metrics is a result.
    own = TaskFile(task="own", num_items=9, metrics={"one": metric(0.3), "two": metric(0.4)})
    table = task_table([("arm", (own,))])
    assert table is not None
    assert [cells[1] for cells in table.rows] == ["one", "two"]
    assert metric_table([("arm", (own,))]) is None


def test_verdicts_are_exact_for_few_items_and_corrected_for_many() -> None:
    def share(right: int, items: int) -> MetricValue:
        half = 0.1 if 0 < right < items else 0.0
        value = right / items
        return MetricValue(
            value=value,
            standard_error=half / 1.96,
            interval_95=(value - half, value + half),
            chance=0.5,
        )

    # Guessing is right, or wrong, four times of four in 12.5 % of all cases.
    assert verdicts_of([(share(4, 4), 4), (share(0, 4), 4)]) == ["at chance", "at chance"]
    alone = [verdicts_of([(share(right, 8), 8)])[0] for right in range(9)]
    assert alone == ["below chance", *["at chance"] * 7, "above chance"]  # 2 / 2^8 and 18 / 2^8
    # 2 / 2^8 = 0.0078 is below 0.05 / 5 and above 0.05 / 7.
    assert verdicts_of([(share(8, 8), 8)] + [(share(4, 8), 8)] * 4)[0] == "above chance"
    assert verdicts_of([(share(8, 8), 8)] + [(share(4, 8), 8)] * 6)[0] == "at chance"
    without = MetricValue(value=0.5, standard_error=0.1, interval_95=(0.3, 0.7))
    assert verdicts_of([(share(8, 8), 8)] + [(without, 8)] * 9)[0] == "above chance"


def test_cut_contexts_are_shown_at_the_score() -> None:
    value = MetricValue(value=0.9, standard_error=0.01, interval_95=(0.88, 0.92), chance=0.5)
    warning = "20 of 20 contexts were cut to fit into the model's"
    task = TaskFile(
        task="long",
        num_items=20,
        metric="acc",
        metrics={"acc": value},
        truncated=20,
        warning=warning,
    )
    table = task_table([("arm", (task,))])
    assert table is not None
    (row,) = (dict(zip(table.columns, cells, strict=True)) for cells in table.rows)
    assert (row["value"], row["contexts cut"]) == ("0.900 (!)", "20")
    assert warning in table.note
