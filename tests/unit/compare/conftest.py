"""The finished run that tests of this package read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.reports.run_folder import write_study


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, not to be changed by a test."""
    return write_study(tmp_path_factory.mktemp("runs") / "demo")
