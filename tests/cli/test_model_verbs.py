"""Measuring an arm finds its run's settings and inputs from wherever the arm is named."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from stamm.base.files import write_json
from stamm.cli import evaluate
from stamm.evaluate.config import EvaluateConfig


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    root = tmp_path / "demo"
    write_json(root / "config.json", {"config": {"evaluate": {"context": 77}}})
    for name in ("pack", "tokenizer", "arms/xielu/model"):
        (root / name).mkdir(parents=True)
    write_json(root / "arms/xielu/config.json", {})
    write_json(root / "arms/xielu/model/decoder.json", {})
    return root


@pytest.mark.parametrize(
    ("place", "named"),
    [("..", "demo/arms/xielu"), (".", "arms/xielu"), ("arms", "xielu"), ("arms/xielu", ".")],
)
def test_settings_and_lock_are_those_of_the_run(
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: str,
    named: str,
) -> None:
    used: list[EvaluateConfig] = []

    def record(config: Any, workspace: object, usual: Any) -> None:
        used.append(config)

    monkeypatch.setattr("stamm.evaluate.job.run", record)
    monkeypatch.chdir(run_folder / place)
    options = argparse.Namespace(
        run=named, changes=[], dry_run=False, against=None, out=None, json=False
    )
    evaluate.run(options, "evaluate")
    assert [config.context for config in used] == [77]
    assert capsys.readouterr().out == f"{Path(named) / 'evaluate'}\n"
    before = {path.name for path in run_folder.iterdir()}
    assert any(name.endswith("lock") for name in before)
    assert not list((run_folder / "arms").rglob("*lock"))
