"""The benchmarks of the plan train as a run does, and the memory that it tells is that of a run."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.activations.fused import build
from stamm.engine.config import EngineConfig
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.optim.schedules import BatchStage
from stamm.pretrain import job
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.throughput_model import measured_throughput
from stamm.runs.metrics import read_metrics
from tests.conftest import ROOT, environment


def test_a_case_is_trained_and_told_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "open_stream", job.open_stream)  # put back afterwards
    bench = importlib.import_module("bench.plan_time")
    model = DecoderConfig(
        vocab_size=64,
        d_model=32,
        num_layers=1,
        num_heads=2,
        num_kv_heads=2,
        ffn=PlainFFN(width=48),
        max_context=32,
    )
    engine = EngineConfig(device="cpu", threads=1, compile="off", checkpoint_every=1000)
    config = PretrainConfig(
        model=model,
        context=32,
        batch=(BatchStage(size=2),),
        sequences=6,
        goldfish=None,
        engine=engine,
    )
    bench.train(config, tmp_path)
    assert len(read_metrics(tmp_path / "log" / "speed.jsonl")) == 3
    pace = measured_throughput([tmp_path], "", replace(config, sequences=60), None)
    assert pace is not None and pace.flops_per_s > 0


@pytest.mark.skipif(bool(build.unavailable_reason()), reason=str(build.unavailable_reason()))
@pytest.mark.parametrize("case", ["recompute", "micro-batches", "two threads"])
def test_the_plans_memory_is_within_5_percent_of_a_runs_peak(tmp_path: Path, case: str) -> None:
    """As the system counts it; in two of these cases the C library would leave holes of a quarter and more."""
    out = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "bench.plan_memory", "--cases", case, "--out", out]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=environment())
    line = json.loads(out.read_text())
    for part in ("steps", "all"):
        assert line["plan_bytes"][part] == pytest.approx(line["measured_bytes"][part], rel=0.05)
