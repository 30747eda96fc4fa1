"""Fixtures of the tests that call the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.torchrun_runs import Place
from tests.forked import Parent


@pytest.fixture
def place(smoke_run: Path, tmp_path: Path, parent: Parent) -> Place:
    """A folder of the test's own with the recipe."""
    made = Place(tmp_path, smoke_run / "pack", parent)
    made.recipe()
    return made
