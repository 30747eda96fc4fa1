"""Losses of preference alignment as pure functions: QRPO, DPO, IPO, SimPO, REBEL, KTO.

All take summed log-probabilities of completions in nats (`sequence.sequence_log_probs`), float64 or
float32, and return one loss per sample, without reduction, so that a caller can divide by the number
of samples of a whole step. log-ratio = log pi_theta(y|x) - log pi_ref(y|x).

Checked  tests/unit/losses/test_against_trl.py: DPO, IPO, SimPO and KTO equal TRL 1.16's in value and
         gradient; QRPO and REBEL are not in TRL. tests/unit/align/test_tabular.py: optima
Letters: B samples (completions for QRPO and KTO, pairs for DPO, SimPO, REBEL).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from stamm.base.errors import ConfigError
from stamm.losses.preference_types import LengthNormalization, Partition, Transform
from stamm.losses.quantile import (
    beta_log_partition,
    empirical_beta_log_partition,
    grid_beta_log_partition,
    released_beta_log_partition,
    transformed,
)


class QRPOLoss(NamedTuple):
    """Loss of each sample and what is recorded beside it.

    loss_B     (target - beta log-ratio)^2, to be averaged
    target_B   f(q) - beta log Z: what beta times the log-ratio is regressed on; no gradient
    beta_B     the beta of each sample; no gradient
    """

    loss_B: Tensor
    target_B: Tensor
    beta_B: Tensor


def qrpo_loss(
    log_ratio_B: Tensor,
    quantile_B: Tensor,
    *,
    beta: float,
    references: int | Tensor,
    transform: Transform = "identity",
    partition: Partition = "exact",
    reference_quantile_BN: Tensor | None = None,
    beta_log_z_B: Tensor | None = None,
    length_B: Tensor | None = None,
    normalize: LengthNormalization = "none",
    largest_beta: float | None = None,
) -> QRPOLoss:
    """QRPO: regress beta times the log-ratio on f(q) - beta log Z, one completion at a time.

    loss = (f(q) - beta log Z(beta) - beta log-ratio)^2

    quantile_B     from `quantile.quantile_rewards`
    references     N, the number of reference rewards behind each quantile; one number, or (B,)
    partition      "exact": the closed form; "released": beta log beta + 1, refused where its error
                   exceeds 1e-3; "released_anyway": the same without the check; "grid": the
                   normaliser of a quantile estimated from N references; "empirical": the mean over
                   the references themselves, exact for rewards with ties
    reference_quantile_BN   for "empirical": quantiles of the references among themselves, NaN where
                   one is missing
    beta_log_z_B   given instead of a partition, e.g. `quantile.empirical_beta_log_partition`
    length_B       completion tokens, end token included; needed by `normalize`
    normalize      "beta": beta_i = beta / length_i everywhere (Apertus); "loss": loss_i / length_i
    largest_beta   clamp of beta_i; Apertus: 0.1

    Edge     a strictly increasing map of the rewards changes nothing; a pair is two samples
    Source   arXiv 2507.08068, algorithm 1; arXiv 2509.14233, section 4.3, for the normalisation
    Checked  tests/unit/losses/test_preference.py
    """
    length_B = _lengths(length_B, normalize)
    beta_B = torch.full_like(log_ratio_B, beta, dtype=torch.float64)
    if normalize == "beta":
        beta_B = beta_B / length_B
    if largest_beta is not None:
        beta_B = beta_B.clamp(max=largest_beta)
    value_B = transformed(quantile_B, transform, references)
    if beta_log_z_B is None:
        beta_log_z_B = _partition(beta_B, transform, partition, references, reference_quantile_BN)
    target_B = (value_B - beta_log_z_B).detach()
    loss_B = (target_B - beta_B * log_ratio_B).square()
    if normalize == "loss":
        loss_B = loss_B / length_B
    return QRPOLoss(loss_B, target_B, beta_B)


def dpo_loss(
    chosen_log_ratio_B: Tensor,
    rejected_log_ratio_B: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
    chosen_length_B: Tensor | None = None,
    rejected_length_B: Tensor | None = None,
) -> Tensor:
    """DPO: -(1 - s) log sigmoid(d) - s log sigmoid(-d) with d = beta (chosen - rejected log-ratio).

    label_smoothing        s, the assumed share of flipped labels (conservative DPO)
    chosen_length_B, …     given: each log-ratio is divided by its completion's tokens first
                           (length-normalised DPO, Tulu 3)

    Source   arXiv 2305.18290, equation 7; arXiv 2411.15124, section 5.1, for the normalisation
    TRL      loss_type "sigmoid", and with lengths "sigmoid_norm". TRL 1.16 ignores its label_smoothing
             in both; its "robust" divides by 1 - 2s and subtracts the second term
    """
    margin_B = beta * (
        _per_token(chosen_log_ratio_B, chosen_length_B)
        - _per_token(rejected_log_ratio_B, rejected_length_B)
    )
    return -(1 - label_smoothing) * logsigmoid(margin_B) - label_smoothing * logsigmoid(-margin_B)


def ipo_loss(
    chosen_log_ratio_B: Tensor,
    rejected_log_ratio_B: Tensor,
    chosen_length_B: Tensor,
    rejected_length_B: Tensor,
    *,
    beta: float,
) -> Tensor:
    """IPO: (difference of the mean log-ratios per token - 1 / (2 beta))^2.

    Source   arXiv 2310.12036, equation 17, with log-ratios averaged over tokens as its authors advise
    TRL      loss_type "ipo" of DPOTrainer. Equation 17 itself has sums: with lengths of 1 it is this
             function, and its optimum is QRPO's with quantiles under the policy of the data
    """
    margin_B = chosen_log_ratio_B / chosen_length_B - rejected_log_ratio_B / rejected_length_B
    return (margin_B - 1 / (2 * beta)).square()


def simpo_loss(
    chosen_log_prob_B: Tensor,
    rejected_log_prob_B: Tensor,
    chosen_length_B: Tensor,
    rejected_length_B: Tensor,
    *,
    beta: float,
    gamma: float,
) -> Tensor:
    """SimPO: -log sigmoid(beta (difference of the mean log-probabilities per token) - gamma).

    gamma    target margin, in units of beta times nats per token; needs no reference policy

    Source   arXiv 2405.14734, equation 6
    TRL      loss_type "simpo" of the experimental CPOTrainer, simpo_gamma = gamma. TRL adds cpo_alpha
             (1 if not set) times the negative log-likelihood of the chosen answers
    """
    margin_B = chosen_log_prob_B / chosen_length_B - rejected_log_prob_B / rejected_length_B
    return -logsigmoid(beta * margin_B - gamma)


def rebel_loss(
    first_log_ratio_B: Tensor,
    second_log_ratio_B: Tensor,
    first_reward_B: Tensor,
    second_reward_B: Tensor,
    *,
    beta: float,
) -> Tensor:
    """REBEL: ((reward difference) / beta - (log-ratio difference))^2.

    Source   arXiv 2404.16767, equation 1, with beta for its 1 / eta
    """
    reward_B = (first_reward_B - second_reward_B).double() / beta
    return (reward_B - (first_log_ratio_B - second_log_ratio_B)).square()


def kto_loss(
    log_ratio_B: Tensor,
    desirable_B: Tensor,
    kl: Tensor | float,
    *,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """KTO: weight (1 - sigmoid(±beta (log-ratio - kl))), + for desirable samples, - for others.

    desirable_B   bool, (B,)
    kl            estimate of KL(pi_theta || pi_ref) over the whole batch, from mismatched prompts and
                  completions; clamped at 0, no gradient

    Source   arXiv 2402.01306, equations 8 and 9
    TRL      loss_type "kto" of KTOTrainer, which estimates kl from each micro-batch: there gradient
             accumulation changes the loss
    """
    reference = torch.as_tensor(kl, dtype=log_ratio_B.dtype).clamp(min=0).detach()
    margin_B = beta * (log_ratio_B - reference.to(log_ratio_B.device))
    good_B = desirable_weight * (1 - torch.sigmoid(margin_B))
    bad_B = undesirable_weight * (1 - torch.sigmoid(-margin_B))
    return torch.where(desirable_B, good_B, bad_B)


def _partition(
    beta_B: Tensor,
    transform: Transform,
    partition: Partition,
    references: int | Tensor,
    reference_quantile_BN: Tensor | None,
) -> Tensor:
    if partition == "exact":
        return beta_log_partition(beta_B, transform)
    if partition == "grid":
        return _grid(beta_B, references, transform)
    if partition == "empirical":
        if reference_quantile_BN is None:
            raise ConfigError(
                'partition = "empirical" without the quantiles of the references',
                fix="Pass reference_quantile_BN",
            )
        known_BN = ~reference_quantile_BN.isnan()
        reference = references[:, None] if isinstance(references, Tensor) else references
        value_BN = transformed(reference_quantile_BN.nan_to_num(0.5), transform, reference)
        return empirical_beta_log_partition(beta_B, value_BN, known_BN)
    if transform != "identity":
        raise ConfigError(
            f"the released partition function with transform {transform}",
            fix='It is one of transform identity; use partition "exact"',
        )
    return released_beta_log_partition(beta_B, accept_error=partition == "released_anyway")


def _grid(beta_B: Tensor, references: int | Tensor, transform: Transform) -> Tensor:
    if isinstance(references, int):
        return grid_beta_log_partition(beta_B, references, transform)
    found_B = torch.empty_like(beta_B)
    for number in sorted(set(references.tolist())):
        same_B = references == number
        found_B[same_B] = grid_beta_log_partition(beta_B[same_B], int(number), transform)
    return found_B


def _lengths(length_B: Tensor | None, normalize: LengthNormalization) -> Tensor:
    if normalize == "none":
        return torch.ones(())
    if length_B is None or bool((length_B < 1).any()):
        raise ConfigError(
            f"normalize = {normalize!r} without the lengths of all completions",
            fix="Pass length_B, the completion tokens with the end token, at least 1 each",
        )
    return length_B.double()


def _per_token(log_ratio_B: Tensor, length_B: Tensor | None) -> Tensor:
    return log_ratio_B if length_B is None else log_ratio_B / length_B
