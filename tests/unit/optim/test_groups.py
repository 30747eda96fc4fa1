"""Trainable shapes: a group of their own, not decayed, with a learning rate of their own."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import chain

import pytest
import torch
from torch import nn

from stamm.activations.module import build_activation, xielu
from stamm.base.errors import ConfigError
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.optim.build import build_optimizer
from stamm.optim.config import AdamW, AdEMAMix, GroupRule, Muon, OptimizerConfig
from stamm.optim.groups import parameter_groups, set_learning_rate
from stamm.optim.param_group_rules import Group, grouped
from tests.conftest import environment


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
    decayed, kept, shapes = parameter_groups(model, AdamW(shape_lr_factor=3.0))
    names = {id(p): name for name, p in model.named_parameters()}
    found = [[names[id(p)] for p in group["params"]] for group in (decayed, kept, shapes)]
    assert sorted(chain(*found)) == sorted(names.values())
    assert found[2] == [f"model.layers.{i}.mlp.act_fn.alpha_{s}" for i in range(2) for s in "pn"]
    assert all("norm" in name for name in found[1]) and found[1]
    assert [g["weight_decay"] for g in (decayed, kept, shapes)] == [0.1, 0.0, 0.0]
    assert [g["lr_factor"] for g in (decayed, kept, shapes)] == [1.0, 1.0, 3.0]


def test_a_model_without_shapes_has_two_groups() -> None:
    assert len(parameter_groups(_decoder("gelu"), AdamW())) == 2


def test_shapes_are_found_by_what_they_are_not_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), build_activation("xielu", neurons=2))
    shapes = parameter_groups(model, AdamW())[-1]["params"]
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
        assert [g["lr"] for g in optimizer.param_groups] == [1e-2, factor * 1e-2]
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
        parameter_groups(model, AdamW())
    assert len(parameter_groups(model, AdamW(), allow_shared=["1"])[-1]["params"]) == 2


def test_shapes_in_16_bits_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), xielu(compat="eps", dtype=torch.bfloat16)).bfloat16()
    with pytest.raises(ConfigError, match=r"shape parameter 1\.alpha_p is stored as bfloat16"):
        parameter_groups(model, AdamW())
    parameter_groups(nn.Sequential(nn.Linear(2, 2), xielu()).bfloat16(), AdamW())


SHAPES = {
    "model.embed_tokens.weight": (32, 8),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.mlp.up_proj.weight": (16, 8),
    "model.layers.0.mlp.act_fn.alpha_p": (1,),
    "model.layers.0.attention_layernorm.weight": (8,),
    "model.norm.weight": (8,),
    "lm_head.weight": (32, 8),
}


def _told(groups: list[Group]) -> list[tuple[str, float, float, int]]:
    return [(g.label, g.lr_factor, g.weight_decay, g.numbers) for g in groups]


def test_without_rules_there_are_matrices_vectors_and_shapes() -> None:
    assert _told(grouped(AdEMAMix(shape_lr_factor=2.0), SHAPES)) == [
        ("matrices", 1.0, 0.1, 32 * 8 * 2 + 64 + 128),
        ("vectors", 1.0, 0.0, 16),
        ("shapes", 2.0, 0.0, 1),
    ]


def test_the_first_rule_that_matches_decides() -> None:
    rules = (
        GroupRule(pattern=r"^lm_head", lr_factor=0.5),
        GroupRule(pattern=r"embed|head", weight_decay=0.0),
        GroupRule(pattern=r"layers\.0\.(mlp|attention_layernorm)", lr_factor=3.0),
    )
    assert _told(grouped(AdamW(groups=rules), SHAPES)) == [
        ("matrices", 1.0, 0.1, 64),
        ("vectors", 1.0, 0.0, 8),
        (r"^lm_head", 0.5, 0.1, 256),
        (r"embed|head", 1.0, 0.0, 256),
        # What one rule takes keeps the decay that each had: matrices first.
        (r"layers\.0\.(mlp|attention_layernorm)", 3.0, 0.1, 128),
        (r"layers\.0\.(mlp|attention_layernorm)", 3.0, 0.0, 9),
    ]


def test_a_rule_that_decides_about_nothing_is_an_error() -> None:
    misspelt = AdamW(groups=(GroupRule(pattern="lm_heed"),))
    with pytest.raises(ConfigError, match=r"groups\.0\.pattern = 'lm_heed' matches no parameter"):
        grouped(misspelt, SHAPES)
    endless = AdamW(groups=(GroupRule(pattern=r"([a-z_.0-9]+)+!"),))
    with pytest.raises(ConfigError, match=r"takes more than 0\.5 s on the name"):
        grouped(endless, SHAPES)
    late = AdamW(groups=(GroupRule(pattern="head"), GroupRule(pattern="lm_head")))
    with pytest.raises(ConfigError, match="'lm_head' matches only parameters of earlier rules"):
        grouped(late, SHAPES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pattern": ""}, "pattern = '' must be a regular expression"),
        ({"pattern": "("}, r"pattern = '\(' must be a regular expression"),
        ({"pattern": "a", "lr_factor": math.nan}, "lr_factor = nan must"),
        ({"pattern": "a", "weight_decay": -1.0}, r"weight_decay = -1\.0 must"),
    ],
)
def test_a_rule_is_checked(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GroupRule(**settings)  # type: ignore[arg-type]  # any field may be named


@pytest.mark.parametrize("config", [AdamW(), AdEMAMix(), Muon()])
def test_a_model_has_the_groups_that_its_names_and_shapes_have(config: OptimizerConfig) -> None:
    model = _decoder("xielu")
    planned = grouped(config, {name: tuple(p.shape) for name, p in model.named_parameters()})
    built = parameter_groups(model, config)
    assert [g.label for g in planned] == [g["label"] for g in built]
    assert [g.numbers for g in planned] == [sum(p.numel() for p in g["params"]) for g in built]
    assert sum(g.numbers for g in planned) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("config", [AdamW(), AdEMAMix(), Muon()])
def test_the_moments_that_a_plan_counts_are_kept(config: OptimizerConfig) -> None:
    model = _decoder("xielu")
    planned = grouped(config, {name: tuple(p.shape) for name, p in model.named_parameters()})
    optimizer = build_optimizer(config, model, total_steps=1)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    kept = sum(
        value.numel()
        for state in optimizer.state.values()
        for name, value in state.items()
        if name != "step"
    )
    assert kept == sum(group.moments for group in planned)


def test_a_rule_s_rate_reaches_its_parameters() -> None:
    rules = (GroupRule(pattern="embed_tokens", lr_factor=0.0), GroupRule(pattern="act_fn"))
    model = _decoder("xielu")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = build_optimizer(AdamW(groups=rules, shape_lr_factor=5.0), model, total_steps=2)
    set_learning_rate(optimizer, 1e-2)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    moved = {name: (p - before[name]).abs().max().item() for name, p in model.named_parameters()}
    assert moved.pop("model.embed_tokens.weight") == 0.0
    assert moved.pop("model.layers.1.mlp.act_fn.alpha_p") == pytest.approx(1e-2, rel=1e-3)
    assert min(moved.values()) > 0.0


def test_planning_groups_needs_no_torch() -> None:
    code = "import sys, stamm.optim.param_group_rules, stamm.optim.schedules; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
