"""A user's evaluation task: the tutorial's code, through the command line, on the page; its errors."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.base.errors import ConfigError
from stamm.base.files import read_json
from stamm.base.schema import read_record
from stamm.cli.main import main
from stamm.evaluate import blimp, job
from stamm.evaluate.config import BUILT_IN_TASKS, EvaluateConfig
from stamm.evaluate.records import BlimpFile
from stamm.evaluate.registry import TASKS, load_tasks
from stamm.evaluate.results import read_task_files
from stamm.evaluate.task import EvaluationTask, TaskMetric, mean_metric
from stamm.evaluate.task_results import task_table
from stamm.models.serialization import load_decoder, save_decoder
from stamm.pages.figure import DataTable
from stamm.recipes.demo import demo
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


def moved_blimp(folder: Path, *changes: tuple[str, str]) -> str:
    """The reference of the built-in BLiMP task as a user's, under another name."""
    text = inspect.getsource(blimp)
    for old, new in (('name = "blimp"', 'name = "moved"'), *changes):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "mine.py").write_text(text, encoding="utf-8")
    return f"{folder}/mine.py:BlimpTask"


def test_the_built_in_blimp_in_a_file_of_the_users_writes_the_same_records(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "evaluate"
    out.mkdir()
    usual = EvaluateConfig(tasks=("blimp", moved_blimp(tmp_path)), blimp_pairs_per_paradigm=2)
    config = replace(usual, blimp_pairs_per_paradigm=1)
    workspace = Workspace(folder=out, inputs=inputs)
    for settings in (usual, config):  # other settings than the usual are in the name of the files
        job.run(settings, workspace, usual)
    for end in (".json", "_pairs.jsonl", "_pairs1.json", "_pairs1_pairs.jsonl"):
        ours, theirs = ((out / f"{name}{end}").read_text() for name in ("blimp", "moved"))
        assert ours.replace('"task": "blimp', '"task": "moved') == theirs
    assert read_record(BlimpFile, out / "moved_pairs1.json").pairs == 67
    with pytest.raises(ConfigError, match="limit = 5 is for tasks from files, and moved has none"):
        job.run(replace(config, tasks=config.tasks[1:], limit=5), workspace)
    with pytest.raises(ConfigError, match="overlap = 9, and moved has no windows"):
        job.run(replace(config, tasks=config.tasks[1:], overlap=9), workspace, usual)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"accuracy": accuracy,', '"accuracy": accuracy, "more": 1,', "more"),
        (
            "return changed_name(self.name, ",
            'return "../" + changed_name(self.name, ',
            "BlimpTask.result_name returned '../moved', which cannot name result files",
        ),
        (
            "return changed_name(self.name, ",
            'return changed_name("held_out", ',
            "returned 'held_out', which cannot name result files of moved",
        ),
        ('return ("blimp_pairs_per_paradigm",)', "return 1 / 0", r"ZeroDivisionError.*mine\.py"),
    ],
    ids=["record", "name of files", "name of another's files", "settings"],
)
def test_a_task_with_a_record_and_settings_is_checked(
    inputs: dict[str, Path], tmp_path: Path, old: str, new: str, said: str
) -> None:
    config = EvaluateConfig(tasks=(moved_blimp(tmp_path, (old, new)),), blimp_pairs_per_paradigm=1)
    with pytest.raises(ConfigError, match=said):
        job.run(config, Workspace(folder=tmp_path, inputs=inputs))
    assert not list(tmp_path.glob("*.json"))


IDENTIFIED = """
from stamm.evaluate.task import TaskResult, mean_metric
class Mine:
    name = "mine"
    def identity(self, context):
        return "{identity}" + context.model.sha256
    def run(self, model, tokenizer, context):
        with open(__file__ + ".runs", "a") as file:
            file.write("x")
        return TaskResult(
            metrics={{"x": mean_metric([0.0, 1.0])}}, num_items=2, items=[{{"x": 0}}, {{"x": 1}}],
            details={{"identity": self.identity(context)}},
        )
"""


def test_a_task_with_an_identity_is_repeated_only_where_it_changed(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    mine, runs = tmp_path / "mine.py", tmp_path / "mine.py.runs"
    for identity, expected in (("a", "x"), ("a", "x"), ("b", "xx")):
        mine.write_text(IDENTIFIED.format(identity=identity), encoding="utf-8")
        config = EvaluateConfig(tasks=(f"{mine}:Mine",))
        job.run(config, Workspace(folder=tmp_path, inputs=inputs))
        assert runs.read_text() == expected


def test_two_tasks_that_would_write_one_file_are_refused(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "other.py").write_text(TASK.format(name="moved_x", body="return None"))
    moved = moved_blimp(
        tmp_path, ("return changed_name(self.name, ", "return changed_name('moved_x', ")
    )
    config = EvaluateConfig(tasks=(moved, f"{tmp_path}/other.py:Mine"))
    with pytest.raises(ConfigError, match=r"two tasks would write moved_x\.json"):
        job.run(config, Workspace(folder=tmp_path, inputs=inputs))


def test_results_of_other_weights_are_made_again_whatever_the_identity(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    mine, out = tmp_path / "mine.py", tmp_path / "evaluate"
    text = IDENTIFIED.format(identity="a").replace(" + context.model.sha256", "")
    mine.write_text(text, encoding="utf-8")
    out.mkdir()
    config = EvaluateConfig(tasks=(f"{mine}:Mine",))
    job.run(config, Workspace(folder=out, inputs=inputs))
    other = tmp_path / "model"
    decoder = load_decoder(inputs["model"])
    for parameter in decoder.parameters():
        parameter.data *= 0.5
    save_decoder(decoder, other)
    job.run(config, Workspace(folder=out, inputs={**inputs, "model": other}))
    assert (out / "mine.json").is_file()
    assert (tmp_path / "mine.py.runs").read_text() == "xx"


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
