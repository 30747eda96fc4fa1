"""A run folder as its page sees it: arms, steps, hashes, and the paths that commands name."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from stamm.base.errors import DataError, RunError
from stamm.base.receipts import seal
from stamm.runs.run_view import open_view
from tests.unit.reports.run_folder import write, write_study


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_study(tmp_path / "demo")


def test_arms_stand_in_the_order_of_the_recipe(root: Path) -> None:
    found = open_view(root)
    assert [arm.name for arm in found.arms] == ["swiglu", "relu2", "xielu"]
    assert found.recipe == "demo"
    assert found.overrides == ("pretrain.seed=28",)
    assert not found.is_single


def test_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a folder"):
        open_view(tmp_path / "nothing")
    with pytest.raises(RunError, match=r"neither config.json nor arms/"):
        open_view(tmp_path)


def test_steps_stand_in_the_order_in_which_they_ended(root: Path) -> None:
    assert open_view(root).steps == (("corpus", 6.1), ("pretrain.xielu", 31.0))


@pytest.mark.parametrize(
    "name",
    [
        "judge/judge.json",
        "charter/summary.json",
        "answers/alignment.json",
        "answers/a/alignment.json",
    ],
)
def test_a_lost_record_does_not_make_it_another_kind_of_run(tmp_path: Path, name: str) -> None:
    outputs = {name: {"sha256": "0" * 64}}
    receipt = {"schema": 1, "step": "made", "seconds": 1.0, "ended": 1.0, "outputs": outputs}
    write(tmp_path / "steps" / "made.json", seal({**receipt, "folder": "."}))
    write(tmp_path / "config.json", {"schema": 1, "kind": "recipe", "config": {}})
    with pytest.raises(DataError, match=rf"{name}, which step made wrote, is missing"):
        open_view(tmp_path)


def test_a_folder_that_is_no_arm_is_named(root: Path) -> None:
    (root / "arms" / "x\x1b[31m").mkdir()
    with pytest.raises(DataError, match="which is not a name of an arm"):
        open_view(root)


def test_hashes_identify_the_run(root: Path) -> None:
    names = [name for name, _ in open_view(root).hashes]
    assert names == ["config.json", "corpus/summary.json", "pack/manifest.json"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["stamm", "run", "demo"], "runs/demo"),
        (["stamm", "run", "--out", "my runs/demo", "demo"], "'my runs/demo'"),
        (["stamm", "run", "study", "--out=../deep/er/demo"], "../deep/er/demo"),
    ],
)
def test_commands_name_the_path_of_the_recorded_one(
    root: Path, command: list[str], name: str
) -> None:
    for folder in (root, root / "arms" / "xielu"):
        manifest = json.loads((folder / "manifest.json").read_text())
        write(folder / "manifest.json", {**manifest, "command": command})
    found = open_view(root)
    assert found.name == name
    assert found.made_by() == shlex.join(command)
    arm = open_view(root / "arms" / "xielu").name
    assert shlex.split(arm) == [f"{shlex.split(name)[0]}/arms/xielu"]


def test_a_run_that_was_moved_is_named_as_given(root: Path) -> None:
    moved = root.rename(root.parent / "moved")
    assert open_view(moved).name == str(moved)
