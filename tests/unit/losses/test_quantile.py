"""Quantile rewards, and partition functions against 50 digits, quadrature and enumeration."""

from __future__ import annotations

import math
from typing import get_args

import mpmath
import pytest
import torch

from stamm.base.errors import ConfigError, DataError
from stamm.losses.preference_types import Transform
from stamm.losses.quantile import (
    beta_log_partition,
    empirical_beta_log_partition,
    grid_beta_log_partition,
    optimum_kl,
    optimum_mean_quantile,
    quantile_rewards,
    released_beta_log_partition,
    transformed,
)

BETAS = (1e-5, 3e-4, 3e-3, 0.05, 0.19, 0.3, 0.99, 1.0, 1.25, 1.83, 2.0, 7.0, 100.0)
REFERENCES = torch.tensor([[1.0, 2.0, 2.0, 5.0], [0.0, 0.0, 1.0, torch.nan]])

TRANSFORMS: tuple[Transform, ...] = get_args(Transform)


def true_beta_log_z(transform: str, beta: float) -> mpmath.mpf:
    with mpmath.workdps(50):
        b = mpmath.mpf(beta)
        e = mpmath.e ** (1 / b)
        closed = {
            "identity": lambda: b * (e - 1),
            "log": lambda: b / (1 + b),
            "square": lambda: mpmath.sqrt(mpmath.pi * b) / 2 * mpmath.erfi(1 / mpmath.sqrt(b)),
            "sqrt": lambda: 2 * b * (b + (1 - b) * e),
            "probit": lambda: mpmath.e ** (1 / (2 * b**2)),
        }
        return b * mpmath.log(closed[transform]())


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("beta", BETAS)
def test_closed_forms_are_exact_for_every_beta(transform: Transform, beta: float) -> None:
    truth = true_beta_log_z(transform, beta)
    found = mpmath.mpf(float(beta_log_partition(beta, transform)))
    assert abs((found - truth) / truth) < 1e-15


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_closed_forms_are_the_integral_over_a_uniform_quantile(transform: Transform) -> None:
    forms = {
        "identity": lambda t: t,
        "log": mpmath.log,
        "square": lambda t: t * t,
        "sqrt": mpmath.sqrt,
    }
    if transform == "probit":  # t = Phi(x)
        z = mpmath.quad(lambda x: mpmath.exp(x / 2) * mpmath.npdf(x), [-mpmath.inf, mpmath.inf])
        assert float(beta_log_partition(2.0, "probit")) == pytest.approx(float(2 * mpmath.log(z)))
        return
    for beta in (0.3, 1.0, 4.0):
        points = [0, 1e-9, 1e-4, 0.5, 1 - 1e-4, 1 - 1e-9, 1]
        z = mpmath.quad(lambda t, b=beta: mpmath.exp(forms[transform](t) / b), points)
        assert float(beta_log_partition(beta, transform)) == pytest.approx(
            float(beta * mpmath.log(z)), rel=1e-6
        )


def test_betas_of_samples_are_computed_elementwise() -> None:
    betas = torch.tensor(BETAS)
    for transform in TRANSFORMS:
        every = beta_log_partition(betas.double(), transform)
        alone = torch.stack([beta_log_partition(b, transform) for b in betas.double()])
        assert torch.allclose(every, alone, rtol=1e-15)


def test_the_released_approximation_is_refused_where_it_is_wrong() -> None:
    for beta in (3e-4, 0.1, 0.18):
        error = abs(float(released_beta_log_partition(beta)) - float(beta_log_partition(beta)))
        assert error < 1e-3
    with pytest.raises(ConfigError, match=r"wrong by 0\.073 at beta = 0\.5.*at most 0\.19"):
        released_beta_log_partition(0.5)
    assert float(released_beta_log_partition(1.0, accept_error=True)) == 1.0


@pytest.mark.parametrize("beta", [0.0, -1.0, math.nan, math.inf])
def test_a_beta_that_is_not_positive_is_refused(beta: float) -> None:
    with pytest.raises(ConfigError, match="beta is"):
        beta_log_partition(beta)


def test_quantiles_by_both_rules_of_ties() -> None:
    rewards = torch.tensor([2.0, 0.0])
    assert quantile_rewards(rewards, REFERENCES).tolist() == [3 / 4, 2 / 3]
    assert quantile_rewards(rewards, REFERENCES, ties="mid").tolist() == [2 / 4, 1 / 3]
    assert quantile_rewards(rewards, REFERENCES, leave_one_out=True).tolist() == [2 / 3, 1 / 2]
    assert quantile_rewards(rewards, REFERENCES, ties="mid", leave_one_out=True).tolist() == [
        (1 + 1 / 2) / 3,
        (0 + 1 / 2) / 2,
    ]


