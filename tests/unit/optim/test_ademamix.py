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
from stamm.optim.groups import parameter_groups, set_learning_rate

STEPS = 500


def _half_life(beta: float) -> float:
    return math.log(0.5) / math.log(beta + 1e-8) - 1


class Oracle:
    """The update in float64, on one array: the paper's, with the guard of its authors' code."""

    def __init__(self, config: AdEMAMix, start: np.ndarray, total: int) -> None:
        self.config, self.total, self.t = config, total, 0
        self.p = start.astype(np.float64)
        self.fast, self.slow, self.square = (np.zeros_like(self.p) for _ in range(3))

    def _shares(self) -> list[float]:
        """How far the warm-ups of alpha and beta3 have come."""
        asked = (self.config.alpha_warmup_steps, self.config.beta3_warmup_steps)
        lengths = [self.total if steps is None else steps for steps in asked]
        return [1.0 if length == 0 else min(self.t / length, 1.0) for length in lengths]

    def step(self, g: np.ndarray, lr: float, decay: float) -> None:
        config = self.config
        self.t += 1
        alpha_share, share = self._shares()
        half = (1 - share) * _half_life(config.beta1) + share * _half_life(config.beta3)
        beta3 = min(0.5 ** (1 / (half + 1)), config.beta3)
        self.fast = config.beta1 * self.fast + (1 - config.beta1) * g
        self.slow = beta3 * self.slow + (1 - beta3) * g
        self.square = config.beta2 * self.square + (1 - config.beta2) * g * g
        mean = self.fast / (1 - config.beta1**self.t) + config.alpha * alpha_share * self.slow
        scale = np.sqrt(self.square) / math.sqrt(1 - config.beta2**self.t) + config.eps
        self.p = self.p - lr * (mean / scale + decay * self.p)


def _gradients(count: int, size: int) -> list[np.ndarray]:
    random = np.random.RandomState(1)
    return [
        (random.randn(size) * (1 + 0.5 * math.sin(t / 20))).astype(np.float32) for t in range(count)
    ]


@pytest.mark.parametrize("implementation", ["foreach", "auto"])
@pytest.mark.parametrize(
    ("alpha_steps", "beta3_steps", "eps"),
    [(None, None, 1e-8), (0, 0, 0.7), (100, 300, 0.3), (0, None, 1e-8), (2000, 0, 1e-8)],
)
def test_five_hundred_steps_follow_the_oracle(
    implementation: Any, alpha_steps: int | None, beta3_steps: int | None, eps: float
) -> None:
    """Two groups with their own rates and decays, the rate changing from step to step.

    Where eps is large it shows where it stands: beside the corrected root, and not before it.
    """
    config = AdEMAMix(
        beta3=0.9995,
        alpha_warmup_steps=alpha_steps,
        beta3_warmup_steps=beta3_steps,
        eps=eps,
        implementation=implementation,
    )
    starts = [np.random.RandomState(k).randn(37).astype(np.float32) for k in range(2)]
    parameters = [nn.Parameter(torch.tensor(start)) for start in starts]
    factors, decays = (1.0, 0.25), (0.1, 0.0)
    groups = [
        {"params": [p], "weight_decay": decay, "lr_factor": factor}
        for p, factor, decay in zip(parameters, factors, decays, strict=True)
    ]
    optimizer = AdEMAMixOptimizer(groups, config, total_steps=STEPS)
    oracles = [Oracle(config, start, STEPS) for start in starts]
    for t, gradient in enumerate(_gradients(STEPS, 37)):
        rate = 1e-2 * min((t + 1) / 50, 1.0)
        set_learning_rate(optimizer, rate)
        for p, oracle, factor, decay in zip(parameters, oracles, factors, decays, strict=True):
            p.grad = torch.tensor(gradient)
            oracle.step(gradient.astype(np.float64), rate * factor, decay)
        optimizer.step()
    for p, oracle, start in zip(parameters, oracles, starts, strict=True):
        state = optimizer.state[p]
        # beta2 is rounded to float32, which is 3e-8 / (1 - beta2) of the square at most.
        for name, exact, limit in (
            ("fast", oracle.fast, 1e-6),
            ("slow", oracle.slow, 3e-6),
            ("square", oracle.square, 3e-5),
        ):
            found = state[name].numpy()
            assert np.abs(found - exact).max() < limit * np.abs(exact).max(), name
        walked = np.abs(oracle.p - start).max()
        assert walked > 0.1
        # The walk is summed up in float32: a random half of a unit in the last place at each step.
        limit = 5 * math.sqrt(STEPS) * 2.0**-25 * np.abs(oracle.p).max()
        assert np.abs(p.detach().numpy() - oracle.p).max() < limit < 1e-4 * walked


def test_the_slow_average_keeps_its_digits_where_beta3_has_few_left() -> None:
    """beta3 itself is off by up to 3e-8 in float32, which would be 3e-3 of a constant gradient."""
    config = AdEMAMix(beta3=0.99999, beta3_warmup_steps=0)
    p = nn.Parameter(torch.zeros(1))
    optimizer = AdEMAMixOptimizer([p], config, total_steps=1)
    for _ in range(3000):
        p.grad = torch.full((1,), 0.3)
        optimizer.step()
    exact = 0.3 * (1 - 0.99999**3000)
    assert optimizer.state[p]["slow"].item() == pytest.approx(exact, rel=2e-5)


