"""Short training runs on a made-up corpus."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from stamm.base.console import NoProgress
from stamm.pretrain import job
from stamm.pretrain.config import PretrainConfig
from stamm.runs.job import Workspace
from stamm.runs.metrics import read_metrics


@pytest.fixture
def made_up_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training reads 64 sequences of 16 tokens, of a vocabulary of 64, that lie nowhere."""
    bench: Any = importlib.import_module("bench.plan_memory")
    monkeypatch.setattr(job, "open_stream", lambda *_: bench.MadeUp(64 * 16 + 1, 64))


def train(folder: Path, config: PretrainConfig) -> list[dict[str, Any]]:
    """The metrics of a run in `folder`."""
    folder.mkdir(exist_ok=True)
    job.run(config, Workspace(folder=folder, progress=NoProgress()))
    return read_metrics(folder / "metrics.jsonl")
