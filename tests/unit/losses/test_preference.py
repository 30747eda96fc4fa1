"""Preference losses: published values, invariances, and a world whose optimum is known exactly."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from stamm.base.errors import ConfigError
from stamm.losses.preference import (
    dpo_loss,
    ipo_loss,
    kto_loss,
    qrpo_loss,
    rebel_loss,
    simpo_loss,
)
from stamm.losses.quantile import (
    beta_log_partition,
    empirical_beta_log_partition,
    quantile_rewards,
)

GENERATOR_SEED = 11


def drawn(*shape: int, seed: int = GENERATOR_SEED) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# What each loss is at one point, computed by hand from the published equations.
CHOSEN, REJECTED = torch.tensor([1.5]).double(), torch.tensor([-0.5]).double()
LENGTHS = torch.tensor([3.0]).double(), torch.tensor([2.0]).double()


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (lambda: dpo_loss(CHOSEN, REJECTED, beta=0.1), math.log1p(math.exp(-0.2))),
        (
            lambda: dpo_loss(CHOSEN, REJECTED, beta=0.1, label_smoothing=0.2),
            0.8 * math.log1p(math.exp(-0.2)) + 0.2 * math.log1p(math.exp(0.2)),
        ),
        (
            lambda: dpo_loss(
                CHOSEN, REJECTED, beta=5, chosen_length_B=LENGTHS[0], rejected_length_B=LENGTHS[1]
            ),
            math.log1p(math.exp(-5 * (1.5 / 3 + 0.5 / 2))),
        ),
        (
            lambda: ipo_loss(CHOSEN, REJECTED, *LENGTHS, beta=0.5),
            (1.5 / 3 + 0.5 / 2 - 1 / (2 * 0.5)) ** 2,
        ),
        (
            lambda: simpo_loss(-CHOSEN, REJECTED, *LENGTHS, beta=2.0, gamma=1.0),
            math.log1p(math.exp(-(2.0 * (-0.5 + 0.25) - 1.0))),
        ),
        (
            lambda: rebel_loss(CHOSEN, REJECTED, 3 * CHOSEN, CHOSEN, beta=0.5),
            (3.0 / 0.5 - 2.0) ** 2,
        ),
        (
            lambda: kto_loss(CHOSEN, torch.tensor([True]), 0.5, beta=0.1, desirable_weight=1.3),
            1.3 * (1 - 1 / (1 + math.exp(-0.1))),
        ),
        (
            lambda: kto_loss(CHOSEN, torch.tensor([False]), -2.0, beta=0.1),
            1 - 1 / (1 + math.exp(0.15)),
        ),
        (
            lambda: qrpo_loss(CHOSEN, torch.tensor([0.75]), beta=0.1, references=4).loss_B,
            (0.75 - float(beta_log_partition(0.1)) - 0.15) ** 2,
        ),
    ],
)
def test_values_are_those_of_the_published_equations(
    found: Callable[[], Tensor], wanted: float
) -> None:
    (value,) = found().tolist()
    assert value == pytest.approx(wanted, rel=1e-14)


def test_dpo_is_logistic_regression_on_the_margin() -> None:
    chosen, rejected = drawn(50, seed=1) * 30, drawn(50, seed=2) * 30
    margin = 0.3 * (chosen - rejected)
    for smoothing in (0.0, 0.1):
        target = torch.full_like(margin, 1 - smoothing)
        wanted = binary_cross_entropy_with_logits(margin, target, reduction="none")
        found = dpo_loss(chosen, rejected, beta=0.3, label_smoothing=smoothing)
        assert torch.allclose(found, wanted, rtol=1e-13)


def test_a_pair_is_two_samples_and_the_gradient_points_to_the_target() -> None:
    log_ratio = drawn(6).requires_grad_()
    quantile = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0, 1.0], dtype=torch.float64)
    found = qrpo_loss(log_ratio, quantile, beta=0.2, references=4)
    halves = [
        qrpo_loss(log_ratio[a:b], quantile[a:b], beta=0.2, references=4).loss_B
        for a, b in ((0, 3), (3, 6))
    ]
    assert torch.equal(torch.cat(halves), found.loss_B)
    (gradient,) = torch.autograd.grad(found.loss_B.sum(), log_ratio)
    assert torch.allclose(gradient, -2 * 0.2 * (found.target_B - 0.2 * log_ratio), rtol=1e-13)


def test_at_the_start_the_loss_is_that_of_the_targets_alone() -> None:
    quantile = torch.rand(9, dtype=torch.float64)
    found = qrpo_loss(torch.zeros(9), quantile, beta=0.01, references=10)
    assert torch.allclose(found.loss_B, (quantile - beta_log_partition(0.01)) ** 2, rtol=1e-15)


def test_monotone_maps_of_the_reward_change_qrpo_by_no_bit_and_rebel_by_much() -> None:
    reward, reference, log_ratio = drawn(8), drawn(8, 5, seed=3), drawn(8, seed=4)

    def qrpo(f: Callable[[Tensor], Tensor]) -> Tensor:
        q = quantile_rewards(f(reward), f(reference))
        return qrpo_loss(log_ratio, q, beta=0.03, references=5).loss_B

    for f in (torch.exp, lambda r: r**3, lambda r: 7 * r - 2):
        assert torch.equal(qrpo(f), qrpo(lambda r: r))
    first = rebel_loss(log_ratio[:4], log_ratio[4:], reward[:4], reward[4:], beta=0.1)
    other = rebel_loss(log_ratio[:4], log_ratio[4:], reward[:4].exp(), reward[4:].exp(), beta=0.1)
    assert not torch.allclose(first, other)
    shifted = rebel_loss(log_ratio[:4], log_ratio[4:], reward[:4] + 5, reward[4:] + 5, beta=0.1)
    assert torch.allclose(first, shifted)


def test_length_normalisation_is_a_beta_of_each_sample() -> None:
    log_ratio, length = drawn(3), torch.tensor([10, 50, 500])
    quantile = torch.tensor([0.1, 0.5, 1.0]).double()
    found = qrpo_loss(
        log_ratio,
        quantile,
        beta=5.0,
        references=10,
        length_B=length,
        normalize="beta",
        largest_beta=0.1,
    )
    assert found.beta_B.tolist() == [0.1, 0.1, 0.01]
    for n, beta in enumerate((0.1, 0.1, 0.01)):
        alone = qrpo_loss(log_ratio[n : n + 1], quantile[n : n + 1], beta=beta, references=10)
        assert torch.equal(alone.loss_B, found.loss_B[n : n + 1])
    divided = qrpo_loss(
        log_ratio, quantile, beta=0.1, references=10, length_B=length, normalize="loss"
    )
    whole = qrpo_loss(log_ratio, quantile, beta=0.1, references=10)
    assert torch.allclose(divided.loss_B * length, whole.loss_B)
    with pytest.raises(ConfigError, match="without the lengths"):
        qrpo_loss(log_ratio, quantile, beta=0.1, references=10, normalize="beta")


def test_partitions_are_chosen_by_name() -> None:
    log_ratio, quantile = drawn(2), torch.tensor([0.2, 0.9]).double()
    with pytest.raises(ConfigError, match="released partition function is wrong by"):
        qrpo_loss(log_ratio, quantile, beta=1.0, references=4, partition="released")
    with pytest.raises(ConfigError, match="transform log"):
        qrpo_loss(
            log_ratio, quantile, beta=0.1, references=4, transform="log", partition="released"
        )
    anyway = qrpo_loss(log_ratio, quantile, beta=1.0, references=4, partition="released_anyway")
    exact = qrpo_loss(log_ratio, quantile, beta=1.0, references=4)
    assert torch.allclose(
        exact.target_B - anyway.target_B, torch.tensor(0.4587).double(), atol=1e-4
    )


class World:
    """One prompt with K answers: pi_ref, rewards and the exact optimum are known."""

    def __init__(self, answers: int, seed: int = 0, ties: int = 0) -> None:
        self.reference = drawn(answers, seed=seed).softmax(dim=0)
        reward = drawn(answers, seed=seed + 1)
        self.reward = (reward * ties).round() if ties else reward

    def quantile(self, ties: str) -> Tensor:
        below = (self.reward[None, :] < self.reward[:, None]).double() @ self.reference
        equal = (self.reward[None, :] == self.reward[:, None]).double() @ self.reference
        return below + equal * (1.0 if ties == "le" else 0.5)

    def optimum(self, value: Tensor, beta: float) -> Tensor:
        return (self.reference.log() + value / beta).softmax(dim=0)

    def trained(self, loss: Callable[[Tensor], Tensor], steps: int = 200) -> Tensor:
        """The policy that minimises a loss of its log-ratios."""
        logits = self.reference.log().clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [logits],
            max_iter=steps,
            tolerance_grad=1e-14,
            tolerance_change=0,
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = loss(logits.log_softmax(dim=0) - self.reference.log())
            value.backward()
            return value

        for _ in range(6):
            optimizer.step(closure)
        return logits.detach().softmax(dim=0)


def distance(one: Tensor, other: Tensor) -> float:
    """Total variation."""
    return 0.5 * (one - other).abs().sum().item()


@pytest.mark.parametrize("ties", ["le", "mid"])
@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_qrpo_reaches_its_closed_form_optimum_from_single_answers(ties: str, beta: float) -> None:
    world = World(16)
    q = world.quantile(ties)
    log_z = beta * torch.log((world.reference * (q / beta).exp()).sum())

    def loss(log_ratio: Tensor) -> Tensor:
        each = qrpo_loss(log_ratio, q, beta=beta, references=16, beta_log_z_B=log_z.expand(16))
        return (world.reference * each.loss_B).sum()

    assert distance(world.trained(loss), world.optimum(q, beta)) < 1e-6


def test_the_closed_partition_function_is_right_as_atoms_vanish() -> None:
    """With K equal atoms the distance to the optimum falls, with mid-ranks faster than with <=."""
    found = {}
    for ties in ("le", "mid"):
        for answers in (8, 64):
            world = World(answers)
            world.reference = torch.full((answers,), 1 / answers, dtype=torch.float64)
            q = world.quantile(ties)

            def loss(log_ratio: Tensor, world: World = world, q: Tensor = q) -> Tensor:
                each = qrpo_loss(log_ratio, q, beta=0.1, references=len(q))
                return (world.reference * each.loss_B).sum()

            found[ties, answers] = distance(world.trained(loss), world.optimum(q, 0.1))
    assert found["le", 64] < found["le", 8] / 3
    assert found["mid", 64] < found["le", 64] / 10
    assert found["mid", 64] < 1e-3


def test_from_the_same_answers_dpo_and_rebel_reach_other_policies() -> None:
    """DPO with hard labels diverges from every tilt; REBEL with all pairs tilts by the raw reward."""
    world, beta = World(8), 0.5
    q = world.quantile("le")
    pairs = [(i, j) for i in range(8) for j in range(8) if world.reward[i] > world.reward[j]]
    better, worse = torch.tensor(pairs).T

    def rebel(log_ratio: Tensor) -> Tensor:
        rewards = world.reward[better], world.reward[worse]
        return rebel_loss(log_ratio[better], log_ratio[worse], *rewards, beta=beta).mean()

    found = world.trained(rebel)
    assert distance(found, world.optimum(world.reward, beta)) < 1e-6
    assert distance(found, world.optimum(q, beta)) > 0.1

    def dpo(log_ratio: Tensor) -> Tensor:
        return dpo_loss(log_ratio[better], log_ratio[worse], beta=beta).mean()

    best = world.trained(dpo)
    assert best[world.reward.argmax()] > 0.999
    assert distance(best, world.optimum(q, beta)) > 0.1


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_binary_rewards_are_pushed_by_the_odds_that_the_rule_of_ties_says(rate: float) -> None:
    """The odds of passing rise by e^(p / beta) with <=, by e^(1 / (2 beta)) with mid-ranks."""
    beta = 0.5
    world = World(2)
    world.reference = torch.tensor([rate, 1 - rate], dtype=torch.float64)
    world.reward = torch.tensor([1.0, 0.0], dtype=torch.float64)
    for ties, wanted in (("le", math.exp(rate / beta)), ("mid", math.exp(1 / (2 * beta)))):
        q = world.quantile(ties)
        log_z = empirical_beta_log_partition(
            beta, q[None] + beta * (2 * world.reference).log()[None]
        )

        def loss(log_ratio: Tensor, q: Tensor = q, log_z: Tensor = log_z) -> Tensor:
            each = qrpo_loss(log_ratio, q, beta=beta, references=2, beta_log_z_B=log_z.expand(2))
            return (world.reference * each.loss_B).sum()

        found = world.trained(loss)
        odds = (found[0] / found[1]) / (rate / (1 - rate))
        assert odds.item() == pytest.approx(wanted, rel=1e-5)


def test_the_log_transform_is_best_of_n() -> None:
    """At beta = 1/(N - 1) the optimum is the distribution of the best of N independent draws."""
    n, answers = 4, 2000
    q = torch.arange(1, answers + 1, dtype=torch.float64) / answers
    beta = 1 / (n - 1)
    tilted = torch.softmax(q.log() / beta, dim=0)
    best_of_n = q**n - (q - 1 / answers) ** n
    assert distance(tilted, best_of_n) < 1e-3
    assert math.exp(float(beta_log_partition(beta, "log")) / beta) == pytest.approx(
        1 / n, rel=1e-14
    )
