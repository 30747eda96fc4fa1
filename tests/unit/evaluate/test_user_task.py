"""A user's evaluation task: the tutorial's code, through the command line, on the page; its errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stamm.base.errors import ConfigError
from stamm.base.files import read_json
from stamm.cli.main import main
from stamm.evaluate import job
from stamm.evaluate.config import BUILT_IN_TASKS, EvaluateConfig
from stamm.evaluate.registry import TASKS, load_tasks
from stamm.evaluate.task import EvaluationTask, TaskMetric, mean_metric
from stamm.recipes.demo import demo
from stamm.reports.figure import DataTable
from stamm.reports.results import read_task_files
from stamm.reports.task_results import task_table
from stamm.runs.job import Workspace
from tests.unit.tutorials import tutorial_file, working_folder

TASK = """
from stamm.evaluate.task import TaskMetric, TaskResult
class Mine:
    name = "{name}"
    def run(self, model, tokenizer, context):
        {body}
"""


def test_the_registry_holds_every_built_in_task() -> None:
    assert tuple(TASKS) == BUILT_IN_TASKS
    for name, task in TASKS.items():
        assert isinstance(task, EvaluationTask)
        assert task.name == name


def test_the_tutorials_task_runs_from_the_command_line(
    inputs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    working_folder(inputs["model"], tmp_path, monkeypatch)
    tutorial_file("evaluation_task", tmp_path / "mine.py")
    assert main(["evaluate", "run", "tasks=held_out,mine.py:Addition"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:5] == ["task", "metric", "arm", "verdict", "value"]
    assert lines[1].startswith("addition  accuracy")
    assert lines[-1] == "run/evaluate"
    folder = tmp_path / "run" / "evaluate"
    names = ["addition.json", "addition_items.jsonl", "held_out.json", "held_out_documents.jsonl"]
    assert sorted(path.name for path in folder.iterdir()) == names
    result = read_json(folder / "addition.json")
    assert (result["task"], result["num_items"]) == ("addition", 25)
    metric = result["metrics"]["accuracy"]
    assert metric["chance"] == 0.5
    low, high = metric["interval_95"]
    assert high - low == pytest.approx(
        2 * 2.064 * metric["standard_error"], rel=1e-3
    )  # t, 24 degrees
    smallest = (2.064 + 0.842) * metric["standard_error"]
    assert metric["smallest_difference_from_chance"] == pytest.approx(smallest, rel=1e-3)
    assert len((folder / "addition_items.jsonl").read_text().splitlines()) == 25
    table = task_table([("xielu", read_task_files(folder))])
    assert isinstance(table, DataTable)
    assert table.rows[0][:3] == ("addition", "accuracy", "xielu")


def test_a_recipe_loads_the_file_first_and_reads_it_as_an_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = EvaluateConfig(tasks=("held_out", "mine.py:Addition"))
    with pytest.raises(ConfigError, match=r"mine\.py does not exist"):
        replace(demo(), evaluate=config)
    tutorial_file("evaluation_task", tmp_path / "mine.py")
    steps = replace(demo(), evaluate=config).steps()
    assert [dict(s.external) for s in steps if s.job == "evaluate"] == [
        {"mine.py": Path("mine.py")}
    ] * 3
    data = replace(demo(), evaluate=EvaluateConfig(tasks=("mine.jsonl", "blimp"))).steps()
    assert [dict(s.external) for s in data if s.job == "evaluate"] == [
        {"mine.jsonl": Path("mine.jsonl")}
    ] * 3


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("mine", "return 1 / 0", r"ZeroDivisionError: division by zero.*mine\.py, line 6"),
        ("mine", "return {}", r"returned dict, not a TaskResult"),
        ("mine", "return TaskResult(metrics={}, num_items=0)", r"needs metrics"),
        (
            "mine",
            "return TaskResult(metrics={'x': TaskMetric(value=1.0)}, num_items=1, items=[{'a': {1}}])",
            r"set is not JSON serializable",
        ),
        (
            "mine",
            "return TaskResult(metrics={'x': TaskMetric(value=1.0)}, num_items=1,"
            " details={'task': 2})",
            r"reserved key 'task'",
        ),
        ("../up", "return None", r"name = '\.\./up', which cannot name its result files"),
        ("blimp", "return None", r"name = 'blimp'.*not the name of a built-in task"),
    ],
)
def test_errors_name_the_file_and_keep_earlier_results(
    inputs: dict[str, Path], tmp_path: Path, name: str, body: str, said: str
) -> None:
    mine, out = tmp_path / "mine.py", tmp_path / "evaluate"
    mine.write_text(TASK.format(name=name, body=body), encoding="utf-8")
    out.mkdir()
    config = EvaluateConfig(tasks=(f"{mine}:Mine",))
    with pytest.raises(ConfigError, match=said):
        job.run(config, Workspace(folder=out, inputs=inputs))
    assert list(out.iterdir()) == []


def test_task_names_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'belimp' is not an evaluation task.*'blimp'.*mine\.py"):
        EvaluateConfig(tasks=("belimp",))
    with pytest.raises(ConfigError, match="is empty"):
        EvaluateConfig(tasks=())
    for file in ("a.py", "b.py"):
        (tmp_path / file).write_text(TASK.format(name="mine", body="return None"))
    with pytest.raises(ConfigError, match=r"two tasks are called 'mine'"):
        load_tasks((f"{tmp_path}/a.py:Mine", f"{tmp_path}/b.py:Mine"))


def test_metrics_have_the_intervals_of_their_definition() -> None:
    metric = mean_metric([0.0, 1.0, 1.0, 1.0], chance=0.5)
    assert (metric.value, metric.standard_error) == (0.75, 0.25)
    assert metric.interval_95 == pytest.approx((0.75 - 3.182 * 0.25, 0.75 + 3.182 * 0.25), abs=1e-3)
    given = TaskMetric(value=0.75, standard_error=0.25)  # of an unknown number of items
    assert given.interval_95 == (0.75 - 1.96 * 0.25, 0.75 + 1.96 * 0.25)
    assert TaskMetric(value=1.0).interval_95 is None
    assert TaskMetric(value=1.0, interval=(0.5, 2.0)).interval_95 == (0.5, 2.0)
    assert mean_metric([1.0]).standard_error is None
