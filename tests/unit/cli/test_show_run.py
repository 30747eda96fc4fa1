"""`stamm show` of a run folder: its state, and damaged manifests."""

from __future__ import annotations

from pathlib import Path

import pytest

from stamm.base.files import write_json
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


def test_help_states_that_page_writes_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["show", "--help"])
    assert "write the HTML page of the activation to FILE" in " ".join(
        capsys.readouterr().out.split()
    )
