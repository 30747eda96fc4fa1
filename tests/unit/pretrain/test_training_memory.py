"""A training job has the caching allocator for itself, and leaves torch's to what comes after it."""

from __future__ import annotations

import gc
import importlib
from pathlib import Path
from typing import Any

import pytest

from stamm.activations.fused import build
from stamm.activations.fused.memory import MemoryStats, memory_stats
from stamm.base.console import NoProgress
from stamm.base.errors import RunError
from stamm.engine import cpu_allocator
from stamm.engine.config import EngineConfig
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.optim.schedules import BatchStage
from stamm.pretrain import job
from stamm.pretrain.config import PretrainConfig
from stamm.runs.job import Workspace


class Watch(NoProgress):
    """Notes what is allocated after each step, and what is said; may end the run."""

    def __init__(self, fails: bool = False) -> None:
        self.seen: list[MemoryStats] = []
        self.said: list[str] = []
        self._fails = fails

    def advance(self, done: float, note: str = "", share: float | None = None) -> None:
        """After each step."""
        self.seen.append(memory_stats()[0])
        if self._fails:
            raise RunError("the disk is full")

    def log(self, text: str) -> None:
        """Anything else."""
        self.said.append(text)


def train(folder: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    bench: Any = importlib.import_module("bench.plan_memory")
    model = DecoderConfig(
        vocab_size=4096, d_model=64, num_layers=1, num_heads=2, num_kv_heads=2, max_context=32,
        ffn=PlainFFN(width=96),
    )  # fmt: skip
    config = PretrainConfig(
        model=model,
        context=32,
        batch=(BatchStage(size=2),),
        sequences=6,
        goldfish=None,
        # Named, as the choice by measurement says which way it took, and differs with the load.
        engine=EngineConfig(
            device="cpu", threads=1, compile="off", checkpoint_every=1000, kernels="stamm"
        ),
    )
    monkeypatch.setattr(job, "open_stream", lambda *_: bench.MadeUp(6 * 32 + 1, 4096))
    job.run(config, Workspace(folder=folder, progress=watch))


@pytest.mark.skipif(bool(build.unavailable_reason()), reason=str(build.unavailable_reason()))
@pytest.mark.parametrize("fails", [False, True])
def test_the_allocator_is_the_jobs_and_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    watch = Watch(fails)
    if fails:
        with pytest.raises(RunError, match="disk"):
            train(tmp_path, watch, monkeypatch)
    else:
        train(tmp_path, watch, monkeypatch)
    # Weights, gradients and moments of an embedding and an output matrix of 1 MiB each.
    assert all(stats.allocated >= 8 * 2**20 for stats in watch.seen)
    assert watch.said == [] and memory_stats()[0].cached == 0
    gc.collect()
    assert memory_stats()[0].allocated == 0


def test_without_it_the_run_says_what_it_costs_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> None:
        raise RunError("no C++ compiler is on the PATH")

    monkeypatch.setattr(cpu_allocator, "allocator_function", refuse)
    watch = Watch()
    train(tmp_path, watch, monkeypatch)
    assert watch.said == [
        "Memory may exceed the plan's by two thirds: no C++ compiler is on the PATH."
    ]
    assert (tmp_path / "model").is_dir()
