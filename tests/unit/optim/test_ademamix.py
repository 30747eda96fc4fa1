"""AdEMAMix step by step against a float64 oracle written from the paper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stamm.base.errors import ConfigError
from stamm.optim.ademamix import AdEMAMixOptimizer
from stamm.optim.build import build_optimizer
from stamm.optim.config import AdamW, AdEMAMix
from stamm.optim.groups import parameter_groups

STEPS = 300


def _oracle(
    config: AdEMAMix, start: np.ndarray, gradients: list[np.ndarray], lr: float
) -> np.ndarray:
    p = start.astype(np.float64)
    fast, slow, square = (np.zeros_like(p) for _ in range(3))
    total = len(gradients)
    for t, g in enumerate(gradients, start=1):
        share = min(t / total, 1.0)
        alpha = config.alpha * share
        low, high = math.log(config.beta1), math.log(config.beta3)
        # The closed form of the paper; the reference code's half-lives say the same.
        beta3 = min(math.exp(low * high / ((1 - share) * high + share * low)), config.beta3)
        fast = config.beta1 * fast + (1 - config.beta1) * g
        slow = beta3 * slow + (1 - beta3) * g
        square = config.beta2 * square + (1 - config.beta2) * g * g
        mean = fast / (1 - config.beta1**t) + alpha * slow
        scale = np.sqrt(square / (1 - config.beta2**t)) + config.eps
        p = p - lr * (mean / scale + config.weight_decay * p)
    return p


def test_three_hundred_steps_follow_the_oracle() -> None:
    config = AdEMAMix(beta3=0.999, alpha=8.0)
    random = np.random.RandomState(0)
    start = random.randn(50)
    gradients = [random.randn(50) * (1 + 0.5 * math.sin(t / 20)) for t in range(STEPS)]
    parameter = nn.Parameter(torch.tensor(start, dtype=torch.float32))
    optimizer = AdEMAMixOptimizer([parameter], config, total_steps=STEPS, lr=1e-2)
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient, dtype=torch.float32)
        optimizer.step()
    expected = _oracle(config, start, gradients, 1e-2)
    assert np.abs(parameter.detach().numpy() - expected).max() < 2e-4
    assert np.abs(expected - start).max() > 0.5  # the walk went somewhere


def test_without_the_slow_average_it_is_adamw() -> None:
    ours = nn.Parameter(torch.linspace(-1, 1, 9))
    theirs = nn.Parameter(torch.linspace(-1, 1, 9))
    config = AdEMAMix(alpha=0.0, beta2=0.95, weight_decay=0.1)
    mine = AdEMAMixOptimizer([ours], config, total_steps=40, lr=1e-2)
    adam = torch.optim.AdamW([theirs], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(40):
        gradient = torch.sin(torch.arange(9.0) + step)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        adam.step()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


def test_warm_ups_start_and_end_where_they_should() -> None:
    config = AdEMAMix(beta1=0.9, beta3=0.9999, alpha=8.0, alpha_warmup_steps=100)
    assert config.alpha_at(50, 1000) == 4.0
    assert config.alpha_at(500, 1000) == 8.0
    assert config.beta3_at(1, 100_000) == pytest.approx(0.9, abs=2e-3)
    assert config.beta3_at(100_000, 100_000) == 0.9999
    halves = [math.log(0.5) / math.log(config.beta3_at(t, 1000)) for t in range(1, 1000)]
    steps = np.diff(halves)
    assert steps.std() < 1e-2 * steps.mean()  # linear in half-life


def test_a_warm_up_of_no_steps_is_none_and_not_the_whole_run() -> None:
    config = AdEMAMix(alpha=8.0, alpha_warmup_steps=0, beta3_warmup_steps=0)
    assert config.alpha_at(1, 1000) == 8.0
    assert config.beta3_at(1, 1000) == config.beta3


def test_bfloat16_parameters_keep_float32_moments() -> None:
    parameter = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = AdEMAMixOptimizer([parameter], AdEMAMix(), total_steps=2, lr=0.1)
    parameter.grad = torch.ones(4, dtype=torch.bfloat16)
    optimizer.step()
    assert {value.dtype for value in optimizer.state[parameter].values()} == {torch.float32}
    assert (parameter < 1).all()


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(4, 4)
        self.norm = nn.LayerNorm(4)
        self.mlp = nn.Module()
        self.mlp.act_fn = nn.Module()
        self.mlp.act_fn.alpha_p = nn.Parameter(torch.zeros(1))


def test_norms_and_activation_shapes_do_not_decay() -> None:
    model = _Model()
    decayed, free = parameter_groups(model, 0.1)
    assert decayed["params"] == [model.embed_tokens.weight]
    assert len(free["params"]) == 3
    assert free["weight_decay"] == 0.0


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'lm_heed' matches no parameter"):
        parameter_groups(_Model(), 0.1, no_decay=["lm_heed"])


@pytest.mark.parametrize("config", [AdamW(), AdEMAMix()])
def test_a_configuration_builds_its_optimizer(config: AdamW | AdEMAMix) -> None:
    optimizer = build_optimizer(config, _Model(), total_steps=10)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"beta3 = 0\.5 must lie in \[beta1, 1 - 1e-7\]"):
        AdEMAMix(beta3=0.5)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (AdamW, "weight_decay", math.nan),
        (AdamW, "weight_decay", -0.1),
        (AdamW, "eps", math.inf),
        (AdEMAMix, "weight_decay", math.nan),
        (AdEMAMix, "eps", math.inf),
        (AdEMAMix, "alpha", math.inf),
        (AdEMAMix, "alpha_warmup_steps", -5),
        (AdEMAMix, "beta3_warmup_steps", -5),
        (AdEMAMix, "beta3", 1 - 1e-8),  # its half-life divided by zero
    ],
)
def test_a_number_out_of_range_is_told(
    kind: type[AdamW] | type[AdEMAMix], field: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=rf"{kind.__name__}\.{field} = {value} must "):
        kind(**{field: value})


def test_the_largest_beta3_has_a_half_life() -> None:
    config = AdEMAMix(beta3=1 - 1e-7)
    assert config.beta1 < config.beta3_at(1, 1000) < config.beta3_at(500, 1000) < config.beta3
