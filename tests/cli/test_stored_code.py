"""Code that a stored run names is executed only when the command names it, too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stamm.base.receipts import seal
from tests.conftest import Stamm

MARK = "executed"
CODE = f"""
from pathlib import Path

Path({MARK!r}).write_text("yes")


class Mine:
    name = "mine"
"""


def _stored(smoke_run: Path, place: Path, file: str, change: dict[str, Any]) -> None:
    """A run from elsewhere, without receipts, whose configuration names mine.py."""
    shutil.copytree(smoke_run, place / "run", ignore=shutil.ignore_patterns("steps"))
    (place / "mine.py").write_text(CODE)
    path = place / "run" / file
    stored = json.loads(path.read_text())
    for key, value in change.items():
        section, _, name = key.rpartition(".")
        (stored["config"][section] if section else stored["config"])[name] = value
    path.write_text(json.dumps(seal(stored)))
    for manifest in (place / "run").rglob("manifest.json"):  # whoever made the run can seal it anew
        plain = json.loads(manifest.read_text())
        if plain.pop("files", None) is not None:
            manifest.write_text(json.dumps(seal(plain)))


@pytest.mark.parametrize(
    "change",
    [
        {"objective": "mine.py:Mine"},
        {"objective": "mine:Mine"},
        {"optimizer": {"kind": "CustomOptimizer", "reference": "mine.py:Mine"}},
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        ("adapt.activation", "activation=relu2", "tokens=8192"),
        ("pretrain.cooldown", "tokens=8192", "step=21"),
    ],
)
def test_further_training_does_not_execute_it(
    change: dict[str, Any],
    words: tuple[str, ...],
    smoke_run: Path,
    tmp_path: Path,
    stamm: Stamm,
) -> None:
    _stored(smoke_run, tmp_path, "arms/xielu/config.json", change)
    done = stamm("run", words[0], "run=run", "arm=xielu", *words[1:], "--out", "out")
    assert done.returncode == 2, done.stderr
    assert "names code, 'mine" in done.stderr and "code=mine.py:Name" in done.stderr
    assert "arms/xielu/config.json" in done.stderr
    assert not (tmp_path / MARK).exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("verb", "key", "value"),
    [
        ("evaluate", "evaluate.tasks", ["blimp", "mine.py:Mine"]),
        ("evaluate", "evaluate.tasks", ["mine.yaml"]),
        ("export", "export.target", "mine.py:Mine"),
    ],
)
def test_a_command_with_the_runs_own_settings_does_not_execute_it(
    verb: str, key: str, value: Any, smoke_run: Path, tmp_path: Path, stamm: Stamm
) -> None:
    _stored(smoke_run, tmp_path, "config.json", {key: value})
    done = stamm(verb, "run/arms/xielu")
    assert done.returncode == 2, done.stderr
    assert "names code, 'mine" in done.stderr and f"{key.rpartition('.')[2]}=" in done.stderr
    assert not (tmp_path / MARK).exists()


def test_it_is_executed_where_the_command_names_it(
    smoke_run: Path, tmp_path: Path, stamm: Stamm
) -> None:
    _stored(smoke_run, tmp_path, "config.json", {"export.target": "mine.py:Mine"})
    done = stamm("export", "run/arms/xielu", "target=mine.py:Mine")
    assert "is not an export target" in done.stderr
    assert (tmp_path / MARK).exists()
