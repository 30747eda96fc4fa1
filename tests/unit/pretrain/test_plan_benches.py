"""The benchmark of the plan's time trains as a run does: it breaks here, not when it is needed."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.engine.config import EngineConfig
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.optim.schedules import BatchStage
from stamm.pretrain import job
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.like import pace_of
from stamm.runs.metrics import read_metrics

BENCH = Path(__file__).parents[3] / "bench"


def test_a_case_is_trained_and_told_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(job, "open_stream", job.open_stream)  # put back afterwards
    bench = importlib.import_module("plan_time")
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
    pace = pace_of([tmp_path], "", replace(config, sequences=60), None)
    assert pace is not None and pace.flops_per_s > 0
