"""An objective of the user's own, as docs/extending/objective.md shows it, in a training run."""

from __future__ import annotations

import importlib
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stamm.base.config import override
from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.engine.config import EngineConfig
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.optim.schedules import BatchStage
from stamm.pretrain import job
from stamm.pretrain.config import PretrainConfig
from stamm.runs.job import Workspace
from stamm.runs.metrics import read_metrics

TUTORIAL = Path(__file__).parents[3] / "docs" / "extending" / "objective.md"
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
def penalty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tutorial's code in a file, and a made-up corpus."""
    found = re.search(r"```python\n(.*?)```", TUTORIAL.read_text(), re.S)
    assert found
    file = tmp_path / "penalty.py"
    file.write_text(found[1])
    bench: Any = importlib.import_module("bench.plan_memory")
    monkeypatch.setattr(job, "open_stream", lambda *_: bench.MadeUp(64 * 16 + 1, 64))
    return file


def _run(folder: Path, config: PretrainConfig) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    job.run(config, Workspace(folder=folder, progress=NoProgress()))
    return read_metrics(folder / "metrics.jsonl")


def test_the_tutorials_objective_trains(tmp_path: Path, penalty: Path) -> None:
    config = override(CONFIG, [f"objective={penalty}:ConfidencePenalty"])
    plain, lines = _run(tmp_path / "plain", CONFIG), _run(tmp_path / "penalty", config)
    assert lines[0]["train/loss_nats"] == plain[0]["train/loss_nats"]
    assert lines[-1]["train/loss_nats"] != plain[-1]["train/loss_nats"]
    assert lines[0]["train/entropy_nats"] == pytest.approx(math.log(64), rel=0.01)
    recorded = read_json(tmp_path / "penalty" / "manifest.json")["inputs"]["objective"]
    assert recorded["path"].endswith("penalty.py:ConfidencePenalty")


def test_changed_code_does_not_resume(tmp_path: Path, penalty: Path) -> None:
    config = replace(CONFIG, objective=str(penalty))
    _run(tmp_path / "run", config)
    penalty.write_text(penalty.read_text().replace("0.1 *", "0.2 *"))
    with pytest.raises(DataError, match="the code of the objective is not the same"):
        _run(tmp_path / "run", config)


def test_what_is_not_an_objective_is_an_error(tmp_path: Path, penalty: Path) -> None:
    with pytest.raises(ConfigError, match="is neither 'next-token' nor of the form"):
        replace(CONFIG, objective="dpo")
    penalty.write_text("class Nothing:\n    def __init__(self, *arguments: object) -> None: ...\n")
    with pytest.raises(ConfigError, match="makes Nothing, which is not an objective"):
        _run(tmp_path / "run", replace(CONFIG, objective=f"{penalty}:Nothing"))
