"""Runs that start from the checkpoint of another run: the same model only, and what they need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stamm.base.errors import ConfigError
from stamm.engine.config import EngineConfig
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.optim.schedules import BatchStage
from stamm.pretrain import job
from stamm.pretrain.config import InitialWeights, PretrainConfig
from stamm.runs.job import Workspace

CONFIG = PretrainConfig(
    model=DecoderConfig(
        vocab_size=64, d_model=16, num_layers=2, num_heads=2, num_kv_heads=2, max_context=16,
        ffn=PlainFFN(width=24),
    ),
    context=16,
    batch=(BatchStage(size=4),),
    sequences=8,
    goldfish=None,
    engine=EngineConfig(device="cpu", threads=1, compile="off", kernels="torch"),
)  # fmt: skip


def _train(folder: Path, config: PretrainConfig, **inputs: Path) -> Path:
    """The last checkpoint of a run in `folder`."""
    folder.mkdir()
    job.run(config, Workspace(folder=folder, inputs=inputs))
    return folder / "checkpoints" / "step-00000002"


def test_a_checkpoint_to_start_from_is_an_input(tmp_path: Path, made_up_corpus: None) -> None:
    config = replace(CONFIG, begin=InitialWeights(checkpoint="runs/a"))
    with pytest.raises(ConfigError, match=r"begin.checkpoint = runs/a is not among the inputs"):
        _train(tmp_path / "run", config)


def test_settings_without_tensors_may_differ(tmp_path: Path, made_up_corpus: None) -> None:
    begun = _train(tmp_path / "source", CONFIG)
    rope = replace(CONFIG.model.rope, theta=2e6)
    config = replace(
        CONFIG,
        model=replace(CONFIG.model, rope=rope),
        begin=InitialWeights(checkpoint=str(begun)),
    )
    assert _train(tmp_path / "run", config, begin=begun).is_dir()
