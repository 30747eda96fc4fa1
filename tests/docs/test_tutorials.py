"""Every command, block of Python and cell of a notebook in docs/tutorials runs, in the order of the page."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, environment
from tests.forked import Parent

PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
BLOCK = re.compile(r"```(bash|python)\n(.*?)```", re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_tutorial_run(
    page: Path, smoke_run: Path, tmp_path: Path, parent: Parent
) -> None:
    # `stamm run smoke` finds its run complete.
    shutil.copytree(smoke_run, tmp_path / "runs" / "smoke")
    run = {**environment(), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    assert blocks
    for language, code in blocks:
        named = re.match(r"# (\w+\.py)\n", code)
        if named:
            (tmp_path / named[1]).write_text(code, encoding="utf-8")
            continue
        for part in code.splitlines() if language == "bash" else [code]:
            if re.match(r"stamm [^|<>]*$", part) and language == "bash":
                done = parent.run(shlex.split(part), tmp_path, run)
            else:
                bash = ["bash", "-euo", "pipefail"]
                program = bash if language == "bash" else [sys.executable]
                done = subprocess.run(
                    [*program, "-c", part],
                    capture_output=True,
                    text=True,
                    cwd=tmp_path,
                    env=run,
                    check=False,
                )
            assert done.returncode == 0, f"{part}\n{done.stderr[-2000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_the_cells_of_a_notebook_run(notebook: Path, smoke_run: Path, tmp_path: Path) -> None:
    """In order and in one namespace, as a kernel runs them."""
    shutil.copytree(smoke_run, tmp_path / "runs" / "smoke")
    cells = [cell for cell in _cells(notebook) if cell["cell_type"] == "code"]
    assert cells
    (tmp_path / "cells.json").write_text(json.dumps(["".join(cell["source"]) for cell in cells]))
    kernel = "import json; own = {}\nfor cell in json.load(open('cells.json')): exec(cell, own)"
    done = subprocess.run(
        [sys.executable, "-c", kernel],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "derived" / "bent" / "bent.py").is_file()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_is_stored_without_outputs(notebook: Path) -> None:
    for cell in _cells(notebook):
        assert cell["cell_type"] == "markdown" or (
            cell["outputs"] == [] and cell["execution_count"] is None
        )


def _cells(notebook: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return cells
