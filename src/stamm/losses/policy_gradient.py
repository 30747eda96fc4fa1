"""Group-relative policy gradient (GRPO) as pure functions, with the options of DAPO and of Dr. GRPO.

loss = 1/C sum_i w_i sum_t [ -min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i) + beta KL_it ]

    r_it  = pi_theta(y_it | x, y_i<t) / pi_old(y_it | x, y_i<t)
    KL_it = pi_ref / pi_theta - log(pi_ref / pi_theta) - 1                 (k3, at least 0)
    A_i   = (R_i - mean R) / std R over the G answers of one prompt

Source   GRPO: arXiv 2402.03300, equations 3 and 4; DAPO: arXiv 2503.14476, equations 8 to 13; Dr. GRPO:
         arXiv 2503.20783, section 3
Checked  tests/unit/losses/test_policy_gradient.py
Letters: B answers, N answer tokens of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stamm.base.errors import ConfigError
from stamm.losses.preference_types import AdvantageScale, TokenAverage

_ROUNDING = 1e-9  # rewards that differ by less, relative to the largest, are equal


class PolicyLoss(NamedTuple):
    """Loss of each token and what is recorded beside it.

    loss_N      to be weighted by `answer_weights` and summed
    clipped_N   bool: the clipped term is the smaller one, so that the token has no policy gradient
    kl_N        k3 towards the reference policy, without beta; 0 without one; no gradient
    """

    loss_N: Tensor
    clipped_N: Tensor
    kl_N: Tensor


def are_equal(rewards: Sequence[float]) -> bool:
    """Whether all rewards of a group are equal but for rounding: it has no advantages."""
    low, high = min(rewards), max(rewards)
    return high - low <= _ROUNDING * max(abs(low), abs(high))


def group_advantages(rewards: Sequence[float], scale: AdvantageScale = "std") -> list[float]:
    """Advantage of each answer of one group.

    "std"    (R_i - mean) / std, std with the divisor G - 1 (GRPO, DAPO). No constant is added to it: any
             increasing linear map of the rewards leaves the advantages as they are
    "none"   R_i - mean (Dr. GRPO), which does not weight easy and hard prompts up

    Edge     all 0 in a group of equal rewards, and in a group of one
    Source   trl 1.16 and verl divide by the same std plus 1e-4 and 1e-6
    """
    if len(rewards) < 2 or are_equal(rewards):
        return [0.0] * len(rewards)
    reward_B = torch.tensor(rewards, dtype=torch.float64)
    centred_B = reward_B - reward_B.mean()
    advantages: list[float] = (centred_B / reward_B.std() if scale == "std" else centred_B).tolist()
    return advantages


def policy_loss(
    log_prob_N: Tensor,
    old_log_prob_N: Tensor,
    advantage_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    reference_log_prob_N: Tensor | None = None,
    beta: float = 0.0,
) -> PolicyLoss:
    """Clipped surrogate loss of each token, with beta times its KL to the reference policy.

    log_prob_N             of the sampled tokens under the policy that is trained, differentiable
    old_log_prob_N         the same under the policy that sampled them; no gradient
    advantage_N            of the answer that each token belongs to
    clip_low, clip_high    the ratio counts up to 1 - clip_low where the advantage is negative, up to
                           1 + clip_high where it is positive; DAPO: 0.2, 0.28
    reference_log_prob_N   needed where beta > 0

    Gradient   of log_prob: -A r where not clipped, else 0; plus beta (1 - pi_ref / pi_theta)
    Raises     ConfigError for beta > 0 without a reference
    """
    ratio_N = (log_prob_N - old_log_prob_N.detach()).exp()
    limited_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    free_N, bounded_N = ratio_N * advantage_N, limited_N * advantage_N
    loss_N = -torch.minimum(free_N, bounded_N)
    kl_N = torch.zeros_like(log_prob_N)
    if reference_log_prob_N is not None:
        gap_N = reference_log_prob_N.detach() - log_prob_N
        kl_N = gap_N.expm1() - gap_N
        if beta:
            loss_N = loss_N + beta * kl_N
    elif beta:
        raise ConfigError(
            f"beta = {beta} without log-probabilities of a reference policy",
            fix="Pass reference_log_prob_N, or beta=0",
        )
    return PolicyLoss(loss_N, (bounded_N < free_N).detach(), kl_N.detach())


def answer_weights(length_B: Tensor, average: TokenAverage, longest: int) -> Tensor:
    """Weight w_i of the tokens of each answer, float64; the sum over a step is divided by C.

    "answer"    1 / length: the mean over an answer's tokens, then over answers; C: answers (GRPO)
    "token"     1: the mean over all tokens of the step; C: tokens (DAPO)
    "longest"   1 / `longest`: the same weight for every token, and no bias towards short right and long
                wrong answers; C: answers (Dr. GRPO)

    length_B   tokens of each answer, the end token included
    longest    most tokens that an answer can have
    """
    length_B = length_B.double()
    match average:
        case "answer":
            return 1 / length_B.clamp(min=1)
        case "token":
            return torch.ones_like(length_B)
        case "longest":
            return torch.full_like(length_B, 1 / longest)


def overlong_penalty(length: int, longest: int, margin: int) -> float:
    """DAPO's soft penalty of an answer's reward: 0 up to longest - margin tokens, then linear down to -1.

    Source   arXiv 2503.14476, equation 13, with L_max = longest and L_cache = margin
    """
    return -min(max(length - (longest - margin), 0) / margin, 1.0)
