"""Results name the weights that they were made from, and replace only results of the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from stamm.base.errors import DataError
from stamm.base.files import read_json, write_json
from stamm.evaluate.records import TaskFile
from stamm.evaluate.results import read_task_files
from stamm.runs.model_outputs import (
    check_same_weights,
    read_result,
    read_result_if_present,
    set_aside,
    weights_sha256,
)

ONE, OTHER = "1" * 64, "2" * 64


def test_results_of_the_same_weights_stay(tmp_path: Path) -> None:
    folder = tmp_path / "evaluate"
    folder.mkdir()
    assert set_aside(folder, ONE) is None
    write_json(folder / "blimp.json", {"model_sha256": ONE})
    assert set_aside(folder, ONE) is None
    assert [path.name for path in folder.iterdir()] == ["blimp.json"]


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ('{"model_sha256": "' + OTHER + '"}', "evaluate-22222222"),
        ("{}", "evaluate-unknown"),
        ("{", "evaluate-unknown"),
        ("[]", "evaluate-unknown"),
    ],
)
def test_results_of_other_weights_are_moved_beside(tmp_path: Path, content: str, name: str) -> None:
    folder = tmp_path / "evaluate"
    folder.mkdir()
    for _ in range(2):  # the second time into a folder that exists
        (folder / "blimp.json").write_text(content)
        (folder / "blimp_pairs.jsonl").write_text("{}\n")
        assert set_aside(folder, ONE) == tmp_path / name
        assert list(folder.iterdir()) == []
        assert (tmp_path / name / "blimp.json").read_text() == content
        assert (tmp_path / name / "blimp_pairs.jsonl").is_file()


def test_a_result_of_other_weights_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "decoder.json", {"weights_sha256": ONE})
    check_same_weights(ONE, "held_out.json", tmp_path)
    check_same_weights(None, "held_out.json", tmp_path)
    check_same_weights(OTHER, "held_out.json", tmp_path / "no model")
    with pytest.raises(
        DataError, match=r"held_out\.json was made from .* 222222222222, .* 1111111"
    ):
        check_same_weights(OTHER, "held_out.json", tmp_path)
    write_json(tmp_path / "decoder.json", {"schema": 1})
    check_same_weights(OTHER, "held_out.json", tmp_path)


def test_a_result_is_read_only_beside_the_weights_that_it_was_made_from(tmp_path: Path) -> None:
    path, model = tmp_path / "task-5-shots.json", tmp_path / "model"
    assert read_result_if_present(TaskFile, path, model) is None
    with pytest.raises(DataError, match=r"task-5-shots\.json"):
        read_result(TaskFile, path, model)
    write_json(path, {"schema": 1, "task": "task", "model_sha256": OTHER, "metrics": {}})
    model.mkdir()
    write_json(model / "decoder.json", {"weights_sha256": OTHER})
    assert read_result(TaskFile, path, model).task == "task"
    write_json(model / "decoder.json", {"weights_sha256": ONE})
    # The message names the file itself, not a file with the name of the task.
    with pytest.raises(DataError, match=r"task-5-shots\.json was made from weights"):
        read_task_files(tmp_path, model=model)
    assert len(read_task_files(tmp_path)) == 1


def test_the_hash_is_computed_where_it_was_not_recorded(tmp_path: Path) -> None:
    write_json(tmp_path / "decoder.json", {"schema": 1})
    (tmp_path / "model.safetensors").write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert weights_sha256(tmp_path) == empty
    write_json(
        tmp_path / "decoder.json", {**read_json(tmp_path / "decoder.json"), "weights_sha256": ONE}
    )
    assert weights_sha256(tmp_path) == ONE
