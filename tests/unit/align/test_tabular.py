"""Tabular policies with known optima: what QRPO and its rivals reach from the same offline rows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stamm.losses.preference import qrpo_loss
from stamm.losses.quantile import Ties, quantile_rewards
from tools import tabular_alignment
from tools.tabular_alignment import (
    BETA,
    TabularPrompts,
    drawn_prompts,
    drawn_rows,
    exact_pairs,
    expected_distance,
    pairwise,
    qrpo_exact,
    qrpo_of_rows,
    sampled_pairs,
    total_variation,
    trained,
)


@pytest.fixture(scope="module")
def prompts() -> TabularPrompts:
    return drawn_prompts(prompts=2, answers=12)


@pytest.mark.parametrize("ties", ["le", "mid"])
def test_with_exact_quantiles_qrpo_reaches_its_optimum(prompts: TabularPrompts, ties: Ties) -> None:
    """From answers of another policy, which are weighted otherwise than by pi_ref."""
    assert total_variation(prompts.data, prompts.reference) > 0.2
    goal = prompts.optimum(prompts.quantile(ties))
    assert total_variation(goal, prompts.reference) > 0.1
    found = trained(prompts, qrpo_exact(prompts, ties))
    assert total_variation(found, goal) < 1e-6


def test_from_finite_rows_and_estimated_quantiles_qrpo_reaches_its_optimum() -> None:
    """With the closed form of the partition function and mid-ranks; to the noise of the quantiles."""
    world, beta, rows, references = drawn_prompts(prompts=1, answers=32), 1.0, 40_000, 64
    data = drawn_rows(world, rows, references)
    found = trained(world, qrpo_of_rows(world, data, beta=beta), rounds=1)
    distance = total_variation(found, world.optimum(world.quantile(), beta))
    assert distance < 1e-3
    assert distance < 2 * expected_distance(world, rows * references * world.data) * BETA / beta


def test_the_noise_of_few_references_averages_out_over_rows() -> None:
    """Equal products of rows and references: one reference of each row is as good as sixteen."""
    world = drawn_prompts(prompts=1, answers=12)
    goal = world.optimum(world.quantile())
    for rows, references in ((64_000, 1), (4_000, 16)):
        data = drawn_rows(world, rows, references)
        noise = expected_distance(world, 64_000 * world.data)
        closed = total_variation(trained(world, qrpo_exact_closed(world)), goal)
        found = trained(world, qrpo_of_rows(world, data), rounds=1)
        assert total_variation(found, goal) < 2 * noise + closed
    shared = drawn_rows(world, 64_000, 1, shared=True)
    found = trained(world, qrpo_of_rows(world, shared), rounds=1)
    assert total_variation(found, goal) > 0.05


def qrpo_exact_closed(world: TabularPrompts) -> tabular_alignment.Loss:
    """Exact quantiles and the closed form, which is not exact for 12 answers."""
    quantile = world.quantile()

    def loss(log_ratio: Tensor) -> Tensor:
        each = qrpo_loss(log_ratio.flatten(), quantile.flatten(), beta=BETA, references=12)
        return (world.data.flatten() * each.loss_B).sum()

    return loss


def test_answers_without_a_row_share_the_rest(prompts: TabularPrompts) -> None:
    """Probabilities sum to 1, so that the loss determines the mass of what is not in the data."""
    left_out = torch.zeros_like(prompts.data, dtype=torch.bool)
    left_out[:, :3] = True
    data = prompts.data.masked_fill(left_out, 0)
    world = TabularPrompts(prompts.reference, data, prompts.reward)
    found = trained(world, qrpo_exact(world))
    goal = world.optimum(world.quantile())
    assert torch.allclose(found[~left_out], goal[~left_out], atol=1e-6)
    assert torch.allclose(found[:, :3].sum(dim=1), goal[:, :3].sum(dim=1), atol=1e-6)
    assert total_variation(found, goal) > 1e-3


def test_rivals_reach_other_optima_from_the_same_answers(prompts: TabularPrompts) -> None:
    tilted = prompts.optimum(prompts.reward)
    under_data = prompts.optimum(prompts.quantile(under=prompts.data))
    for name, bradley_terry, optimum in (
        ("REBEL", False, tilted),
        ("DPO", True, tilted),
        ("IPO", False, under_data),
    ):
        found = trained(prompts, pairwise(name, prompts, exact_pairs(prompts, bradley_terry)))
        assert total_variation(found, optimum) < 1e-6, name
    goal = prompts.optimum(prompts.quantile())
    assert total_variation(tilted, goal) > 0.2
    assert total_variation(under_data, goal) > 0.01


def test_ipo_on_pairs_of_the_reference_policy_is_qrpo(prompts: TabularPrompts) -> None:
    world = TabularPrompts(prompts.reference, prompts.reference, prompts.reward)
    ipo = trained(world, pairwise("IPO", world, exact_pairs(world, False)))
    assert total_variation(ipo, trained(world, qrpo_exact(world))) < 1e-6


@pytest.mark.parametrize("name", ["DPO", "SimPO"])
def test_hard_labels_have_no_optimum(prompts: TabularPrompts, name: str) -> None:
    found = trained(prompts, pairwise(name, prompts, exact_pairs(prompts, False)))
    best = found.gather(1, prompts.reward.argmax(dim=1, keepdim=True))
    assert best.min() > 0.999


def test_the_optimum_of_simpo_does_not_depend_on_the_reference_policy(
    prompts: TabularPrompts,
) -> None:
    pairs = exact_pairs(prompts, True)
    other = TabularPrompts(prompts.reference.flip(1), prompts.data, prompts.reward)
    first, second = (trained(world, pairwise("SimPO", world, pairs)) for world in (prompts, other))
    assert total_variation(first, second) < 1e-6
    first, second = (trained(world, pairwise("DPO", world, pairs)) for world in (prompts, other))
    assert total_variation(first, second) > 0.1


def test_a_monotone_map_of_the_rewards_changes_no_bit_of_qrpo_and_of_hard_labels(
    prompts: TabularPrompts,
) -> None:
    """All but REBEL and DPO with Bradley-Terry labels train to the same bits."""
    slope = torch.tensor([[3.0], [0.1]], dtype=torch.float64)
    for reward in (prompts.reward.exp(), slope * prompts.reward - 7, prompts.reward**3):
        mapped = TabularPrompts(prompts.reference, prompts.data, reward)
        rows, other = (drawn_rows(world, 500, 3) for world in (prompts, mapped))
        policies = []
        for world, data in ((prompts, rows), (mapped, other)):
            losses = [qrpo_of_rows(world, data)]
            hard = sampled_pairs(world, data, bradley_terry=False)
            losses += [pairwise(name, world, hard) for name in ("IPO", "DPO", "SimPO")]
            policies.append([trained(world, loss, rounds=1) for loss in losses])
        for one, same in zip(*policies, strict=True):
            assert torch.equal(one, same)
        rebel, changed = (
            trained(world, pairwise("REBEL", world, exact_pairs(world, False)))
            for world in (prompts, mapped)
        )
        assert total_variation(rebel, changed) > 0.05


def test_the_best_of_n_draws_is_distributed_as_the_optimum_of_the_log_transform() -> None:
    """At beta = 1 / (N - 1), from N draws of a known categorical distribution."""
    answers, best_of, draws = 400, 4, 200_000
    draw = torch.Generator().manual_seed(0)
    policy = torch.rand(1, answers, generator=draw, dtype=torch.float64).softmax(dim=1)
    reward = torch.randn(1, answers, generator=draw, dtype=torch.float64)
    world = TabularPrompts(policy, policy, reward)
    drawn = torch.multinomial(policy[0], draws * best_of, replacement=True, generator=draw)
    rewards = reward[0, drawn].reshape(draws, best_of)
    best = drawn.reshape(draws, best_of).gather(1, rewards.argmax(dim=1, keepdim=True))
    goal = world.optimum(world.quantile().log(), beta=1 / (best_of - 1))
    quantile = world.quantile()[0]
    assert float(quantile[best].mean()) == pytest.approx(best_of / (best_of + 1), abs=2e-3)
    assert float((goal[0] * quantile).sum()) == pytest.approx(best_of / (best_of + 1), abs=2e-3)
    share = torch.bincount(best[:, 0], minlength=answers).double() / draws
    expected = 0.5 * math.sqrt(2 / math.pi) * (goal[0] / draws).sqrt().sum().item()
    assert total_variation(share[None], goal) < 1.3 * expected


def test_quantiles_of_rows_are_unbiased(prompts: TabularPrompts) -> None:
    """The mean over rows of the estimate from one reference is the exact quantile."""
    rows = drawn_rows(prompts, 100_000, 1)
    reward = prompts.reward[rows.prompt_N, rows.answer_N]
    for ties in ("le", "mid"):
        estimate = quantile_rewards(reward, rows.references_Nn, ties=ties)
        exact = prompts.quantile(ties)
        for place in ((0, 0), (1, 5)):
            here = (rows.prompt_N == place[0]) & (rows.answer_N == place[1])
            error = 4 * 0.5 / math.sqrt(int(here.sum()))
            assert float(estimate[here].mean()) == pytest.approx(float(exact[place]), abs=error)


def test_the_page_shows_what_the_script_finds() -> None:
    """Texts are equal; numbers differ by at most a rounding, or by the last steps of an optimizer."""
    _, shown, _ = tabular_alignment.parts(tabular_alignment.PAGE.read_text())
    for row, found in zip(shown.split("\n"), tabular_alignment.tables().split("\n"), strict=True):
        for cell, again in zip(row.split(" | "), found.split(" | "), strict=True):
            try:
                number = float(again.strip(" |"))
            except ValueError:
                assert cell == again, "run python -m tools.tabular_alignment"
            else:
                tolerance = 0.3 * number if "e-" in again else 0.011
                assert float(cell.strip(" |")) == pytest.approx(number, rel=0, abs=tolerance)
