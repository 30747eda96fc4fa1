"""Averaged weights: the mean of checkpoints and the final weights, from files that are checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stamm.base.errors import DataError, RunError
from stamm.base.files import sha256_file
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder
from stamm.models.serialization import load_decoder, save_decoder
from stamm.pretrain.average import run
from stamm.pretrain.average_config import WeightAverage
from stamm.runs.job import Workspace


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A run of 12 steps with checkpoints after 3, 4, 8 and 12, each weight as large as its step."""
    torch.manual_seed(1)
    folder = tmp_path / "run"
    decoder = Decoder(
        DecoderConfig(vocab_size=32, d_model=8, num_layers=1, num_heads=2, num_kv_heads=1)
    )
    with torch.no_grad():
        for weight in decoder.parameters():
            weight.fill_(12.0)
    save_decoder(decoder, folder / "model")
    (folder / "summary.json").write_text(json.dumps({"schema": 1, "steps": 12}))
    for step in (3, 4, 8, 12):
        place = folder / "checkpoints" / f"step-{step:08d}"
        place.mkdir(parents=True)
        pieces = {f"model/{n}": torch.full_like(p, step) for n, p in decoder.named_parameters()}
        pieces["optimizer/x"] = torch.zeros(1)
        save_file(pieces, place / "shard-1.safetensors")
        recorded = {"shard-1.safetensors": sha256_file(place / "shard-1.safetensors")}
        (place / "state.json").write_text(json.dumps({"sha256": recorded}))
    return folder


def averaged(folder: Path, config: WeightAverage) -> Decoder:
    run(config, Workspace(folder=folder / "averaged", inputs={"run": folder}))
    return load_decoder(folder / "averaged" / "model")


@pytest.mark.parametrize(("last", "every", "mean"), [(2, 4, 10.0), (3, 4, 8.0), (2, 8, 10.0)])
def test_the_mean_of_the_last_weights(trained: Path, last: int, every: int, mean: float) -> None:
    for weight in averaged(trained, WeightAverage(last=last, every=every)).parameters():
        assert torch.equal(weight, torch.full_like(weight, mean))


def test_missing_checkpoints_and_changed_ones_are_refused(trained: Path) -> None:
    for last, every, missing in ((4, 4, "0"), (2, 3, "9"), (3, 3, "6, 9")):
        with pytest.raises(
            RunError, match=rf"has no checkpoint of step {missing}, and the {last - 1}"
        ):
            averaged(trained, WeightAverage(last=last, every=every))
    place = trained / "checkpoints" / "step-00000008" / "shard-1.safetensors"
    save_file({"model/x": torch.zeros(1)}, place)
    with pytest.raises(DataError, match="has changed since it was written"):
        averaged(trained, WeightAverage(last=2, every=4))
    (place.parent / "state.json").write_text(
        json.dumps({"sha256": {place.name: sha256_file(place)}})
    )
    with pytest.raises(DataError, match=r"the checkpoint of step 8 in .* has not all of"):
        averaged(trained, WeightAverage(last=2, every=4))
