"""`stamm show` of a run folder: its state, and damaged manifests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stamm.base.files import read_json, write_json
from stamm.cli import catalog_verbs
from stamm.cli.main import main
from stamm.runs.manifest import new_manifest
from stamm.runs.run import Run


def _killed(root: Path) -> Run:
    write_json(root / "config.json", {"schema": 1, "recipe": "demo", "config": {}})
    write_json(root / "manifest.json", new_manifest(recipe="demo", state="running"))
    return Run(root, "demo", (), {})


def test_a_killed_run_is_interrupted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = _killed(tmp_path / "r")
    assert main(["show", str(run.root)]) == 0
    shown = capsys.readouterr().out
    assert "interrupted" in shown and "running" not in shown


def test_a_run_that_another_process_executes_is_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _killed(tmp_path / "r")
    with run.locked():
        assert main(["show", str(run.root)]) == 0
    assert "running" in capsys.readouterr().out


def test_finished_steps_of_a_run_that_was_killed_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _killed(tmp_path / "r")
    receipt = {"step": "filter", "key": "k", "digest": "d", "seconds": 2.0, "ended": 1.0}
    write_json(run.root / "steps" / "screen.json", {"schema": 1, **receipt, "outputs": {}})
    write_json(run.root / "steps" / "other.json", {"schema": 1, **receipt, "outputs": []})
    assert main(["show", str(run.root)]) == 0
    assert "filter" in capsys.readouterr().out
    assert main(["ls", "runs", "--in", str(tmp_path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["steps"], row["took"]) == ("interrupted", 1, "2.0 s")


def test_a_run_that_cannot_be_read_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        _killed(tmp_path / name)

    def closed(path: Path) -> object:
        if path.parent.name == "a":
            raise PermissionError(13, "Permission denied", str(path))
        return read_json(path)

    monkeypatch.setattr(catalog_verbs, "read_json", closed)
    assert main(["ls", "runs", "--in", str(tmp_path), "--json"]) == 0
    states = [row["state"] for row in json.loads(capsys.readouterr().out)]
    assert states == ["unreadable", "interrupted"]


@pytest.mark.parametrize("stored", ["[]", "null", '{"architectures": ["Llama"]}'])
def test_a_configuration_of_something_else_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stored: str
) -> None:
    run = _killed(tmp_path / "r")
    (run.root / "config.json").write_text(stored)
    assert main(["diff", str(run.root), "smoke"]) == 1
    assert "config.json" in capsys.readouterr().err
    if not stored.startswith("{"):
        assert main(["show", str(run.root), "--json"]) == 1
        assert "is not the configuration of a run" in capsys.readouterr().err


def test_steps_of_another_shape_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _killed(tmp_path / "r")
    write_json(run.root / "manifest.json", {"state": "complete", "steps": [1]})
    assert main(["show", str(run.root)]) == 1
    assert "lists steps without a name" in capsys.readouterr().err


def test_help_states_that_page_writes_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["show", "--help"])
    assert "write the HTML page of the activation to FILE" in " ".join(
        capsys.readouterr().out.split()
    )