@pytest.mark.parametrize("implementation", ["foreach", "auto"])
def test_a_run_resumed_in_the_middle_has_the_same_bits(implementation: Any) -> None:
    config = AdEMAMix(implementation=implementation)
    gradients = [torch.tensor(g) for g in _gradients(40, 21)]

    def trained(state: dict[str, Any] | None, p: nn.Parameter, steps: slice) -> dict[str, Any]:
        optimizer = AdEMAMixOptimizer([p], config, total_steps=40, lr=1e-3)
        if state is not None:
            optimizer.load_state_dict(state)
        for gradient in gradients[steps]:
            p.grad = gradient.clone()
            optimizer.step()
        return optimizer.state_dict()

    whole, halves = (nn.Parameter(torch.linspace(-1, 1, 21)) for _ in range(2))
    first = trained(None, whole, slice(0, 40))
    second = trained(trained(None, halves, slice(0, 17)), halves, slice(17, 40))
    assert torch.equal(whole, halves)
    assert first["param_groups"][0]["step"] == second["param_groups"][0]["step"] == 40
    for name in ("fast", "slow", "square"):
        assert torch.equal(first["state"][0][name], second["state"][0][name])


def test_a_group_counts_the_steps_in_which_it_had_no_gradient() -> None:
    """Warm-ups follow the run: what joins at its eighth step has the numbers of the eighth."""
    config, start = AdEMAMix(), np.linspace(-1, 1, 5).astype(np.float32)
    p = nn.Parameter(torch.tensor(start))
    optimizer = AdEMAMixOptimizer([p], config, total_steps=10, lr=1e-2)
    for _ in range(7):
        optimizer.step()
    assert torch.equal(p, torch.tensor(start)) and not optimizer.state[p]
    oracle = Oracle(config, start, 10)
    oracle.t = 7
    for gradient in _gradients(3, 5):
        p.grad = torch.tensor(gradient)
        optimizer.step()
        oracle.step(gradient.astype(np.float64), 1e-2, config.weight_decay)
    np.testing.assert_allclose(p.detach().numpy(), oracle.p, rtol=0, atol=1e-6)


@pytest.mark.parametrize("beta2", [0.95, 0.999])
def test_a_weight_without_gradients_moves_as_far_as_is_told(beta2: float) -> None:
    """One gradient, then none: the update grows past the learning rate after the number of steps it says, or falls."""
    config = AdEMAMix(
        beta2=beta2, beta3=0.999, alpha=1.0, alpha_warmup_steps=0, beta3_warmup_steps=0,
        eps=1e-30, weight_decay=0.0,
    )  # fmt: skip
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float32))
    optimizer = AdEMAMixOptimizer([weight], config, total_steps=400, lr=1.0)
    moved = []
    for step in range(400):
        weight.grad = torch.full((1,), float(step == 0))
        before = weight.detach().clone()
        optimizer.step()
        moved.append(abs(float(weight.detach() - before)))
    reached = config.steps_to_full_update()
    if beta2 == 0.999:
        assert reached is None
        assert max(moved[200:]) < 0.04
    else:
        assert reached == 220
        # m1 is gone, and 1 - beta2^k is 1 to 1e-5
        assert moved[reached] >= 1 > moved[reached - 2]
        assert moved[399] > 50


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_other_than_32_bits_are_refused(dtype: torch.dtype) -> None:
    told = str(dtype).removeprefix("torch.")
    with pytest.raises(ConfigError, match=f"parameter number 1 is stored as {told}, and there are"):
        AdEMAMixOptimizer(
            [nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4, dtype=dtype))],
            AdEMAMix(),
            total_steps=2,
        )


@pytest.mark.parametrize("config", [AdamW(), AdEMAMix()])
def test_a_model_in_bfloat16_is_refused_by_the_name_of_a_parameter(config: Any) -> None:
    model = _Model().bfloat16()
    with pytest.raises(ConfigError, match=r"parameter embed_tokens\.weight is stored as bfloat16"):
        build_optimizer(config, model, total_steps=1)


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
    decayed, free = parameter_groups(model, AdamW())
    assert decayed["params"] == [model.embed_tokens.weight]
    assert len(free["params"]) == 3
    assert free["weight_decay"] == 0.0


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
        (AdEMAMix, "eps", 1e-46),  # 0 in float32: a weight that has had no gradient became NaN
        (AdEMAMix, "alpha", math.inf),
        (AdEMAMix, "implementation", "cuda"),
        (AdEMAMix, "alpha_warmup_steps", -5),
        (AdEMAMix, "beta3_warmup_steps", -5),
        (AdEMAMix, "beta3", 1 - 1e-8),  # its half-life divided by zero
    ],
)
def test_a_number_out_of_range_is_told(
    kind: type[AdamW] | type[AdEMAMix], field: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=rf"{kind.__name__}\.{field} = {value!r} must "):
        kind(**{field: value})


def test_the_largest_beta3_has_a_half_life() -> None:
    config = AdEMAMix(beta3=1 - 1e-7)
    assert config.beta1 < config.beta3_at(1, 1000) < config.beta3_at(500, 1000) < config.beta3