def test_quantiles_do_not_change_under_monotone_maps_permutations_and_copies() -> None:
    generator = torch.Generator().manual_seed(0)
    reward = torch.randn(20, generator=generator, dtype=torch.float64)
    reference = torch.randn(20, 9, generator=generator, dtype=torch.float64)
    found = quantile_rewards(reward, reference)
    assert torch.equal(quantile_rewards(reward.exp(), reference.exp()), found)
    assert torch.equal(quantile_rewards(reward**3, reference**3), found)
    slope = torch.rand(20, generator=generator, dtype=torch.float64) + 0.1
    assert torch.equal(quantile_rewards(reward * slope, reference * slope[:, None]), found)
    order = torch.randperm(9, generator=generator)
    assert torch.equal(quantile_rewards(reward, reference[:, order]), found)
    assert torch.equal(quantile_rewards(reward, torch.cat([reference, reference], dim=1)), found)


def test_the_estimate_of_an_independent_completion_is_unbiased() -> None:
    """And that of one of the references is not: q + (1 - q)/n, unless it is left out."""
    generator = torch.Generator().manual_seed(3)
    n, draws, reward = 4, 200_000, 0.3
    reference = torch.rand(draws, n, generator=generator, dtype=torch.float64)
    rewards = torch.full((draws,), reward, dtype=torch.float64)
    error = 4 * math.sqrt(reward * (1 - reward) / n / draws)
    assert quantile_rewards(rewards, reference).mean().item() == pytest.approx(reward, abs=error)
    reference[:, 0] = reward
    inside = quantile_rewards(rewards, reference).mean().item()
    assert inside == pytest.approx(reward + (1 - reward) / n, abs=error)
    left_out = quantile_rewards(rewards, reference, leave_one_out=True).mean().item()
    assert left_out == pytest.approx(reward, abs=2 * error)


@pytest.mark.parametrize(
    ("reward", "reference", "options", "message"),
    [
        (math.nan, [1.0], {}, "row 0 has a reward that is NaN or infinite"),
        (1.0, [math.inf], {}, "infinite reference reward"),
        (1.0, [math.nan], {}, "too few reference rewards"),
        (1.0, [1.0], {"leave_one_out": True}, "too few reference rewards"),
        (1.0, [2.0, 3.0], {"leave_one_out": True}, "not among its references"),
    ],
)
def test_rewards_that_cannot_be_ranked_are_refused(
    reward: float, reference: list[float], options: dict[str, bool], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        quantile_rewards(torch.tensor([reward]), torch.tensor([reference]), **options)


def test_probit_needs_three_references() -> None:
    with pytest.raises(ConfigError, match="probit with 2 reference rewards"):
        transformed(torch.tensor([0.5]), "probit", 2)
    assert transformed(torch.tensor([0.0, 1.0]), "probit", 4).isfinite().all()
    assert transformed(torch.tensor([0.0]), "log", 4).item() == math.log(1 / 4)


@pytest.mark.parametrize("ties", ["le", "mid"])
def test_with_equal_atoms_the_closed_form_is_off_by_the_known_factor(ties: str) -> None:
    """Z_le/Z = h/(1 - e^-h), Z_mid/Z = (h/2)/sinh(h/2) with h = 1/(K beta)."""
    atoms, beta = 8, 0.1
    h = 1 / (atoms * beta)
    place = torch.arange(atoms, dtype=torch.float64)
    q = (place + (1.0 if ties == "le" else 0.5)) / atoms
    empirical = empirical_beta_log_partition(beta, q[None])
    factor = math.exp((empirical.item() - beta_log_partition(beta).item()) / beta)
    wanted = h / -math.expm1(-h) if ties == "le" else (h / 2) / math.sinh(h / 2)
    assert factor == pytest.approx(wanted, rel=1e-12)


def test_the_grid_is_the_mean_over_its_values_and_tends_to_the_closed_form() -> None:
    by_hand = 0.1 * math.log(sum(math.exp(j / 3 / 0.1) for j in range(4)) / 4)
    assert grid_beta_log_partition(0.1, 3).item() == pytest.approx(by_hand, rel=1e-14)
    gap = by_hand - beta_log_partition(0.1).item()
    assert gap == pytest.approx(0.095, abs=0.001)
    assert grid_beta_log_partition(0.1, 10**5).item() == pytest.approx(
        beta_log_partition(0.1).item(), abs=1e-5
    )


def test_the_optimum_lies_where_its_density_says() -> None:
    """Mean and KL of the density e^(t/beta)/Z on [0, 1], by quadrature."""
    for beta in (0.05, 0.3, 2.0):
        z = mpmath.quad(lambda t, b=beta: mpmath.exp(t / b), [0, 1])
        mean = mpmath.quad(lambda t, b=beta, z=z: t * mpmath.exp(t / b) / z, [0, 1])
        kl = mean / beta - mpmath.log(z)
        assert optimum_mean_quantile(beta) == pytest.approx(float(mean), rel=1e-10)
        assert optimum_kl(beta) == pytest.approx(float(kl), rel=1e-9)
