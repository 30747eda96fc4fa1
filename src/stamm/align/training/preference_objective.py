"""Objectives on answers: QRPO, DPO, SimPO and REBEL, in the training loop of pretraining.

One forward pass gives the log-probabilities of all answers of a micro-batch; those of the reference
policy are data. Losses are means over the examples of a step.

Letters: B answers, P pairs, N reference rewards.
Checked  tests/unit/align/test_finetune.py
"""

from __future__ import annotations

import torch
from torch import Tensor

from stamm.align.training.answer_dataset import AnswerBatch
from stamm.align.training.answer_objective import AnswerObjective
from stamm.align.training.finetune_config import FineTuneConfig
from stamm.align.training.loss_config import DPO, QRPO, REBEL, SFT, BradleyTerry, SimPO
from stamm.base.errors import ConfigError
from stamm.engine.distributed import DistributedContext
from stamm.engine.objective import StepLoss
from stamm.losses.preference import (
    dpo_loss,
    ipo_loss,
    qrpo_loss,
    rebel_loss,
    simpo_loss,
)
from stamm.losses.quantile import quantile_rewards
from stamm.models.decoder import Decoder
from stamm.pretrain.dataset import TrainingSequences


class PreferenceObjective(AnswerObjective):
    """The loss that `config.loss` names, on answers.

    Metrics  "train/loss"; for pairs "reward/chosen_log_ratio", "reward/rejected_log_ratio" (nats; for
             SimPO log-probabilities per token) and "reward/accuracy", the share of pairs in order;
             for QRPO "reward/log_ratio", "reward/quantile" and "reward/target", means over answers
    Raises   ConfigError for SFT, which is `pretrain.next_token.NextToken`, and for BradleyTerry, which
             is `align.training.reward_objective.RewardObjective`
    """

    def __init__(
        self,
        config: FineTuneConfig,
        decoder: Decoder,
        answers: TrainingSequences[AnswerBatch],
        world: DistributedContext,
    ) -> None:
        if isinstance(config.loss, SFT | BradleyTerry):
            raise ConfigError(f"{type(config.loss).__name__} is not a loss on log-probabilities")
        super().__init__(config, decoder, answers, world)
        self._loss = config.loss

    def step_loss(self, batch: AnswerBatch, num_loss_tokens: float) -> StepLoss:
        """Loss of the micro-batch's examples, divided by those of the whole step, and metrics."""
        log_prob_B = self._log_probs(batch)
        if isinstance(self._loss, QRPO):
            loss_B, metrics = _qrpo(self._loss, log_prob_B, batch)
        else:
            loss_B, metrics = _pairwise(self._loss, log_prob_B, batch)
        return self.mean_loss(loss_B, metrics, num_loss_tokens)

    def _log_probs(self, batch: AnswerBatch) -> Tensor:
        """Log-probability of each answer, whichever processes hold its tokens, float64."""
        part_B = self.decoder.sequence_log_probs(
            self._shard.tokens(batch.tokens_RT),
            self._shard.tokens(batch.target_RT),
            self._shard.tokens(batch.completion_RT),
            len(batch.length_B),
            attention=self.attention(batch.document_RT),
        )
        return self.over_processes(part_B)


def _qrpo(loss: QRPO, log_prob_B: Tensor, batch: AnswerBatch) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of each example and metrics; an example of two answers has the mean of their losses."""
    log_ratio_B = log_prob_B - batch.reference_B
    quantile_B = quantile_rewards(
        batch.reward_B, batch.ref_reward_BN, ties=loss.ties, leave_one_out=loss.leave_one_out
    )
    known_B = (~batch.ref_reward_BN.isnan()).sum(dim=1)
    found = qrpo_loss(
        log_ratio_B,
        quantile_B,
        beta=loss.beta,
        references=known_B,
        transform=loss.transform,
        partition=loss.partition,
        reference_quantile_BN=_reference_quantiles(loss, batch.ref_reward_BN),
        length_B=batch.length_B,
        normalize=loss.normalize,
        largest_beta=loss.largest_beta,
    )
    answers = len(batch.length_B) / batch.num_examples  # per example
    metrics = {
        "reward/log_ratio": log_ratio_B.detach(),
        "reward/quantile": quantile_B,
        "reward/target": (found.target_B / found.beta_B).detach(),
    }
    return found.loss_B / answers, {name: value / answers for name, value in metrics.items()}


def _reference_quantiles(loss: QRPO, ref_reward_BN: Tensor) -> Tensor | None:
    """Quantiles of the references among themselves, NaN where missing; None: not needed."""
    if loss.partition != "empirical":
        return None
    known_BN = ~ref_reward_BN.isnan()
    below_BN = (ref_reward_BN[:, None, :] < ref_reward_BN[:, :, None]).sum(-1).double()
    equal_BN = (ref_reward_BN[:, None, :] == ref_reward_BN[:, :, None]).sum(-1).double()
    quantile_BN = (below_BN + equal_BN * (1.0 if loss.ties == "le" else 0.5)) / known_BN.sum(
        dim=1, keepdim=True
    )
    return quantile_BN.masked_fill(~known_BN, torch.nan)


def _pairwise(
    loss: DPO | SimPO | REBEL, log_prob_B: Tensor, batch: AnswerBatch
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of each pair and metrics."""
    chosen, rejected = slice(0, None, 2), slice(1, None, 2)
    length_B = batch.length_B.double()
    if isinstance(loss, SimPO):
        score_B = log_prob_B / length_B
        loss_P = simpo_loss(
            log_prob_B[chosen],
            log_prob_B[rejected],
            length_B[chosen],
            length_B[rejected],
            beta=loss.beta,
            gamma=loss.gamma,
        )
    else:
        score_B = log_prob_B - batch.reference_B
        pair = score_B[chosen], score_B[rejected]
        lengths = length_B[chosen], length_B[rejected]
        if isinstance(loss, REBEL):
            rewards = batch.reward_B[chosen], batch.reward_B[rejected]
            loss_P = rebel_loss(*pair, *rewards, beta=loss.beta)
        elif loss.form == "ipo":
            loss_P = ipo_loss(*pair, *lengths, beta=loss.beta)
        else:
            normalized = loss.form == "normalized"
            loss_P = dpo_loss(
                *pair,
                beta=loss.beta,
                label_smoothing=loss.label_smoothing,
                chosen_length_B=lengths[0] if normalized else None,
                rejected_length_B=lengths[1] if normalized else None,
            )
    score_B = score_B.detach()
    metrics = {
        "reward/chosen_log_ratio": score_B[chosen],
        "reward/rejected_log_ratio": score_B[rejected],
        "reward/accuracy": (score_B[chosen] > score_B[rejected]).double(),
    }
    return loss_P, metrics
