"""Tests of what runs on a GPU: `pytest tests/gpu --on cuda`, or `make gpu`.

Otherwise one test says that the others are not run, and why. `--on cpu` rehearses all of them on
the CPU's fused kernels, which shows that the tests work.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stamm.activations.fused import cpu, direct, gpu, operation


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--on", choices=["cuda", "cpu"], help="where the tests run")


def why_not(config: pytest.Config) -> str | None:
    """Why the tests of this folder are not run, or None where they are."""
    on = config.getoption("--on", default=None)
    if on == "cpu":
        return None
    return gpu.unavailable_reason() or (
        None if on else "they take minutes: use make gpu, or --on cuda"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where they are not run nothing is collected but the test that says so."""
    away = collection_path.name.startswith("test_gpu_") and why_not(config) is not None
    return True if away else None


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> torch.device:
    """Where everything in this folder is computed."""
    return torch.device(pytestconfig.getoption("--on", default=None) or "cpu")


@pytest.fixture(autouse=True)
def passes(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the fused passes that a test has made so far: none means eager code."""
    backend = cpu if device.type == "cpu" else gpu
    made: list[str] = []
    run = backend.run

    def noted(name: Any, *rest: Any) -> Any:
        made.append(name)
        return run(name, *rest)

    monkeypatch.setattr(backend, "run", noted)
    if device.type == "cpu":  # rehearsed is what a GPU does: no shorter way, small inputs eagerly
        worth = operation._worth_a_pass
        monkeypatch.setattr(direct.DirectCalls, "_kernel_for", lambda *_: None)
        monkeypatch.setattr(
            operation,
            "_worth_a_pass",
            lambda x: x.numel() >= operation.SMALLEST and worth(x),
        )
    with np.errstate(all="ignore"):
        yield made
