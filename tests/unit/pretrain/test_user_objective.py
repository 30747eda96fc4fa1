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
    with pytest.raises(
        ConfigError, match=r"Nothing is not an objective: it has no .*learning_rate, m"
    ):
        train(tmp_path / "run", replace(CONFIG, objective=f"{penalty}:Nothing"))


HEAD = (
    "from stamm.engine.objective import StepLoss\nfrom stamm.pretrain.next_token import NextToken\n"
)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def __init__(self): ...", r"Mine is called with config, decoder, .*: too many positional ar"),
        ("def __init__(self, a, b, c, d, e): ...", r"Mine is called with .*: missing a required arg.*'e'"),
        ("def __init__(self, *given): ...", r"Mine is not an objective: it has no .*num_steps"),
        ("def step_loss(self, batch, num): return None", r"step_loss returned a NoneType; StepLoss is"),
        ("def step_loss(self, batch, num): return StepLoss(1.0)", r"step_loss returned loss that is not a t"),
        ("def step_loss(self, batch): ...", r"TypeError: .*step_loss\(\) takes 2 positional arguments"),
        ("def step_loss(self, batch, num): return self.nothing", r"AttributeError: .*line 4"),
        ("def metrics(self, step): return 3", r"metrics returned a int; Mapping is expected"),
        ("def learning_rate(self, step): return None", r"learning_rate returned a NoneType; a number"),
    ],
)  # fmt: skip
def test_a_class_that_does_not_fit_is_one_line(
    tmp_path: Path, penalty: Path, code: str, message: str
) -> None:
    penalty.write_text(f"{HEAD}class Mine(NextToken):\n    {code}\n")
    with pytest.raises(ConfigError, match=message) as caught:
        train(tmp_path / "run", replace(CONFIG, objective=f"{penalty}:Mine"))
    assert "\n" not in caught.value.line()
    assert "penalty.py" in caught.value.line()
