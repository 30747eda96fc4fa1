"""Trainable shapes: a group of their own, not decayed, with a learning rate of their own."""

from __future__ import annotations

import math
from itertools import chain

import pytest
import torch
from torch import nn

from stamm.activations.module import build_activation, xielu
from stamm.base.errors import ConfigError
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.optim.build import build_optimizer
from stamm.optim.config import AdamW, AdEMAMix
from stamm.optim.groups import parameter_groups, set_learning_rate


def _decoder(activation: str) -> nn.Module:
    config = DecoderConfig(
        vocab_size=32,
        d_model=8,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        ffn=PlainFFN(width=16, activation=activation),
    )
    return build_decoder(config, seed=0)


def test_every_parameter_is_in_one_group() -> None:
    model = _decoder("xielu")
    decayed, kept, shapes = parameter_groups(model, 0.1, shape_lr_factor=3.0)
    names = {id(p): name for name, p in model.named_parameters()}
    found = [[names[id(p)] for p in group["params"]] for group in (decayed, kept, shapes)]
    assert sorted(chain(*found)) == sorted(names.values())
    assert found[2] == [f"model.layers.{i}.mlp.act_fn.alpha_{s}" for i in range(2) for s in "pn"]
    assert all("norm" in name for name in found[1]) and found[1]
    assert [g["weight_decay"] for g in (decayed, kept, shapes)] == [0.1, 0.0, 0.0]
    assert [g["lr_factor"] for g in (decayed, kept, shapes)] == [1.0, 1.0, 3.0]


def test_a_model_without_shapes_has_two_groups() -> None:
    assert len(parameter_groups(_decoder("gelu"), 0.1)) == 2


def test_shapes_are_found_by_what_they_are_not_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), build_activation("xielu", neurons=2))
    shapes = parameter_groups(model, 0.1)[2]["params"]
    assert [id(p) for p in shapes] == [id(p) for p in model[1].parameters()]


@pytest.mark.parametrize("kind", [AdamW, AdEMAMix])
def test_shapes_learn_at_their_own_rate(kind: type[AdamW] | type[AdEMAMix]) -> None:
    moved = []
    for factor in (1.0, 4.0):
        model = nn.Sequential(nn.Linear(3, 3, bias=False), xielu())
        with torch.no_grad():
            model[0].weight.copy_(torch.arange(9.0).reshape(3, 3) / 9)
        before = [p.detach().clone() for p in model.parameters()]
        optimizer = build_optimizer(kind(shape_lr_factor=factor), model, total_steps=10)
        set_learning_rate(optimizer, 1e-2)
        assert [g["lr"] for g in optimizer.param_groups] == [1e-2, 1e-2, factor * 1e-2]
        model(torch.linspace(-2, 2, 12).reshape(4, 3)).sum().backward()
        optimizer.step()
        moved.append([p.detach() - b for p, b in zip(model.parameters(), before, strict=True)])
    assert torch.equal(moved[0][0], moved[1][0])
    for slow, fast in zip(moved[0][1:], moved[1][1:], strict=True):
        assert torch.allclose(4 * slow, fast, rtol=1e-3) and float(slow.abs()) > 1e-3


def test_a_rate_of_zero_freezes_shapes_and_other_rates_are_refused() -> None:
    assert AdamW(shape_lr_factor=0.0).shape_lr_factor == 0.0
    for value in (-1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="shape_lr_factor"):
            AdEMAMix(shape_lr_factor=value)


def test_groups_without_a_factor_get_the_rate_itself() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    set_learning_rate(optimizer, 0.3)
    assert optimizer.param_groups[0]["lr"] == 0.3


def test_shared_shapes_are_refused_unless_they_are_meant() -> None:
    shared = xielu()
    model = nn.Sequential(nn.Linear(2, 2), shared, nn.Linear(2, 2), shared)
    with pytest.raises(ConfigError, match="1 and 3 share one activation module"):
        parameter_groups(model, 0.1)
    assert len(parameter_groups(model, 0.1, allow_shared=["1"])[2]["params"]) == 2


def test_shapes_in_16_bits_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), xielu(compat="eps", dtype=torch.bfloat16)).bfloat16()
    with pytest.raises(ConfigError, match=r"shape parameter 1\.alpha_p is stored as bfloat16"):
        parameter_groups(model, 0.1)
    parameter_groups(nn.Sequential(nn.Linear(2, 2), xielu()).bfloat16(), 0.1)
