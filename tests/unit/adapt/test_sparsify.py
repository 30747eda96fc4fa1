"""Thresholds are folded into the matrices of a trained decoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stamm.adapt import sparsify_job
from stamm.adapt.config import SparsifyConfig, sparse_config
from stamm.adapt.records import SparsifyFile
from stamm.adapt.sample import mean_loss
from stamm.adapt.section import sparse_table
from stamm.base.errors import ConfigError, DataError, StammError
from stamm.base.schema import read_record
from stamm.models.config import DecoderConfig, Experts, GatedFFN, LowRank, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.models.serialization import load_decoder, save_decoder
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import read_change, weights_sha256
from tests.unit.untrained_run import untrained_run

BLOCKS = {
    "plain": PlainFFN(width=48, activation="relu2"),
    "gated": GatedFFN(width=32, activation="reglu"),
}


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "made").mkdir()
    found = untrained_run(tmp_path / "made")
    return {"start": found["model"], "tokenizer": found["tokenizer"], "pack": found["pack"]}


def sparse(
    inputs: dict[str, Path], out: Path, ffn: PlainFFN | GatedFFN, **settings: Any
) -> SparsifyFile:
    config = replace(load_decoder(inputs["start"]).config, ffn=ffn)
    save_decoder(build_decoder(config, seed=2), inputs["start"])
    out.mkdir()
    given = SparsifyConfig(threads=1, tokens=2048, **settings)
    sparsify_job.run(given, Workspace(folder=out, inputs=inputs))
    return read_record(SparsifyFile, out / "sparsify.json")


@pytest.mark.parametrize("name", BLOCKS)
def test_the_stored_model_is_the_old_one_without_its_weak_units(
    name: str, made: dict[str, Path], tmp_path: Path
) -> None:
    """The expected outputs come from the old weights and the recorded thresholds, unit by unit."""
    found = sparse(made, tmp_path / "out", BLOCKS[name], share=0.8, perplexity=None)
    old, new = load_decoder(made["start"]), load_decoder(tmp_path / "out" / "model")
    power = {"plain": 2, "gated": 1}[name]
    assert new.config.ffn.spec.name == f"{BLOCKS[name].spec.name}_cut"
    for layer in range(2):
        block: Any = old.model.layers[layer].mlp
        x_ND = torch.randn(64, 32, generator=torch.Generator().manual_seed(layer))
        first = block.gate_proj if name == "gated" else block.up_proj
        with torch.no_grad():
            f_NC = (x_ND @ first.weight.T).clamp_min(0) ** power
            scale_C = block.down_proj.weight.norm(dim=0)
            h_NC = f_NC * (x_ND @ block.up_proj.weight.T) if name == "gated" else f_NC
            ours_ND = new.model.layers[layer].mlp(x_ND)
            if name == "plain":
                kept_NC = f_NC * scale_C > found.layers[layer].threshold
                whole_ND = (h_NC * kept_NC) @ block.down_proj.weight.T
                torch.testing.assert_close(ours_ND, whole_ND, rtol=1e-4, atol=1e-5)
        # Of a gated block the scale also has up's size; every kept unit is the old one.
        inner: Any = new.model.layers[layer].mlp
        columns_DC = inner.down_proj.weight.detach()
        before_DC = block.down_proj.weight.detach()
        ratio_C = (before_DC / columns_DC).mean(0)
        torch.testing.assert_close(columns_DC * ratio_C, before_DC, rtol=1e-4, atol=1e-6)
        with torch.no_grad():
            kept = (x_ND @ first.weight.T) * ratio_C ** (1 / power) > 1
            whole_ND = (h_NC * kept) @ before_DC.T
        torch.testing.assert_close(ours_ND, whole_ND, rtol=1e-3, atol=1e-4)
    assert 0.7 < sum(layer.skipped for layer in found.layers) / 2 < 0.9
    assert all(layer.skipped > layer.zeros for layer in found.layers)
    assert "train split" in sparse_table(found).note


def test_the_perplexity_is_that_which_was_asked_for(made: dict[str, Path], tmp_path: Path) -> None:
    found = sparse(made, tmp_path / "out", BLOCKS["plain"], perplexity=1.001)
    change = read_change(tmp_path / "out" / "model")
    assert change is not None
    assert change.change == "sparsify" and change.settings["perplexity"] == "1.001"
    assert change.parent_sha256 == weights_sha256(made["start"])
    assert found.sparse_loss == pytest.approx(change.changed_loss)
    assert found.random_loss != found.loss
    text = [[1, *range(5, 60)]]
    stored = load_decoder(tmp_path / "out" / "model")
    assert mean_loss(stored, text, 64) == pytest.approx(
        mean_loss(load_decoder(made["start"]), text, 64), abs=0.05
    )


def test_a_share_of_zero_is_the_parent(made: dict[str, Path], tmp_path: Path) -> None:
    found = sparse(made, tmp_path / "out", GatedFFN(width=32), share=0.0, perplexity=None)
    assert found.before == found.after == "swiglu"
    ids = torch.arange(40)[None]
    with torch.no_grad():
        old, new = (load_decoder(f)(ids) for f in (made["start"], tmp_path / "out" / "model"))
    assert float((old - new).abs().max()) <= 1e-6 * float(old.abs().max())


def test_the_activation_is_replaced_first(made: dict[str, Path], tmp_path: Path) -> None:
    block = GatedFFN(width=32)
    found = sparse(made, tmp_path / "out", block, activation="reglu", share=0.7, perplexity=None)
    assert (found.before, found.after) == ("swiglu", "reglu_cut")
    assert found.unthresholded_loss is not None


def test_a_share_that_the_zeros_have_is_refused(made: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"share = 0\.2 is not above the 0\.4"):
        sparse(made, tmp_path / "out", BLOCKS["plain"], share=0.2, perplexity=None)
    with pytest.raises(DataError, match="has 20 tokens, fewer than the 48 units"):
        small = SparsifyConfig(threads=1, tokens=20)
        sparsify_job.run(small, Workspace(folder=tmp_path / "out", inputs=made))
    assert not (tmp_path / "out" / "model").exists()


@pytest.mark.parametrize(
    ("ffn", "what"),
    [
        (GatedFFN(activation="drelu"), "a gate times a function of up"),
        (GatedFFN(), "Set activation=reglu"),
        (PlainFFN(), "Set activation=reglu for a gated block, activation=relu2"),
        (PlainFFN(activation="relu2", linear=LowRank(rank=8)), "matrices are LowRank"),
        (PlainFFN(activation="relu2", experts=Experts()), "has experts"),
    ],
)
def test_a_block_without_a_place_for_thresholds_is_refused(
    ffn: PlainFFN | GatedFFN, what: str
) -> None:
    with pytest.raises(StammError) as error:
        sparse_config(DecoderConfig(ffn=ffn), SparsifyConfig())
    assert what in error.value.line()


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"share": 1.0, "perplexity": None}, "share = 1.0"),
        ({"share": 0.5}, "set one"),
        ({"perplexity": 1.0}, "perplexity = 1.0"),
    ],
)
def test_goals_out_of_range_are_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        SparsifyConfig(**settings)
