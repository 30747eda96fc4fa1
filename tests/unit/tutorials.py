"""The code of the pages in docs/extending, as a user's file."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from stamm.base.files import write_json
from tests.conftest import ROOT


def tutorial_code(page: str, number: int = 0) -> str:
    """A block of Python of docs/extending/PAGE.md, by default the first."""
    text = (ROOT / "docs" / "extending" / f"{page}.md").read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return blocks[number]


def tutorial_file(page: str, file: Path) -> Path:
    """`file`, with the tutorial's code written into it."""
    file.write_text(tutorial_code(page), encoding="utf-8")
    return file


def working_folder(model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `folder` the working folder, with the arm of `model` in it as the run folder "run"."""
    shutil.copytree(model.parent, folder / "run")
    write_json(folder / "run" / "config.json", {})
    monkeypatch.chdir(folder)
