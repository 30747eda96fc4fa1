"""Quantile rewards and partition functions of QRPO (Quantile Reward Policy Optimization).

The optimum of KL-regularised reward maximisation is pi* = pi_ref exp(f(q) / beta) / Z. With the
quantile q of a reward among those of reference completions, which is uniform under pi_ref, Z has a
closed form for every transform f.

Source   arXiv 2507.08068, algorithm 1 and table 4
Letters: B completions, N reference completions of each prompt.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stamm.base.errors import ConfigError, DataError
from stamm.losses.preference_types import Ties, Transform

# The released trainer's partition function, beta log beta + 1, is refused where it is wrong by more.
RELEASED_ERROR = 1e-3
_PROBIT_NEEDS = 3


def quantile_rewards(
    reward_B: Tensor,
    reference_BN: Tensor,
    *,
    ties: Ties = "le",
    leave_one_out: bool = False,
) -> Tensor:
    """Share of the reference rewards that each reward reaches, float64, shape (B,).

    q[b] = #{j: reference[b, j] <= reward[b]} / N                          ties = "le", as published
    q[b] = (#{j: reference < reward} + #{j: reference = reward} / 2) / N   ties = "mid"

    reference_BN   rewards of N completions drawn from the reference policy; NaN marks an entry that
                   is missing, so that prompts may have different numbers
    leave_one_out  the completion itself is one of the references and is left out of the comparison;
                   otherwise its quantile is never below 1/N

    Edge     for a reward with ties (pass or fail, a rubric) q is not uniform under "le", and hard
             prompts have small gradients; "mid" corrects most of this.
    Raises   DataError for a reward that is NaN or infinite, for a prompt without references, and with
             leave_one_out for a reward that is not among its references
    Checked  tests/unit/losses/test_quantile.py
    """
    reward_B1, reference_BN = reward_B.double()[:, None], reference_BN.double()
    known_BN = ~reference_BN.isnan()
    number_B = known_BN.sum(dim=1) - int(leave_one_out)
    _check_rows(~reward_B.isfinite(), "a reward that is NaN or infinite", "Score it again")
    _check_rows(
        (reference_BN.isinf() & known_BN).any(dim=1),
        "an infinite reference reward",
        "Score it again",
    )
    _check_rows(
        number_B < 1,
        "too few reference rewards to compare with",
        "Give each prompt at least one (two with leave_one_out)",
    )
    below_B = (reference_BN < reward_B1).sum(dim=1).double()
    equal_B = (reference_BN == reward_B1).sum(dim=1).double()
    if leave_one_out:
        _check_rows(equal_B < 1, "a reward that is not among its references", "Unset leave_one_out")
        equal_B = equal_B - 1
    return (below_B + equal_B * (1.0 if ties == "le" else 0.5)) / number_B


def transformed(quantile_B: Tensor, transform: Transform, references: int | Tensor) -> Tensor:
    """f(q), float64, shape of q.

    references   N: "log" needs q >= 1/N, "probit" 1/N <= q <= 1 - 1/N; q is clamped to that
    Raises       ConfigError for "probit" with fewer than 3 references, whose clamps meet
    """
    q = quantile_B.double()
    step = 1.0 / torch.as_tensor(references, dtype=torch.float64, device=q.device)
    match transform:
        case "identity":
            return q
        case "log":
            return torch.maximum(q, step).log()
        case "square":
            return q.square()
        case "sqrt":
            return q.sqrt()
        case "probit":
            if bool((step > 1 / _PROBIT_NEEDS).any()):
                raise ConfigError(
                    f"transform probit with {round(float(1 / step.max()))} reference rewards",
                    fix=f"Use at least {_PROBIT_NEEDS}, or transform identity",
                )
            clamped: Tensor = torch.minimum(torch.maximum(q, step), 1 - step)
            return torch.special.ndtri(clamped)  # type: ignore[no-any-return]


def beta_log_partition(beta: Tensor | float, transform: Transform = "identity") -> Tensor:
    """beta log Z of the transformed quantile reward, exact for every beta > 0, float64.

    identity   Z = beta (e^(1/beta) - 1)
    log        Z = beta / (1 + beta)
    square     Z = sqrt(pi beta) / 2 erfi(1 / sqrt(beta))
    sqrt       Z = 2 beta (beta + (1 - beta) e^(1/beta))
    probit     Z = e^(1 / (2 beta^2))

    Errors   relative error below 1e-15 for 1e-5 <= beta <= 100, against quadrature
    Raises   ConfigError for a beta that is not positive and finite
    Checked  tests/unit/losses/test_quantile.py
    """
    b = _checked_beta(beta)
    match transform:
        case "identity":
            exact = b.log() + 1 / b + torch.log1p(-torch.exp(-1 / b))
            moments = [1 / (k + 1) for k in range(1, _MOMENTS)]
        case "log":
            return -b * torch.log1p(1 / b)
        case "square":
            exact = 1 / b + (_dawson(b.rsqrt()) * b.sqrt()).log()
            moments = [1 / (2 * k + 1) for k in range(1, _MOMENTS)]
        case "sqrt":
            exact = (2 * b).log() + 1 / b + ((1 - b) + b * torch.exp(-1 / b)).log()
            moments = [2 / (k + 2) for k in range(1, _MOMENTS)]
        case "probit":
            return 1 / (2 * b)
    return b * torch.where(b >= 1, _log_mean_exponential(1 / b, moments), exact)


def released_beta_log_partition(beta: Tensor | float, *, accept_error: bool = False) -> Tensor:
    """beta log beta + 1: the released trainers' approximation for the identity transform, float64.

    Raises   ConfigError where its error exceeds 1e-3 (beta above about 0.19), unless accept_error
    """
    b = _checked_beta(beta)
    error = (b * torch.log1p(-torch.exp(-1 / b))).abs().max().item()
    if error > RELEASED_ERROR and not accept_error:
        raise ConfigError(
            f"the released partition function is wrong by {error:.2g} at beta = {b.max().item():g}",
            fix='Use partition "exact", or a beta of at most 0.19',
        )
    return b * b.log() + 1


def grid_beta_log_partition(
    beta: Tensor | float, references: int, transform: Transform = "identity"
) -> Tensor:
    """beta log Z for a quantile estimated from N references, float64.

    The estimate of an independent completion is uniform on {0, 1/N, ..., 1}: Z is the mean of
    exp(f(j/N) / beta) over these N + 1 values.
    """
    b = _checked_beta(beta)
    grid = torch.arange(references + 1, dtype=torch.float64, device=b.device) / references
    values = transformed(grid, transform, references)
    return b * (torch.logsumexp(values / b[..., None], dim=-1) - math.log(references + 1))


def empirical_beta_log_partition(
    beta: Tensor | float, value_BN: Tensor, known_BN: Tensor | None = None
) -> Tensor:
    """beta log of the mean over the references of exp(value / beta), float64, shape (B,).

    value_BN   f(q) of the reference completions themselves: exact for any reward, ties included
    """
    b = _checked_beta(beta)
    scaled = value_BN.double() / b.reshape(-1, 1)
    if known_BN is not None:
        scaled = scaled.masked_fill(~known_BN, -math.inf)
        number = known_BN.sum(dim=1).double()
    else:
        number = torch.full((len(scaled),), scaled.shape[1], dtype=torch.float64)
    return b * (torch.logsumexp(scaled, dim=1) - number.to(scaled.device).log())


def optimum_mean_quantile(beta: float) -> float:
    """Mean quantile of the optimal policy, identity transform: 1 / (1 - e^(-1/beta)) - beta."""
    return -1 / math.expm1(-1 / beta) - beta


def optimum_kl(beta: float) -> float:
    """KL(pi* || pi_ref) in nats of the optimal policy, identity transform: (mean - beta log Z) / beta."""
    log_z = float(beta_log_partition(beta))
    return (optimum_mean_quantile(beta) - log_z) / beta


def _checked_beta(beta: Tensor | float) -> Tensor:
    b = torch.as_tensor(beta, dtype=torch.float64)
    if not bool((b > 0).all() and b.isfinite().all()):
        raise ConfigError(f"beta is {b.min().item():g}", fix="Use a positive number")
    return b


def _check_rows(wrong_B: Tensor, what: str, fix: str) -> None:
    rows = wrong_B.nonzero()[:, 0]
    if rows.numel():
        raise DataError(f"row {int(rows[0])} has {what} ({rows.numel()} such rows)", fix=fix)


_MOMENTS = 20


def _log_mean_exponential(t: Tensor, moments: list[float]) -> Tensor:
    """log of the mean of exp(t f) from the moments of f, without cancellation for t <= 1."""
    total, power = torch.zeros_like(t), torch.ones_like(t)
    for k, moment in enumerate(moments, start=1):
        power = power * t / k
        total = total + power * moment
    return torch.log1p(total)


_STEP, _TERMS = 0.2, 35


def _dawson(x: Tensor) -> Tensor:
    """Dawson's integral e^(-x^2) times the integral of e^(t^2) from 0 to x, for x > 0.5, float64.

    Source   G. B. Rybicki, Computers in Physics 3, 85 (1989): a sum of Gaussians at odd multiples of
             h, whose error falls as e^(-(pi / 2h)^2), 1e-27 for h = 0.2
    """
    nearest = 2 * torch.round(0.5 * x / _STEP)
    offset = x - nearest * _STEP
    odd = torch.arange(1 - 2 * _TERMS, 2 * _TERMS, 2, dtype=torch.float64, device=x.device)
    gaussians = torch.exp(-((offset[..., None] - odd * _STEP) ** 2))
    return (gaussians / (nearest[..., None] + odd)).sum(dim=-1) / math.sqrt(math.pi)
