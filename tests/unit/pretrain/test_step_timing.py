"""Step timing trains as the arms are trained later: kernels, masks, and what is not finite."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stamm.activations.fused import operation
from stamm.engine.config import EngineConfig, SkipUpdate
from stamm.engine.distributed import DistributedContext
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.optim.schedules import BatchStage
from stamm.pretrain import step_timing
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.dataset import SequenceSampler
from stamm.pretrain.step_timing_config import StepTimingConfig, TimedArm
from stamm.recipes.comparisons import smoke
from stamm.recipes.matching import EqualTime
from stamm.runs.job import Workspace

RUN = PretrainConfig(
    model=DecoderConfig(
        vocab_size=64, d_model=16, num_layers=1, num_heads=2, num_kv_heads=2, max_context=16,
        ffn=PlainFFN(width=24),
    ),
    context=16,
    batch=(BatchStage(size=4),),
    sequences=64,
    goldfish=None,
    masks="released",
    engine=EngineConfig(device="cpu", threads=1, compile="off", kernels="torch"),
)  # fmt: skip


def test_steps_are_timed_with_the_kernels_and_masks_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench: Any = importlib.import_module("bench.plan_memory")
    monkeypatch.setattr(step_timing, "open_stream", lambda *_: bench.MadeUp(64 * 16 + 1, 64))
    monkeypatch.setattr(step_timing, "prepare_kernels", lambda *_: None)  # needs a compiler
    seen: list[tuple[str, bool, str]] = []

    def train(
        config: PretrainConfig,
        place: Workspace,
        world: DistributedContext,
        windows: SequenceSampler,
        make: Any,
    ) -> None:
        seen.append((config.engine.attention, bool(operation._EAGER), windows._masks))
        (place.folder / "log").mkdir(parents=True)
        lines = ({"step": n + 1, "speed/seconds": 0.5} for n in range(3))
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (place.folder / "log" / "speed.jsonl").write_text(text)

    monkeypatch.setattr(step_timing, "train_decoder", train)
    config = StepTimingConfig(
        arms=(
            TimedArm(name="torch", pretrain=RUN),
            TimedArm(
                name="stamm", pretrain=replace(RUN, engine=replace(RUN.engine, kernels="stamm"))
            ),
        ),
        baseline="torch",
        short=0.25,
        rounds=1,
        warmup_steps=1,
        steps=2,
    )
    step_timing.run(config, Workspace(folder=tmp_path, inputs={}))
    auto = RUN.engine.attention
    assert seen == [("dense", True, "released"), (auto, False, "released")]
    assert json.loads((tmp_path / "step_timing.json").read_text())["runs"]["stamm.final"] == {
        "sequences": 64
    }


def test_a_loss_that_is_not_finite_does_not_end_the_timing() -> None:
    config = replace(smoke(), matched=EqualTime())
    (pace,) = (step for step in config.steps() if step.job == "step_timing")
    for arm in pace.config.arms:
        assert isinstance(arm.pretrain.engine.on_nonfinite, SkipUpdate)
