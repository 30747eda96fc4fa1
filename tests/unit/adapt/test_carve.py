"""Experts are carved from a dense model, with a router that is part of the function and controls beside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stamm.adapt import carve_job
from stamm.adapt.blocks import BlockSample
from stamm.adapt.carve import balanced_orders, carve_block, expert_sizes, fit_router, refit_matrix
from stamm.adapt.config import CarveConfig, carved_config
from stamm.adapt.records import CarveFile
from stamm.adapt.sample import mean_loss
from stamm.adapt.section import carve_table
from stamm.base.errors import ConfigError, DataError, StammError
from stamm.base.schema import read_record
from stamm.models.config import DecoderConfig, Experts, GatedFFN, LowRank, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.models.serialization import load_decoder, save_decoder
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import read_change, weights_sha256
from tests.unit.untrained_run import untrained_run

FOUR = Experts(count=4, active=2)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def planted(tokens: int = 400, units: int = 16) -> BlockSample:
    """Unit i acts only where input i mod 4 is large: groups {0, 4, 8, 12}, {1, ..} are to be found."""
    x_ND = normal(tokens, 8)
    topic_N = torch.arange(tokens) % 4
    x_ND[:, :4] = 0.1 * x_ND[:, :4].abs()
    x_ND[torch.arange(tokens), topic_N] = 3.0
    h_NC = x_ND[:, torch.arange(units) % 4].clone() + 0.01 * normal(tokens, units, seed=1).abs()
    return BlockSample(x=x_ND, h=h_NC, down=normal(8, units, seed=2))


def groups_of(order_C: Tensor, count: int) -> set[frozenset[int]]:
    return {frozenset(group.tolist()) for group in order_C.chunk(count)}


def test_units_that_act_together_become_one_expert() -> None:
    expected = {frozenset(range(group, 16, 4)) for group in range(4)}
    found = [groups_of(order, 4) for order in balanced_orders(planted(), FOUR, 4, seed=0)]
    assert expected in found
    assert all(sorted(map(len, groups)) == [4] * 4 for groups in found)
    assert groups_of(carve_block(planted(), FOUR, seed=0).order, 4) == expected


def test_the_router_finds_the_planted_topic() -> None:
    sample = planted()
    order_C = torch.cat([torch.arange(group, 16, 4) for group in range(4)])
    carve = fit_router(sample, order_C, Experts(count=4, active=1))
    best_N = (sample.x @ carve.router.T).argmax(1)
    assert float((best_N == torch.arange(400) % 4).double().mean()) > 0.99


def test_shared_experts_are_the_units_that_act_most() -> None:
    sample = planted()
    sample.h[:, [3, 5, 6, 9]] += 50.0
    experts = Experts(count=4, active=2, shared=1)
    for order_C in balanced_orders(sample, experts, 4, seed=0):
        assert set(order_C[:4].tolist()) == {3, 5, 6, 9}
        assert sorted(order_C.tolist()) == list(range(16))


def test_the_size_of_a_contribution_is_that_of_the_sum_of_its_columns() -> None:
    h_NC, down_DC, order_C = (
        normal(3, 8),
        normal(5, 8, seed=1),
        torch.tensor([3, 1, 0, 2, 7, 6, 5, 4]),
    )
    sizes = expert_sizes(h_NC, down_DC, order_C, FOUR)
    third = down_DC[:, 7] * h_NC[1, 7] + down_DC[:, 6] * h_NC[1, 6]
    assert float(sizes[1, 2]) == pytest.approx(float(third.norm()), rel=1e-5)


def test_a_refit_matrix_is_no_worse_than_the_old_one() -> None:
    sample = planted()
    weights_NC = (normal(400, 16, seed=5) > 0).float()
    refit_DC = refit_matrix(sample, weights_NC)
    y_ND = sample.h @ sample.down.T
    missed = [
        float((y_ND - (sample.h * weights_NC) @ v.T).square().sum())
        for v in (sample.down, refit_DC)
    ]
    assert missed[1] < missed[0]
    torch.testing.assert_close(
        refit_matrix(sample, torch.ones(16)), sample.down, rtol=1e-3, atol=1e-3
    )


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    """Inputs of the job: an untrained gated decoder, its tokenizer and its packed corpus."""
    (tmp_path / "made").mkdir()
    found = untrained_run(tmp_path / "made")
    gated = replace(load_decoder(found["model"]).config, ffn=GatedFFN(width=32))
    save_decoder(build_decoder(gated, seed=2), found["model"])
    return {"start": found["model"], "tokenizer": found["tokenizer"], "pack": found["pack"]}


def carved(inputs: dict[str, Path], out: Path, **settings: Any) -> CarveFile:
    out.mkdir()
    config = CarveConfig(threads=1, tokens=2048, **settings)
    carve_job.run(config, Workspace(folder=out, inputs=inputs))
    return read_record(CarveFile, out / "carve.json")


def test_the_record_has_the_losses_of_the_stored_model_and_its_controls(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    found = carved(inputs, out, experts=FOUR)
    stored, parent = load_decoder(out / "model"), load_decoder(inputs["start"])
    assert stored.config.ffn.experts == FOUR
    change = read_change(out / "model")
    assert change is not None
    assert change.change == "carve"
    assert change.parent_sha256 == weights_sha256(inputs["start"])
    assert change.model_sha256 == weights_sha256(out / "model") == found.model_sha256
    assert change.calibration.sha256 != change.measured.sha256
    by_arm = {(arm.carve, arm.router, arm.refit): arm for arm in found.arms}
    assert by_arm["balanced", "linear", True].loss == pytest.approx(found.carved_loss, rel=1e-6)
    assert by_arm["random", "linear", False].draws == 3
    assert ("static", "", True) in by_arm
    # The router's experts are those that the decoder multiplied: 2 of 4 in each of 2 layers.
    assert (found.multiplied, found.slices) == (found.decoded * 2 * 2, found.decoded * 2 * 4)
    text = [1, *range(5, 60)]
    assert mean_loss(stored, [text], 64) != mean_loss(parent, [text], 64)
    table = carve_table(found)
    assert len(table.rows) == 2 + len(found.arms) and "train split" in table.note


def test_all_experts_give_the_parents_logits(inputs: dict[str, Path], tmp_path: Path) -> None:
    carved(inputs, tmp_path / "out", experts=Experts(count=4, active=4))
    ids = torch.arange(40)[None]
    with torch.no_grad():
        old, new = (
            load_decoder(folder)(ids) for folder in (inputs["start"], tmp_path / "out" / "model")
        )
    assert float((old - new).abs().max()) <= 1e-6 * float(old.abs().max())


def test_the_same_inputs_give_the_same_bytes(inputs: dict[str, Path], tmp_path: Path) -> None:
    hashes = [carved(inputs, tmp_path / name, experts=FOUR).model_sha256 for name in ("a", "b")]
    assert hashes[0] == hashes[1]


def test_too_little_text_is_refused(inputs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    config = CarveConfig(threads=1, tokens=20, experts=FOUR)
    with pytest.raises(DataError, match="has 20 tokens, fewer than the 32 units"):
        carve_job.run(config, Workspace(folder=tmp_path / "out", inputs=inputs))
    assert not (tmp_path / "out" / "model").exists()


def test_measured_text_that_is_fitted_on_is_left_out(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    """A file whose halves are alike has nothing to measure on."""
    line = '{"text": "The river is wide and the road is long."}\n'
    (tmp_path / "text.jsonl").write_text(line * 6)
    (tmp_path / "out").mkdir()
    config = CarveConfig(threads=1, text=str(tmp_path / "text.jsonl"), experts=FOUR)
    with pytest.raises(DataError, match="every sequence of the second half of"):
        carve_job.run(config, Workspace(folder=tmp_path / "out", inputs=inputs))


@pytest.mark.parametrize(
    ("ffn", "experts", "what"),
    [
        (GatedFFN(width=30), Experts(), "does not divide into experts.count = 8"),
        (PlainFFN(linear=LowRank(rank=8)), Experts(), "matrices are LowRank"),
        (PlainFFN(shapes="neuron"), Experts(), "parameters per neuron"),
        (GatedFFN(experts=FOUR), Experts(), "has experts already"),
    ],
)
def test_a_block_that_cannot_be_carved_is_refused(
    ffn: PlainFFN | GatedFFN, experts: Experts, what: str
) -> None:
    with pytest.raises(StammError, match=what):
        carved_config(DecoderConfig(ffn=ffn), experts)
    with pytest.raises(ConfigError, match="active = 9 is more than count = 8"):
        Experts(count=8, active=9)
