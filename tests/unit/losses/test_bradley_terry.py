"""Bradley-Terry: values of high precision, gradients, invariance, and a world with known rewards."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from stamm.losses.bradley_terry import bradley_terry_accuracy, bradley_terry_loss

DIFFERENCES = (-800.0, -40.0, -3.0, -1e-9, 0.0, 0.5, 37.0, 700.0)


def drawn(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("margin", [0.0, 1.5])
def test_the_loss_and_its_gradient_equal_their_formula(margin: float) -> None:
    with mpmath.workdps(400):
        exact = [mpmath.log1p(mpmath.exp(-(mpmath.mpf(d) - margin))) for d in DIFFERENCES]
        slope = [-1 / (1 + mpmath.exp(mpmath.mpf(d) - margin)) for d in DIFFERENCES]
    chosen = torch.tensor(DIFFERENCES, dtype=torch.float64, requires_grad=True)
    rejected = torch.zeros(len(DIFFERENCES), dtype=torch.float64)
    loss = bradley_terry_loss(chosen, rejected, margin=margin)
    (gradient,) = torch.autograd.grad(loss.sum(), chosen)
    for found, wanted in zip(loss.tolist(), exact, strict=True):
        assert found == pytest.approx(float(wanted), rel=1e-12, abs=1e-300)
    for found, wanted in zip(gradient.tolist(), slope, strict=True):
        assert found == pytest.approx(float(wanted), rel=1e-9, abs=1e-15)


def test_a_margin_of_each_pair() -> None:
    margins = torch.tensor([0.0, 1.0, -2.0])
    found = bradley_terry_loss(torch.ones(3), torch.zeros(3), margin=margins)
    assert found.tolist() == pytest.approx([math.log1p(math.exp(m - 1)) for m in (0, 1, -2)])
    assert found.dtype == torch.float64


def test_a_constant_in_both_rewards_changes_nothing() -> None:
    chosen, rejected = drawn(64, 1), drawn(64, 2)
    # Multiples of 2^-20, so that the sums are exact and the losses the same bits.
    chosen, rejected = ((x * 2**20).round() / 2**20 for x in (chosen, rejected))
    for constant in (-5.0, 1024.0):
        moved = bradley_terry_loss(chosen + constant, rejected + constant)
        assert torch.equal(moved, bradley_terry_loss(chosen, rejected))
    assert not torch.equal(
        bradley_terry_loss(chosen + 1, rejected), bradley_terry_loss(chosen, rejected)
    )


def test_two_orders_of_a_pair_have_probabilities_that_add_up_to_one() -> None:
    a, b = drawn(64, 3), drawn(64, 4)
    total = torch.exp(-bradley_terry_loss(a, b)) + torch.exp(-bradley_terry_loss(b, a))
    assert torch.allclose(total, torch.ones(64, dtype=torch.float64), atol=1e-15, rtol=0)


def test_accuracy_counts_a_tie_as_half() -> None:
    found = bradley_terry_accuracy(torch.tensor([2.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, 2.0]))
    assert found.tolist() == [1.0, 0.5, 0.0]


def test_the_minimum_has_the_rewards_that_made_the_preferences() -> None:
    """The expected loss over all pairs of four items is smallest at their true differences."""
    truth = torch.tensor([0.0, 0.7, -1.2, 2.0], dtype=torch.float64)
    first, second = torch.cartesian_prod(torch.arange(4), torch.arange(4)).T
    share = torch.sigmoid(truth[first] - truth[second])
    learned = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    for _ in range(400):
        loss = (share * bradley_terry_loss(learned[first], learned[second])).sum()
        (gradient,) = torch.autograd.grad(loss, learned)
        with torch.no_grad():
            learned -= 0.5 * gradient
    found = learned.detach() - learned.detach()[0]
    assert torch.allclose(found, truth, atol=1e-5)
