"""Runs that start from the checkpoint of another run: the same model only, and what they need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError
from stamm.engine.config import EngineConfig
from stamm.models.config import BlockDense, DecoderConfig, PlainFFN, SelfGuide, Structured
from stamm.optim.schedules import BatchStage
from stamm.pretrain import job
from stamm.pretrain.config import InitialWeights, PretrainConfig
from stamm.recipes.branches import CooldownRecipe
from stamm.runs.job import Workspace
from stamm.runs.metrics import read_metrics
from stamm.runs.run import workspace
from tests.unit.untrained_run import untrained_run

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


def test_a_self_guided_run_is_continued_after_its_guided_part(tmp_path: Path) -> None:
    """From step 2 of 4, whose checkpoint still has the guides, and from step 3, without them."""
    run = untrained_run(tmp_path)
    arm = tmp_path / "arms" / "guided"
    arm.mkdir(parents=True)
    model = replace(
        CONFIG.model,
        vocab_size=352,
        ffn=PlainFFN(width=24, linear=BlockDense(rank=4)),
        structured=Structured(guide=SelfGuide(until_share=0.5)),
    )
    engine = replace(CONFIG.engine, checkpoint_every=1, keep_checkpoints=9)
    source = replace(CONFIG, model=model, sequences=16, engine=engine, pack=str(run["pack"]))
    job.run(source, Workspace(folder=arm, inputs={"pack": run["pack"]}))
    recipe = CooldownRecipe(run=str(tmp_path), tokens=2 * 4 * 16)
    for step in (3, 2):
        root = tmp_path / f"from-{step}"
        train = replace(recipe, step=step).steps(root)[0]
        place = workspace(root, train, NoProgress())
        place.folder.mkdir(parents=True)
        job.run(train.config, place)
        assert read_metrics(place.folder / "metrics.jsonl")[-1]["step"] == 2
    with pytest.raises(ConfigError, match=r"of step 1 in .* has the dense guides .* end at step 2"):
        replace(recipe, step=1).steps(tmp_path / "from-1")
