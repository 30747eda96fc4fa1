"""Evaluation during training: the weights keep their bits, a resumed run its metrics, the page a curve."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError
from stamm.base.files import read_json
from stamm.engine.config import EngineConfig
from stamm.evaluate.results import read_evaluated_arms
from stamm.evaluate.task_curves import curve_figures
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.optim.schedules import BatchStage
from stamm.pretrain import job
from stamm.pretrain.config import PeriodicEvaluation, PretrainConfig
from stamm.pretrain.periodic_evaluation import TOKEN_COST, sample_tokens
from stamm.runs.job import Workspace
from stamm.runs.metrics import read_metrics
from stamm.runs.run_view import open_view
from tests.unit.untrained_run import untrained_run

ERROR = "evaluate/held_out/standard_error"
BITS = "evaluate/held_out/bits_per_byte"
ROWS = [{"text": f"The river is wide {n}."} for n in range(12)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A packed corpus and its tokenizer."""
    return untrained_run(tmp_path_factory.mktemp("run"))


def _config(evaluate: PeriodicEvaluation | None, **changes: Any) -> PretrainConfig:
    model = DecoderConfig(
        vocab_size=352, d_model=32, num_layers=1, ffn=PlainFFN(width=48), max_context=32
    )
    engine = EngineConfig(threads=1, compile="off", checkpoint_every=3, keep_checkpoints=9)
    settings = {"sequences": 20, "batch": (BatchStage(size=2),), "goldfish": None, **changes}
    return PretrainConfig(model=model, context=16, engine=engine, evaluate=evaluate, **settings)


def _train(inputs: dict[str, Path], folder: Path, config: PretrainConfig) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    places = {name: inputs[name] for name in ("pack", "tokenizer")}
    job.run(config, Workspace(folder=folder, inputs=places, progress=NoProgress()))
    return read_metrics(folder / "metrics.jsonl")


@pytest.mark.slow
def test_weights_keep_their_bits_and_a_resumed_run_its_metrics(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    mine = tmp_path / "mine.jsonl"
    header = {"stamm_task": {"kind": "cloze"}}
    mine.write_text("".join(json.dumps(row) + "\n" for row in (header, *ROWS)), encoding="utf-8")
    wanted = PeriodicEvaluation(every=5, share=1.0, tasks=("held_out", str(mine)))
    whole = tmp_path / "whole"
    lines = _train(inputs, whole, _config(wanted, batch=(BatchStage(size=6),), sequences=60))
    plain = _train(
        inputs, tmp_path / "plain", _config(None, batch=(BatchStage(size=6),), sequences=60)
    )

    evaluated = [line for line in lines if BITS in line]
    assert [line["step"] for line in evaluated] == [5, 10]
    assert all(ERROR in line and 0 <= line["evaluate/mine/acc"] <= 1 for line in evaluated)
    assert evaluated[-1][BITS] < evaluated[0][BITS]  # it learns
    kept = [{k: v for k, v in one.items() if not k.startswith("evaluate/")} for one in lines]
    assert kept == plain
    weights = Path("model", "model.safetensors")
    assert (whole / weights).read_bytes() == (tmp_path / "plain" / weights).read_bytes()
    assert read_json(whole / "log" / "timing.json")["evaluation_seconds"] > 0

    run = open_view(whole)
    figures = curve_figures(run, read_evaluated_arms(run))
    assert [one.title for one in figures] == ["During training: held_out", "During training: mine"]
    assert "Measured share of the training time: whole" in figures[0].caption
    assert figures[0].data.rows[0][:2] == ("whole", "5")

    before = (whole / "metrics.jsonl").read_bytes()
    for step in (9, 10):
        shutil.rmtree(whole / "checkpoints" / f"step-{step:08d}")
    shutil.rmtree(whole / "model")
    _train(inputs, whole, _config(wanted, batch=(BatchStage(size=6),), sequences=60))
    assert (whole / "metrics.jsonl").read_bytes() == before
    assert (whole / weights).read_bytes() == (tmp_path / "plain" / weights).read_bytes()


def test_a_sample_costs_no_more_than_its_share() -> None:
    wanted = PeriodicEvaluation(every=100, share=0.02, tasks=("held_out", "xcopa_slice"))
    tokens = sample_tokens(_config(wanted), wanted, processes=1)
    trained = 100 * 2 * 16
    assert 2 * tokens * TOKEN_COST <= 0.02 * trained < 2 * (tokens + 1) * TOKEN_COST
    assert sample_tokens(_config(wanted), wanted, processes=4) <= tokens // 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 4}, r"of 4 steps, hold \d items of held_out, fewer than 8"),
        ({"every": 4, "tasks": ("few.jsonl",)}, "few.jsonl has 3 items, fewer than 8"),
        ({"every": 4, "tasks": ("svamp",)}, "too slow during training"),
    ],
)
def test_what_cannot_be_evaluated_is_an_error_before_training(
    inputs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = ({"stamm_task": {"kind": "cloze"}}, *ROWS[:3])
    Path("few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigError, match=message):
        _train(inputs, tmp_path / "arm", _config(PeriodicEvaluation(**settings)))
    assert not (tmp_path / "arm" / "metrics.jsonl").exists()
