"""Muon against torch's own, alone and over processes, and against the singular value decomposition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stamm.base.errors import ConfigError
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.optim.build import build_optimizer
from stamm.optim.config import AdamW, Muon
from stamm.optim.groups import parameter_groups, set_learning_rate
from stamm.optim.muon import MuonWithAdamW, orthogonalised
from tests.conftest import environment
from tests.forked import Parent

SCRIPT = Path(__file__).with_name("muon_processes.py")


def _decoder() -> nn.Module:
    config = DecoderConfig(
        vocab_size=32,
        d_model=16,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        ffn=PlainFFN(width=48, activation="xielu"),
    )
    return build_decoder(config, seed=0)


def _give_gradients(model: nn.Module, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=random)


def test_matrices_of_layers_are_muon_s_and_everything_else_is_adamw_s() -> None:
    model = _decoder()
    names = {id(p): name for name, p in model.named_parameters()}
    found = {
        names[id(p)]: group["method"]
        for group in parameter_groups(model, Muon())
        for p in group["params"]
    }
    muon = {name for name, method in found.items() if method == "muon"}
    assert muon == {
        f"model.layers.{i}.{matrix}.weight"
        for i in range(2)
        for matrix in (
            *(f"self_attn.{x}_proj" for x in "qkvo"),
            "mlp.up_proj",
            "mlp.down_proj",
        )
    }
    assert set(found.values()) == {"muon", "adamw"}


@pytest.mark.parametrize("rate", ["match_rms_adamw", "original"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_twenty_steps_follow_torch_s_muon_and_adamw(rate: Any, nesterov: bool) -> None:
    ours, theirs = _decoder(), _decoder()
    config = Muon(rate=rate, nesterov=nesterov, weight_decay=0.2)
    mine = build_optimizer(config, ours, total_steps=20)
    groups = parameter_groups(theirs, config)
    matrices = [p for g in groups if g["method"] == "muon" for p in g["params"]]
    muon = torch.optim.Muon(
        matrices, lr=1e-2, weight_decay=0.2, nesterov=nesterov, adjust_lr_fn=rate
    )
    rest = [
        {"params": g["params"], "weight_decay": g["weight_decay"]}
        for g in groups
        if g["method"] != "muon"
    ]
    adamw = torch.optim.AdamW(rest, lr=1e-2, betas=(0.9, 0.95))
    for step in range(20):
        _give_gradients(ours, step)
        _give_gradients(theirs, step)
        set_learning_rate(mine, 1e-2)
        mine.step()
        muon.step()
        adamw.step()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        # The change is rounded before it is multiplied by the rate: a unit in the last place.
        torch.testing.assert_close(a, b, rtol=0, atol=2e-6, msg=name)
    assert mine.state[matrices_of(ours)[0]].keys() == {"momentum"}


def matrices_of(model: nn.Module) -> list[nn.Parameter]:
    """What Muon changes."""
    groups = parameter_groups(model, Muon())
    return [p for g in groups if g["method"] == "muon" for p in g["params"]]


@pytest.mark.parametrize("shape", [(64, 64), (32, 96), (96, 32)])
def test_what_is_added_is_the_nearest_orthogonal_matrix_about(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    change = orthogonalised(matrix, Muon(rate="match_rms_adamw"))
    scale = 0.2 * max(shape) ** 0.5
    left, sizes, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    inner = left.T @ (-change.double() / scale) @ right.T
    # Newton-Schulz brings every singular value near 1, all but the smallest ones between these.
    found = inner.diagonal()[sizes > 0.1 * sizes[0]]
    assert found.min() > 0.6
    assert found.max() < 1.25
    assert (inner - inner.diagonal().diag()).abs().max() < 0.05
    # Its size is that of AdamW's update, 0.2 in the root of the mean square, less what is missing to 1.
    assert change.square().mean().sqrt().item() == pytest.approx(0.17, rel=0.1)


def test_a_resumed_run_has_the_same_bits() -> None:
    def trained(model: nn.Module, state: dict[str, Any] | None, steps: range) -> dict[str, Any]:
        optimizer = build_optimizer(Muon(), model, total_steps=12)
        if state is not None:
            optimizer.load_state_dict(state)
        for step in steps:
            set_learning_rate(optimizer, 1e-2)
            _give_gradients(model, step)
            optimizer.step()
        return optimizer.state_dict()

    whole, halves = _decoder(), _decoder()
    trained(whole, None, range(12))
    trained(halves, trained(halves, None, range(5)), range(5, 12))
    for a, b in zip(whole.parameters(), halves.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_parameter_without_a_gradient_stays() -> None:
    model = _decoder()
    optimizer = build_optimizer(Muon(), model, total_steps=1)
    set_learning_rate(optimizer, 1e-2)
    _give_gradients(model, 0)
    first = matrices_of(model)[0]
    first.grad = None
    before = first.detach().clone()
    optimizer.step()
    assert torch.equal(first, before)
    assert not optimizer.state[first]


def test_a_gradient_of_zeros_changes_nothing_but_decays() -> None:
    p = nn.Parameter(torch.ones(4, 4))
    optimizer = MuonWithAdamW([{"params": [p], "method": "muon"}], Muon(weight_decay=0.5))
    set_learning_rate(optimizer, 0.1)
    p.grad = torch.zeros(4, 4)
    optimizer.step()
    assert torch.equal(p, torch.full((4, 4), 0.95))


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="Muon finds no matrix in a layer"):
        build_optimizer(Muon(), nn.Sequential(nn.Linear(3, 3)), total_steps=1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("momentum", 1.0), ("iterations", 0), ("rate", "both"), ("eps", 0.0), ("weight_decay", -1.0)],
)
def test_a_number_out_of_range_is_told(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"Muon.{field} = {value!r} must "):
        Muon(**{field: value})


def test_the_rest_may_learn_at_another_rate() -> None:
    assert AdamW().groups == ()
    model = _decoder()
    optimizer = build_optimizer(Muon(shape_lr_factor=0.5), model, total_steps=1)
    set_learning_rate(optimizer, 1e-2)
    rates = {group["label"]: group["lr"] for group in optimizer.param_groups}
    assert rates == {"matrices": 1e-2, "vectors": 1e-2, "shapes": 5e-3}


@pytest.mark.parametrize(
    ("count", "tensor", "replicas"), [(2, 1, 1), (2, 2, 1), (4, 2, 1), (4, 1, 2)]
)
def test_pieces_over_processes_take_the_steps_of_whole_matrices(
    count: int, tensor: int, replicas: int, tmp_path: Path, parent: Parent
) -> None:
    """FSDP2, tensor parallel, both, HSDP: the same bits as one process, given the same gradients."""
    out = tmp_path / "found.json"
    said = [str(SCRIPT), str(out), str(tensor), str(replicas)]
    done = parent.run(said, tmp_path, environment(), ranks=count)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(out.read_text())
    assert len(found) == 4
    for name, facts in found.items():
        assert facts["cut"], name
        assert facts["same"], name
        assert facts["moved"] > 1e-3, name
