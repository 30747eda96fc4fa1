"""One untrained run for all tests of the room."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.untrained_run import untrained_run


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Its folders: "corpus", "tokenizer", "pack" and "model"."""
    return untrained_run(tmp_path_factory.mktemp("run"))
