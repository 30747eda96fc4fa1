"""Training with the density loss: more units can be skipped, weight 0 changes nothing, a stopped run resumes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stamm.base.errors import ConfigError
from stamm.engine.config import EngineConfig, Parallel
from stamm.losses.config import Density
from stamm.models.config import DecoderConfig, Experts, GatedFFN, PlainFFN
from stamm.models.serialization import load_decoder
from stamm.observe.config import ObserveConfig
from stamm.observe.model import packed_text
from stamm.observe.ruler import find_thresholds, skipped_units
from stamm.pretrain import job
from stamm.pretrain.config import PretrainConfig
from stamm.runs.job import Workspace
from stamm.runs.metrics import read_metrics
from tests.unit.trained_run import CONTEXT, STEPS, Lines, config_of, corpus, same_run, trained_arm

BLOCKS = {"plain": PlainFFN(width=24), "gated": GatedFFN(width=24)}


def model(ffn: PlainFFN | GatedFFN) -> DecoderConfig:
    return replace(config_of(Path()).model, ffn=ffn)


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_the_ruler_skips_more_units_after_training_with_the_term(tmp_path: Path, name: str) -> None:
    """The control is the same training with weight 0, which has the weights of a run without a term."""
    corpus(tmp_path)
    shares, densities = [], []
    runs = {"none": None, "zero": Density(weight=0.0, epsilon=1e-4), "one": Density(weight=1.0, epsilon=1e-4)}  # fmt: skip
    for arm, density in runs.items():
        root = tmp_path / arm
        root.mkdir()
        (root / "pack").symlink_to(tmp_path / "pack")
        folder = trained_arm(root, model=model(BLOCKS[name]), density=density)
        decoder = load_decoder(folder / "model")
        train, held_out = (
            packed_text(ObserveConfig(tokens=1500), tmp_path / "pack", CONTEXT, split).sequences
            for split in ("train", "held_out")
        )
        thresholds = find_thresholds(decoder, train, perplexity=1.0001)
        shares.append(skipped_units(decoder, held_out, thresholds).share)
        lines = read_metrics(folder / "metrics.jsonl")
        densities.append([line.get("train/unit_density") for line in lines])
    assert shares[0] == shares[1] and shares[2] > shares[1] + 0.1
    assert densities[0] == [None] * STEPS
    assert densities[1][0] == densities[2][0] and densities[2][-1] < 0.9 * densities[1][-1]
    weights = [tmp_path / arm / "arms/toy/model/model.safetensors" for arm in ("none", "zero")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_stopped_run_resumes_with_equal_bits(tmp_path: Path) -> None:
    corpus(tmp_path)
    folders = []
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pack").symlink_to(tmp_path / "pack")
        folders.append(trained_arm(tmp_path / name, density=Density(weight=1.0)))
    whole, stopped = folders
    for checkpoint in sorted((stopped / "checkpoints").glob("step-*"))[-2:]:
        shutil.rmtree(checkpoint)
    shutil.rmtree(stopped / "model")
    pack, progress = tmp_path / "pack", Lines()
    config = config_of(tmp_path / "stopped" / "pack", density=Density(weight=1.0))
    job.run(config, Workspace(folder=stopped, inputs={"pack": pack}, progress=progress))
    assert any("Resuming after step 8 of 12." in line for line in progress.lines)
    assert same_run(whole, stopped)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model": DecoderConfig(ffn=GatedFFN(experts=Experts()))}, "the model has experts"),
        ({"objective": "mine.py:Mine"}, "not of mine.py:Mine"),
        ({"engine": EngineConfig(parallel=Parallel(tensor=2))}, "engine.parallel.tensor = 2"),
    ],
)
def test_it_is_refused_where_it_cannot_be_computed(changes: dict[str, Any], what: str) -> None:
    PretrainConfig(**changes)
    with pytest.raises(ConfigError, match=what):
        PretrainConfig(density=Density(), **changes)
