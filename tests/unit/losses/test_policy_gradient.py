"""The policy gradient against the published formulas in plain Python floats, and gradients by hand."""

from __future__ import annotations

import math
import random
import statistics

import pytest
import torch

from stamm.base.errors import ConfigError
from stamm.losses.policy_gradient import (
    answer_weights,
    are_equal,
    group_advantages,
    overlong_penalty,
    policy_loss,
)
from stamm.losses.preference_types import TokenAverage

LOW, HIGH, BETA, LONGEST = 0.2, 0.28, 0.04, 12
LENGTHS = (3, 12, 1, 7)


def case(seed: int = 4) -> tuple[list[int], list[float], list[float], list[float], list[float]]:
    """Owner, log-probability now, when sampled, and of the reference, of each token; advantages."""
    draw = random.Random(seed)
    owner = [b for b, length in enumerate(LENGTHS) for _ in range(length)]
    new = [draw.uniform(-4, -0.1) for _ in owner]
    old = [value + draw.gauss(0, 0.3) for value in new]
    reference = [value + draw.gauss(0, 0.5) for value in new]
    return owner, new, old, reference, group_advantages([0.0, 1.0, 0.25, 0.5])


def by_hand(average: TokenAverage) -> tuple[float, list[float], int]:
    """The loss of the step, its gradient by the log-probabilities, and the clipped tokens."""
    owner, new, old, reference, advantage = case()
    total, gradient, clipped = 0.0, [], 0
    for b, now, before, ref in zip(owner, new, old, reference, strict=True):
        a, ratio = advantage[b], math.exp(now - before)
        bounded = min(max(ratio, 1 - LOW), 1 + HIGH)
        k3 = math.exp(ref - now) - (ref - now) - 1
        weight = {
            "answer": 1 / LENGTHS[b] / len(LENGTHS),
            "token": 1 / len(owner),
            "longest": 1 / LONGEST / len(LENGTHS),
        }[average]
        total += weight * (-min(ratio * a, bounded * a) + BETA * k3)
        is_clipped = (a > 0 and ratio > 1 + HIGH) or (a < 0 and ratio < 1 - LOW)
        clipped += is_clipped
        slope = 0.0 if is_clipped else -a * ratio
        gradient.append(weight * (slope + BETA * (1 - math.exp(ref - now))))
    return total, gradient, clipped


@pytest.mark.parametrize("average", ["answer", "token", "longest"])
def test_loss_and_gradient_are_the_formulas(average: TokenAverage) -> None:
    owner, new, old, reference, advantage = case()
    log_prob = torch.tensor(new, dtype=torch.float64, requires_grad=True)
    index = torch.tensor(owner)
    found = policy_loss(
        log_prob,
        torch.tensor(old, dtype=torch.float64),
        torch.tensor(advantage, dtype=torch.float64)[index],
        clip_low=LOW,
        clip_high=HIGH,
        reference_log_prob_N=torch.tensor(reference, dtype=torch.float64),
        beta=BETA,
    )
    weight = answer_weights(torch.tensor(LENGTHS), average, LONGEST)[index]
    loss = (found.loss_N * weight).sum() / (len(owner) if average == "token" else len(LENGTHS))
    (gradient,) = torch.autograd.grad(loss, log_prob)
    expected, slopes, clipped = by_hand(average)
    assert loss.item() == pytest.approx(expected, rel=1e-13)
    assert gradient.tolist() == pytest.approx(slopes, rel=1e-12, abs=1e-15)
    assert 0 < int(found.clipped_N.sum()) == clipped < len(owner)


def test_on_its_own_rollout_the_gradient_is_that_of_reinforce() -> None:
    log_prob = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    advantage = torch.tensor([2.0, -3.0, 0.0], dtype=torch.float64)
    found = policy_loss(log_prob, log_prob, advantage, clip_low=0.2, clip_high=0.2)
    assert found.loss_N.tolist() == [-2.0, 3.0, 0.0] and not found.clipped_N.any()
    (gradient,) = torch.autograd.grad(found.loss_N.sum(), log_prob)
    assert gradient.tolist() == [-2.0, 3.0, 0.0]


def test_kl_is_0_at_the_reference_and_its_gradient_too() -> None:
    log_prob = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    nothing = torch.zeros(2, dtype=torch.float64)
    given = {"clip_low": 0.2, "clip_high": 0.2, "beta": 1.0}
    found = policy_loss(log_prob, log_prob, nothing, reference_log_prob_N=log_prob, **given)
    (gradient,) = torch.autograd.grad(found.loss_N.sum(), log_prob)
    assert found.kl_N.tolist() == gradient.tolist() == [0.0, 0.0]
    with pytest.raises(ConfigError, match="reference_log_prob_N"):
        policy_loss(log_prob, log_prob, nothing, **given)


def test_advantages_divide_by_the_standard_deviation_with_g_minus_1() -> None:
    rewards = [0.0, 1.0, 0.25, 0.5, 0.5]
    mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
    assert group_advantages(rewards) == pytest.approx(
        [(r - mean) / std for r in rewards], rel=1e-14
    )
    assert group_advantages(rewards, "none") == pytest.approx(
        [r - mean for r in rewards], abs=1e-16
    )
    # No constant is added to the standard deviation: the scale of rewards does not count.
    small = group_advantages([1e-6 * r + 7 for r in rewards])
    assert small == pytest.approx(group_advantages(rewards), rel=1e-6)


@pytest.mark.parametrize("rewards", [[0.1 + 0.2, 0.3], [1.0] * 8, [-5.0], [0.0, 0.0]])
def test_equal_rewards_have_no_advantage(rewards: list[float]) -> None:
    assert are_equal(rewards) and group_advantages(rewards) == [0.0] * len(rewards)
    assert not are_equal([0.0, 1e-30]) and not are_equal([1.0, 1.0001])


def test_the_overlong_penalty_is_that_of_dapo() -> None:
    """Equation 13: 0, then ((L_max - L_cache) - |y|) / L_cache, then -1."""
    found = [
        overlong_penalty(length, 20_480, 4096) for length in (1, 16_384, 18_432, 20_480, 30_000)
    ]
    assert found == [0.0, 0.0, -0.5, -1.0, -1.0]
