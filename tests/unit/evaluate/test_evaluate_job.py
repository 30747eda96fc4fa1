"""Results name the SHA-256 of the weights; those of other weights are moved beside, never replaced."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from stamm.base.errors import DataError
from stamm.base.files import read_json, sha256_file, write_json
from stamm.evaluate import job
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.results import read_held_out
from stamm.models.decoder import build_decoder
from stamm.models.serialization import load_decoder, save_decoder
from stamm.recipes.run_folder import open_run
from stamm.runs.job import Workspace

CONFIG = EvaluateConfig(tasks=("held_out",), threads=1)


def test_results_of_other_weights_are_kept_beside(inputs: dict[str, Path], tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "evaluate"
    shutil.copytree(inputs["model"], model)
    out.mkdir()
    workspace = Workspace(folder=out, inputs={**inputs, "model": model})
    job.run(CONFIG, workspace)
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    before = sha256_file(model / "model.safetensors")
    assert read_json(out / "held_out.json")["model_sha256"] == before
    job.run(CONFIG, workspace)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first
    save_decoder(build_decoder(load_decoder(model).config, seed=9), model)
    write_json(tmp_path / "config.json", {})
    with pytest.raises(DataError, match=rf"held_out\.json was made from .* {before[:12]}, and"):
        read_held_out(tmp_path)
    with pytest.raises(DataError, match=rf"held_out\.json was made from .* {before[:12]}, and"):
        open_run(tmp_path).result("evaluate/held_out.json")
    job.run(CONFIG, workspace)
    aside = tmp_path / f"evaluate-{before[:8]}"
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == first
    assert read_json(out / "held_out.json")["model_sha256"] != before
    assert read_held_out(tmp_path) is not None


def test_a_diverged_model_is_not_measured(inputs: dict[str, Path], tmp_path: Path) -> None:
    """Comparisons with NaN are false: its accuracies would be numbers."""
    model = tmp_path / "model"
    decoder = load_decoder(inputs["model"])
    decoder.lm_head.weight.data[7, 0] = torch.nan
    save_decoder(decoder, model)
    workspace = Workspace(folder=tmp_path / "out", inputs={**inputs, "model": model})
    with pytest.raises(DataError, match=r"lm_head\.weight .* contains NaN.*earlier checkpoint"):
        job.run(CONFIG, workspace)
