"""The scale of blocks in comparisons: equal at the start, or one learned factor in every arm."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stamm.base.config import from_plain, to_plain
from stamm.base.errors import ConfigError
from stamm.models.config import GatedFFN, LowRank, PlainFFN
from stamm.models.decoder import Decoder
from stamm.optim.param_group_rules import grouped
from stamm.recipes.arm import Arm, ArmOverrides
from stamm.recipes.compare import Comparison, Tuning
from stamm.recipes.comparisons import claim
from stamm.recipes.matching import EqualParameters, EqualStart, LearnedScale, output_deviation

ARMS = (
    Arm(name="swiglu", ffn=GatedFFN(width=256, activation="swiglu")),
    Arm(name="relu2", ffn=PlainFFN(width=384, activation="relu2")),
    Arm(name="xielu", ffn=PlainFFN(width=384, activation="xielu")),
)


def comparison(scale: EqualStart | LearnedScale | None) -> Comparison:
    return claim(ARMS, "swiglu", matched=EqualParameters(scale=scale))


def measured_deviation(config: Comparison, name: str) -> tuple[float, float]:
    """Of the outputs of real blocks on normal inputs, and the norm of the last matrix's gradient."""
    model = config.runs()[name].model
    decoder = Decoder(model)
    decoder.initialise(seed=7)
    block = decoder.model.layers[1].mlp
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(4_096, model.d_model, generator=generator)
    y = block(x)
    (y * torch.randn(y.shape, generator=generator)).sum().backward()
    return float(y.detach().std()), float(block.down_proj.weight.grad.norm())


@pytest.mark.parametrize("deviation", [None, 0.6])
def test_blocks_of_all_arms_start_at_one_scale(deviation: float | None) -> None:
    config = comparison(EqualStart(deviation=deviation))
    assert from_plain(Comparison, to_plain(config)) == config
    wanted = deviation or output_deviation(comparison(None).runs()["swiglu"].model)
    norms = []
    for name in ("swiglu", "relu2", "xielu"):
        assert output_deviation(config.runs()[name].model) == pytest.approx(wanted, rel=1e-5)
        at_start, norm = measured_deviation(config, name)
        assert at_start == pytest.approx(wanted, rel=0.1)
        norms.append(norm * config.runs()[name].model.init_std)
    assert max(norms) < 1.1 * min(norms)


def test_what_is_not_matched_is_stated() -> None:
    runs = comparison(None).runs()
    stated = {name: output_deviation(run.model) for name, run in runs.items()}
    for name, deviation in stated.items():
        assert deviation == pytest.approx(measured_deviation(comparison(None), name)[0], rel=0.1)
    assert max(stated.values()) > 4 * min(stated.values())


def test_a_learned_scale_has_the_same_rate_in_all_arms() -> None:
    runs = comparison(LearnedScale(lr_factor=30.0)).runs()
    for name, run in runs.items():
        decoder = Decoder(run.model)
        shapes = {name: tuple(p.shape) for name, p in decoder.named_parameters()}
        factors = {
            parameter: (group.lr_factor, group.weight_decay)
            for group in grouped(run.optimizer, shapes)
            for parameter in group.sizes
        }
        scales = [key for key in factors if key.endswith("output_scale")]
        assert len(scales) == run.model.num_layers
        assert {factors[key] for key in scales} == {(30.0, 0.0)}
        others = {factors[key] for key in factors if ".act_fn." in key and key not in scales}
        assert others == ({(1.0, 0.0)} if name == "xielu" else set())


def test_a_structured_arm_has_no_scale_to_match() -> None:
    low_rank = Arm(name="low", ffn=PlainFFN(width=384, activation="gelu", linear=LowRank(rank=48)))
    arms = (Arm(name="gelu", ffn=PlainFFN(width=384, activation="gelu")), low_rank)
    with pytest.raises(ConfigError, match=r"arm low: the (width|scale) cannot be matched"):
        claim(arms, "gelu", matched=EqualParameters(scale=EqualStart()))


def test_an_arm_can_start_from_other_matrices() -> None:
    arms = (*ARMS, replace(ARMS[1], name="smaller", overrides=ArmOverrides(init_std=0.01)))
    runs = claim(arms, "swiglu").runs()
    assert runs["smaller"].model == replace(runs["relu2"].model, init_std=0.01)


def test_only_arms_with_shapes_try_their_rates() -> None:
    config = comparison(None)
    tuning = Tuning(rates=(1e-3, 2e-3), shape_factors=(1.0, 30.0), refinements=1)
    config = replace(config, tuning=tuning)
    runs = config.runs()
    assert [tuning.trials(runs[arm.name]) for arm in ARMS] == [4, 4, 6]
    trained = [step for step in config.steps() if step.name.startswith("tune.xielu.")]
    pairs = [
        (step.config.schedule.peak, step.config.optimizer.shape_lr_factor) for step in trained[:4]
    ]
    assert pairs == [(1e-3, 1.0), (2e-3, 1.0), (1e-3, 30.0), (2e-3, 30.0)]
    for factors, said in (((1.0,), "has one value"), ((1.0, 1.0), "has a factor twice")):
        with pytest.raises(ConfigError, match=said):
            Tuning(shape_factors=factors)


def test_arms_without_shapes_try_each_rate_once_beside_a_learned_scale() -> None:
    config = replace(
        comparison(LearnedScale(lr_factor=30.0)), tuning=Tuning(shape_factors=(1.0, 30.0))
    )
    runs = config.runs()
    assert [config.tuning.trials(runs[arm.name]) for arm in ARMS] == [5, 5, 8]


def test_one_activation_may_need_two_factors() -> None:
    wide = Arm(name="smaller", ffn=ARMS[1].ffn, overrides=ArmOverrides(init_std=0.02))
    config = claim((*ARMS, wide), "swiglu", matched=EqualParameters(scale=EqualStart()))
    specs = {name: run.model.ffn.spec.name for name, run in config.runs().items()}
    assert specs["relu2"] != specs["smaller"]
    assert len(config.steps()) > len(specs)


def test_an_activation_that_overflows_has_no_scale() -> None:
    arms = (ARMS[0], Arm(name="symexp", ffn=PlainFFN(width=384, activation="symexp")))
    base = claim(arms, "swiglu")
    model = replace(base.pretrain.model, init_std=4.0)
    large = replace(base, pretrain=replace(base.pretrain, model=model))
    assert output_deviation(large.runs()["symexp"].model) is None
    with pytest.raises(
        ConfigError, match="arm symexp: the scale cannot be matched: symexp overflows"
    ):
        replace(large, matched=EqualParameters(scale=EqualStart()))


def test_factors_that_no_arm_reads_are_refused() -> None:
    config = claim(ARMS[:2], "swiglu")
    with pytest.raises(ConfigError, match="no arm has trained shapes"):
        replace(config, tuning=Tuning(shape_factors=(1.0, 10.0)))
