"""Steps are done once, redone when what they read changes, and never half done."""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError, DataError, RunError
from stamm.base.files import read_json, write_json
from stamm.base.receipts import seal
from stamm.runs.job import Step, Workspace, after_producers
from stamm.runs.metrics import MetricsFile, read_metrics
from stamm.runs.run import Job, Run, shown_state


@dataclass(frozen=True, kw_only=True)
class Copy:
    text: str = ""


def _steps(text: str = "a", external: Path | None = None) -> tuple[Step, ...]:
    outside = {} if external is None else {"input": external}
    return (
        Step(name="one", job="write", config=Copy(text=text), folder="one", outputs=("x",), external=outside),
        Step(
            name="two",
            job="double",
            config=Copy(),
            folder="two",
            inputs={"source": "one"},
            after=("one",),
            outputs=(".",),
        ),
    )  # fmt: skip


class Jobs:
    """Two jobs that count how often they were asked."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __call__(self, kind: str) -> Job:
        def write(config: Any, workspace: Workspace) -> None:
            self.done.append(kind)
            (workspace.folder / "x").write_text(config.text)

        def double(config: Any, workspace: Workspace) -> None:
            self.done.append(kind)
            text = (workspace.inputs["source"] / "x").read_text()
            (workspace.folder / "y").write_text(text * 2)

        return {"write": write, "double": double}[kind]


def _execute(root: Path, steps: tuple[Step, ...], jobs: Jobs, config: Any = None) -> Run:
    run = Run(root, "test", (), config or {"a": 1})
    with run.locked():
        run.open()
        run.execute(steps, jobs, NoProgress(), lambda number, count, step: "")
    return run


def test_a_finished_run_has_nothing_to_do(tmp_path: Path) -> None:
    jobs = Jobs()
    run = _execute(tmp_path / "r", _steps(), jobs)
    assert run.state() == "complete"
    assert run.pending(_steps()) == []
    _execute(tmp_path / "r", _steps(), jobs)
    assert jobs.done == ["write", "double"]
    assert (tmp_path / "r" / "two" / "y").read_text() == "aa"


@pytest.mark.parametrize("damage", ["delete", "change", "receipt"])
def test_what_is_lost_or_altered_is_made_again(tmp_path: Path, damage: str) -> None:
    jobs = Jobs()
    _execute(tmp_path / "r", _steps(), jobs)
    if damage == "delete":
        (tmp_path / "r" / "two" / "y").unlink()
    elif damage == "change":
        (tmp_path / "r" / "two" / "y").write_text("ab")
    else:
        (tmp_path / "r" / "steps" / "two.json").write_text("{")
    _execute(tmp_path / "r", _steps(), jobs)
    assert jobs.done == ["write", "double", "double"]
    assert (tmp_path / "r" / "two" / "y").read_text() == "aa"


def test_a_change_redoes_what_depends_on_it(tmp_path: Path) -> None:
    jobs, outside = Jobs(), tmp_path / "input.txt"
    outside.write_text("1")
    _execute(tmp_path / "r", _steps(external=outside), jobs)
    outside.write_text("2")
    _execute(tmp_path / "r", _steps(external=outside), jobs)
    # What the first step left is the same as before, so the second has nothing new to read.
    assert jobs.done == ["write", "double", "write"]
    _execute(tmp_path / "r", _steps("b", external=outside), jobs)
    assert jobs.done[3:] == ["write", "double"]


def test_what_took_long_is_set_aside_and_not_removed(tmp_path: Path) -> None:
    jobs, outside = Jobs(), tmp_path / "input.txt"
    for text in ("1", "2", "3"):
        outside.write_text(text)
        steps = tuple(replace(step, costly=True) for step in _steps(text, external=outside))
        _execute(tmp_path / "r", steps, jobs)
    kept = sorted(p.relative_to(tmp_path / "r") for p in (tmp_path / "r/set-aside").rglob("?"))
    assert [str(path) for path in kept] == [
        "set-aside/one-1/x",
        "set-aside/one-2/x",
        "set-aside/two-1/y",
        "set-aside/two-2/y",
    ]
    assert (tmp_path / "r/set-aside/one-1/x").read_text() == "1"
    assert (tmp_path / "r" / "two" / "y").read_text() == "33"


def test_a_step_never_resumes_from_outputs_of_another_configuration(tmp_path: Path) -> None:
    """A job that resumes from its folder finds it empty when its configuration has changed."""
    found: list[list[str]] = []

    class Resumes(Jobs):
        def __call__(self, kind: str) -> Job:
            def work(config: Any, workspace: Workspace) -> None:
                found.append(sorted(p.name for p in workspace.folder.iterdir()))
                (workspace.folder / "checkpoint").write_text(config.text)
                if len(found) < 3:
                    raise KeyboardInterrupt
                (workspace.folder / "x").write_text(config.text)

            return work

    for text in ("a", "a"):
        with pytest.raises(KeyboardInterrupt):
            _execute(tmp_path / "r", _steps(text)[:1], Resumes())
    _execute(tmp_path / "r", _steps("b")[:1], Resumes())
    assert found == [[], ["checkpoint"], []]


def test_another_configuration_is_refused_with_the_differing_keys(tmp_path: Path) -> None:
    _execute(tmp_path / "r", _steps(), Jobs(), {"model": {"width": 8}, "seed": 1})
    with pytest.raises(ConfigError) as caught:
        _execute(tmp_path / "r", _steps(), Jobs(), {"model": {"width": 9}, "seed": 1})
    assert "model.width: 8 there, 9 requested" in caught.value.line()
    assert "seed" not in caught.value.line()


def test_how_processes_divide_a_step_may_change(tmp_path: Path) -> None:
    for ways in (2, 1):
        config = {"engine": {"parallel": {"tensor": ways}, "threads": 1}}
        assert _execute(tmp_path / "r", _steps(), Jobs(), config).state() == "complete"


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="is not empty and is not a run folder"):
        _execute(tmp_path, _steps(), Jobs())
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is a file"):
        Run(tmp_path / "file", "t", (), {}).open()


def test_what_a_kill_left_before_there_was_a_run_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / ".config.json.77.part").write_text("{")
    assert _execute(tmp_path / "r", _steps(), Jobs()).state() == "complete"
    assert not (tmp_path / "r" / ".config.json.77.part").exists()


def test_what_was_in_the_folder_before_a_step_is_set_aside(tmp_path: Path) -> None:
    """A model exported by hand lies in the folder of a later export step."""
    root = tmp_path / "r"
    (root / ".release.part" / "run").mkdir(parents=True)
    _execute(root, _steps()[:1], Jobs())
    assert not (root / ".release.part").exists()
    (root / "two").mkdir()
    (root / "two" / "mine").write_text("m")
    _execute(root, _steps(), Jobs())
    assert sorted(path.name for path in (root / "two").iterdir()) == ["y"]
    assert (root / "set-aside" / "two-1" / "mine").read_text() == "m"


def test_a_damaged_receipt_repeats_its_step(tmp_path: Path) -> None:
    jobs = Jobs()
    _execute(tmp_path / "r", _steps(), jobs)
    path = tmp_path / "r" / "steps" / "two.json"
    write_json(path, {**read_json(path), "outputs": []})
    _execute(tmp_path / "r", _steps(), jobs)
    assert jobs.done == ["write", "double", "double"]


def test_a_folder_that_cannot_change_needs_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    run = Run(tmp_path, "t", (), {})
    monkeypatch.setattr(Path, "open", refuse)
    with run.locked():
        pass


def test_a_run_of_another_version_is_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _execute(tmp_path / "r", _steps(), Jobs())
    monkeypatch.setattr("stamm.runs.run.VERSION", "9.9.9")
    with pytest.raises(RunError, match=r"was made with version '\d.*', this is '9\.9\.9'"):
        _execute(tmp_path / "r", _steps(), Jobs())
    assert (tmp_path / "r" / "two" / "y").exists()


def test_a_lost_input_is_an_error_and_nothing_is_deleted(tmp_path: Path) -> None:
    outside = tmp_path / "input.txt"
    outside.write_text("1")
    _execute(tmp_path / "r", _steps(external=outside), Jobs())
    outside.unlink()
    with pytest.raises(DataError, match=r"input\.txt does not exist"):
        _execute(tmp_path / "r", _steps(external=outside), Jobs())
    assert (tmp_path / "r" / "one" / "x").exists()


@pytest.mark.parametrize("text", ["[]", "{}", '{"state": "running"}'])
def test_a_manifest_of_another_shape_is_reported(tmp_path: Path, text: str) -> None:
    _execute(tmp_path / "r", _steps(), Jobs())
    (tmp_path / "r" / "manifest.json").write_text(text)
    with pytest.raises(DataError, match="is not the manifest of a run"):
        _execute(tmp_path / "r", _steps(), Jobs())


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema": 1}'])
def test_a_configuration_of_another_shape_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RunError, match="is not the configuration of a run"):
        Run(tmp_path, "test", (), {}).check()


def test_every_start_is_in_the_manifest_and_changed_libraries_are_reported(tmp_path: Path) -> None:
    _execute(tmp_path / "r", _steps(), Jobs())
    path = tmp_path / "r" / "manifest.json"
    manifest = read_json(path)
    manifest["libraries"]["torch"] = "0.1"
    write_json(path, seal(manifest))
    said: list[str] = []

    class Talk(NoProgress):
        def log(self, text: str) -> None:
            said.append(text)

    run = Run(tmp_path / "r", "test", (), {"a": 1})
    with run.locked():
        run.execute(_steps(), Jobs(), Talk(), lambda number, count, step: "")
    assert len(read_json(path)["sessions"]) == 2
    assert "torch 0.1 -> " in said[0]


def test_two_processes_cannot_work_in_one_folder(tmp_path: Path) -> None:
    run = Run(tmp_path / "r", "t", (), {})
    with run.locked(), pytest.raises(RunError, match="another process"), run.locked():
        pass


def test_a_file_system_without_locks_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(RunError, match=r"cannot lock files: Function not implemented.*Lustre"),
        Run(tmp_path / "r", "t", (), {}).locked(),
    ):
        pass


def test_a_step_that_leaves_nothing_is_an_error(tmp_path: Path) -> None:
    steps = (Step(name="one", job="write", config=Copy(), folder="one", outputs=("missing",)),)
    with pytest.raises(RunError, match="ended without its output"):
        _execute(tmp_path / "r", steps, Jobs())
    run = Run(tmp_path / "r", "test", (), {})
    assert run.state() == "running"
    assert shown_state(run.root, run.state()) == "interrupted"
    with run.locked():
        assert shown_state(run.root, run.state()) == "running"
    assert shown_state(tmp_path / "none", "complete") == "complete"


def test_the_manifest_names_command_versions_and_steps(tmp_path: Path) -> None:
    _execute(tmp_path / "r", _steps(), Jobs())
    manifest = read_json(tmp_path / "r" / "manifest.json")
    assert [step["name"] for step in manifest["steps"]] == ["one", "two"]
    assert {"command", "version", "lock_hash", "python", "cpu", "started"} <= manifest.keys()


def test_metrics_drop_what_will_be_done_again_and_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":1}\n{"step":2}\n{"step":3}\n{"st')
    with MetricsFile(path, after_step=2) as metrics:
        metrics.write({"step": 3, "loss": 0.5})
    assert read_metrics(path) == [{"step": 1}, {"step": 2}, {"step": 3, "loss": 0.5}]
    assert read_metrics(tmp_path / "none") == []
    for damaged in ("{", "[1]"):
        path.write_text('{"step":1}\n' + damaged + "\n")
        with pytest.raises(DataError, match=r"line 2"):
            read_metrics(path)


def test_a_step_that_stops_the_run_ends_all_later_ones(tmp_path: Path) -> None:
    """Steps behind a gate that says stop, and gates behind it, are neither done nor pending."""

    def steps(said: str) -> tuple[Step, ...]:
        one = replace(_steps(said)[0], name="gate", folder="gate")
        two = replace(_steps()[0], name="later", folder="later", after=("gate",), unless="gate")
        gate = replace(two, name="gate2", folder="gate2", config=Copy(text='{"stop": false}'))
        last = replace(two, name="last", folder="last", unless="gate2")
        report = replace(two, name="report", folder="report", unless="", after=("gate", "last"))
        return one, two, gate, last, report

    for said, done in (('{"stop": true}', 2), ('{"stop": false}', 5)):
        jobs, root = Jobs(), tmp_path / str(done)
        run = _execute(root, steps(said), jobs)
        assert len(jobs.done) == done
        assert run.state() == "complete" and run.pending(steps(said)) == []
        assert (root / "last").exists() == (done == 5)
        (root / "gate" / "x").write_text('{"stop": 1}')  # edited by hand: the step is repeated
        assert "gate" in [step.name for step in run.pending(steps(said))]


def _reading(other: Path, root: Path) -> tuple[Step, ...]:
    """A step that reads a finished step of the run in `other`, by its relative path."""
    return (
        replace(
            _steps()[1],
            name="three",
            folder="three",
            inputs={"source": os.path.relpath(other / "one", root)},
            after=(),
            external={str(other / "config.json"): other / "config.json"},
        ),
    )


def test_a_run_that_was_moved_to_another_depth_is_not_repeated(tmp_path: Path) -> None:
    jobs, other = Jobs(), tmp_path / "other"
    _execute(other, _steps(), Jobs())
    near, far = tmp_path / "near", tmp_path / "a" / "b" / "c" / "far"
    _execute(near, _reading(other, near), jobs)
    far.parent.mkdir(parents=True)
    near.rename(far)
    run = Run(far, "test", (), {"a": 1})
    assert run.pending(_reading(other, far)) == []
    _execute(far, _reading(other, far), jobs)
    assert jobs.done == ["double"]
    moved = tmp_path / "a" / "moved"
    other.rename(moved)
    assert run.pending(_reading(moved, far)) == []


def test_a_step_depends_on_the_content_of_another_runs_files(tmp_path: Path) -> None:
    jobs, other, root = Jobs(), tmp_path / "other", tmp_path / "run"
    _execute(other, _steps(), Jobs())
    _execute(root, _reading(other, root), jobs)
    _execute(other, _steps("changed"), Jobs())
    _execute(root, _reading(other, root), jobs)
    assert jobs.done == ["double", "double"]
    assert (root / "three" / "y").read_text() == "changedchanged"


def test_a_step_comes_after_what_writes_its_inputs_whether_it_names_it_or_not(
    tmp_path: Path,
) -> None:
    unnamed = tuple(replace(step, after=()) for step in _steps())
    assert [step.after for step in after_producers(unnamed)] == [(), ("one",)]
    jobs = Jobs()
    _execute(tmp_path / "r", unnamed, jobs)
    changed = tuple(replace(step, after=()) for step in _steps("b"))
    _execute(tmp_path / "r", changed, jobs)
    assert jobs.done == ["write", "double", "write", "double"]
    assert (tmp_path / "r" / "two" / "y").read_text() == "bb"


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("one", ("one",)),
        ("one/x", ("one",)),
        ("one/x/below", ("one",)),
        (".", ("one",)),
        ("on", ()),
        ("one/y", ()),
        ("../one", ()),
    ],
)
def test_producers_are_found_above_and_below_a_path(path: str, wanted: tuple[str, ...]) -> None:
    first, second = _steps()
    step = replace(second, inputs={"source": path}, after=())
    assert after_producers((first, step))[1].after == wanted


def test_an_altered_external_file_of_another_run_is_refused(tmp_path: Path) -> None:
    other, root = tmp_path / "other", tmp_path / "run"
    _execute(other, _steps(), Jobs())
    step = replace(_steps()[0], external={"x": other / "one" / "x"})
    (other / "one" / "x").write_text("b")
    with pytest.raises(DataError, match="differs from what step one wrote"):
        _execute(root, (step,), Jobs())


def test_the_folder_of_a_model_is_not_set_aside(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_json(folder / "config.json", {"model_type": "llama"})
    run = Run(folder, "recipe", [], {})
    with pytest.raises(RunError, match="is not a run folder"):
        run.set_aside()
    write_json(folder / "config.json", {"schema": 1, "recipe": "recipe", "config": {}})
    assert run.set_aside() == tmp_path / "model.before-1"
