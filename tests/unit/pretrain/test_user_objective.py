"""An objective of the user's own, as docs/extending/objective.md shows it, in a training run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.base.config import override
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.engine.config import EngineConfig
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.optim.schedules import BatchStage
from stamm.pretrain.config import PretrainConfig
from tests.unit.pretrain.conftest import train
from tests.unit.tutorials import tutorial_file

CONFIG = PretrainConfig(
    model=DecoderConfig(
        vocab_size=64, d_model=16, num_layers=1, num_heads=2, num_kv_heads=2, max_context=16,
        ffn=PlainFFN(width=24),
    ),
    context=16,
    batch=(BatchStage(size=4),),
    micro_batch=2,
    sequences=16,
    engine=EngineConfig(device="cpu", threads=1, compile="off", kernels="torch"),
)  # fmt: skip


@pytest.fixture
def penalty(tmp_path: Path, made_up_corpus: None) -> Path:
    return tutorial_file("objective", tmp_path / "penalty.py")


def test_the_tutorials_objective_trains(tmp_path: Path, penalty: Path) -> None:
    config = override(CONFIG, [f"objective={penalty}:ConfidencePenalty"])
    plain, lines = train(tmp_path / "plain", CONFIG), train(tmp_path / "penalty", config)
    assert lines[0]["train/loss_nats"] == plain[0]["train/loss_nats"]
    assert lines[-1]["train/loss_nats"] != plain[-1]["train/loss_nats"]
    assert lines[0]["train/entropy_nats"] == pytest.approx(math.log(64), rel=0.01)
    recorded = read_json(tmp_path / "penalty" / "manifest.json")["inputs"]["objective"]
    assert recorded["path"].endswith("penalty.py:ConfidencePenalty")


def test_changed_code_does_not_resume(tmp_path: Path, penalty: Path) -> None:
    config = replace(CONFIG, objective=str(penalty))
    train(tmp_path / "run", config)
    penalty.write_text(penalty.read_text().replace("0.1 *", "0.2 *"))
    with pytest.raises(DataError, match="the code of the objective is not the same"):
        train(tmp_path / "run", config)


def test_what_is_not_an_objective_is_an_error(tmp_path: Path, penalty: Path) -> None:
    with pytest.raises(ConfigError, match="is neither 'next-token' nor of the form"):
        replace(CONFIG, objective="dpo")
    penalty.write_text("class Nothing:\n    def __init__(self, *arguments: object) -> None: ...\n")
    with pytest.raises(ConfigError, match="makes Nothing, which is not an objective"):
        train(tmp_path / "run", replace(CONFIG, objective=f"{penalty}:Nothing"))
