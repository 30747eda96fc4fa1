"""Every command and every block of Python in docs/tutorials runs, in the order of the page."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, environment
from tests.forked import Parent

PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
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
