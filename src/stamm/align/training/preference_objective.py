"""Objectives on answers: QRPO, DPO, SimPO, REBEL and KTO, in the training loop of pretraining.

One forward pass gives the log-probabilities of all answers of a micro-batch; those of the reference
policy are data. Losses are means over the examples of a step.

Letters: B answers, P pairs, N reference rewards.
Checked  tests/unit/align/test_finetune.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from stamm.align.training.answer_dataset import AnswerBatch
from stamm.align.training.answer_objective import AnswerObjective
from stamm.align.training.finetune_config import FineTuneRun
from stamm.align.training.loss_config import (
    DPO,
    GRPO,
    KTO,
    QRPO,
    REBEL,
    SFT,
    BradleyTerry,
    SimPO,
    needs_reference,
)
from stamm.align.training.proximal_features import ProximalFeatures
from stamm.align.training.representation import (
    MOST_TOKENS,
    LastUnits,
    feature_metrics,
    gathered,
    ratio_metrics,
)
from stamm.base.errors import ConfigError
from stamm.engine.distributed import DistributedContext
from stamm.engine.objective import MicroBatches, StepLoss
from stamm.losses.bradley_terry import bradley_terry_accuracy
from stamm.losses.preference import (
    dpo_loss,
    ipo_loss,
    kto_loss,
    qrpo_loss,
    rebel_loss,
    simpo_loss,
)
from stamm.losses.quantile import quantile_rewards
from stamm.models.attention_mask import AttentionInputs
from stamm.models.decoder import Decoder, HiddenStates
from stamm.pretrain.dataset import TrainingSequences

ROUNDING = 1e-4
"""Nats: packed and padded passes in float32 give sums of log-probabilities that differ by less."""


class PreferenceObjective(AnswerObjective):
    """The loss that `config.loss` names, on answers.

    Metrics  "train/loss"; for pairs "reward/chosen_log_ratio", "reward/rejected_log_ratio" (nats; for
             SimPO log-probabilities per token) and "reward/accuracy", the share of pairs in order, a
             tie counting 1/2; for QRPO "reward/log_ratio", "reward/quantile" and "reward/target", means
             over answers; for KTO "reward/log_ratio", "reward/kl" (the estimate, at least 0), and
             "reward/accuracy", the share of answers whose log-ratio is on the right side of it; with
             PFO "train/pfo", the mean distance without its weight, which "train/loss" does not have.
             On some steps "representation/..", of `align.training.representation`
    start    folder of the start model, which PFO compares with
    Raises   ConfigError for SFT, which is `pretrain.next_token.NextToken`, and for BradleyTerry, which
             is `align.training.reward_objective.RewardObjective`
    """

    def __init__(
        self,
        config: FineTuneRun,
        decoder: Decoder,
        answers: TrainingSequences[AnswerBatch],
        world: DistributedContext,
        start: Path,
    ) -> None:
        if isinstance(config.loss, SFT | BradleyTerry | GRPO):
            raise ConfigError(f"{type(config.loss).__name__} is not a loss on log-probabilities")
        super().__init__(config, decoder, answers, world)
        self._loss = config.loss
        self._probe: AnswerBatch | None = None
        self._recorded: dict[str, float] = {}
        self._kl = torch.zeros((), dtype=torch.float64)
        self._pfo = (
            ProximalFeatures(config, start, world) if config.pfo and config.pfo.weight else None
        )

    def begin_step(self, batches: Sequence[AnswerBatch]) -> None:
        """Compute what micro-batches and processes share: KTO's KL, and PFO's number of tokens."""
        if self._pfo is not None:
            self._pfo.begin_step(batches)
        if not isinstance(self._loss, KTO):
            return
        world = self._world
        found = torch.zeros(2, dtype=torch.float64, device=world.device)
        with torch.no_grad():
            for whole in batches:
                assert whole.mismatched is not None
                batch = whole.mismatched.to(world.device)
                log_prob_B = self._log_probs(batch)
                found[0] += (log_prob_B - batch.reference_B).sum()
                found[1] += len(log_prob_B)
        # Processes of context and tensor parallelism have the same values: the quotient is theirs.
        total, count = world.all_reduce_sum(found).tolist()
        self._kl = torch.tensor(max(total / max(count, 1.0), 0.0), dtype=torch.float64)

    def step_loss(self, batch: AnswerBatch, num_loss_tokens: float) -> StepLoss:
        """Loss of the micro-batch's examples, divided by those of the whole step, and metrics."""
        attention = self.attention(batch.document_RT)
        log_prob_B, hidden = self._log_probs_and_hidden(batch, attention)
        if isinstance(self._loss, QRPO):
            loss_B, metrics = _qrpo(self._loss, log_prob_B, batch)
        elif isinstance(self._loss, KTO):
            loss_B, metrics = _kto(self._loss, log_prob_B, batch, self._kl)
        else:
            loss_B, metrics = _pairwise(self._loss, log_prob_B, batch)
        found = self.mean_loss(loss_B, metrics, num_loss_tokens)
        return found if self._pfo is None else self._pfo.added(found, batch, hidden, attention)

    def micro_batches(self, step: int) -> MicroBatches:
        """As in pretraining; on some steps representation metrics are computed first."""
        self._recorded = self._representation() if step == 1 or self.records(step) else {}
        return super().micro_batches(step)

    def metrics(self, step: int) -> dict[str, float]:
        """Those of pretraining; on the first step, and where shapes are recorded, of representations."""
        return {**super().metrics(step), **self._recorded}

    @torch.no_grad()
    def _representation(self) -> dict[str, float]:
        """Metrics of `align.training.representation`; all processes must call it."""
        if self._probe is None:
            rows = self._shard.rows(self._config.first_sequence, self._config.batch[0].size)
            # With a pass every 10 steps, less than 1 % of the work.
            count = max(len(rows) // 4, 1)
            while count > 1 and self._windows.num_tokens(rows.start, count) > MOST_TOKENS:
                count -= 1
            self._probe = self._windows.batch(rows.start, count).to(self._world.device)
        batch = self._probe
        with LastUnits(self.decoder) as units:
            log_prob_B, hidden = self._log_probs_and_hidden(
                batch, self.attention(batch.document_RT)
            )
        answer_RT = self._shard.tokens(batch.completion_RT) >= 0
        found = units.newest
        if found is not None:
            # Processes of tensor parallelism have some units of all tokens.
            whole = found.shape[:2] == batch.completion_RT.shape
            found = found[batch.completion_RT >= 0 if whole else answer_RT]
        both_NE = torch.cat([states[answer_RT] for states in hidden], dim=-1)
        both_NE, units_NC = gathered(both_NE, found, self._world)
        if not self._world.is_main_process:
            return {}
        feature_ND, hidden_ND = both_NE.chunk(2, dim=-1)
        metrics = feature_metrics(feature_ND, hidden_ND, units_NC)
        if needs_reference(self._loss):
            metrics |= ratio_metrics(log_prob_B - batch.reference_B, batch.length_B)
        return metrics

    def _log_probs(self, batch: AnswerBatch) -> Tensor:
        """Log-probability of each answer, whichever processes hold its tokens, float64."""
        return self._log_probs_and_hidden(batch, self.attention(batch.document_RT))[0]

    def _log_probs_and_hidden(
        self, batch: AnswerBatch, attention: AttentionInputs
    ) -> tuple[Tensor, HiddenStates]:
        """The same, and the last hidden states of this process's tokens."""
        part_B, hidden = self.decoder.sequence_log_probs_and_hidden(
            self._shard.tokens(batch.tokens_RT),
            self._shard.tokens(batch.target_RT),
            self._shard.tokens(batch.completion_RT),
            len(batch.length_B),
            attention=attention,
        )
        return self.over_processes(part_B), hidden


def _qrpo(loss: QRPO, log_prob_B: Tensor, batch: AnswerBatch) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of each example and metrics; an example of two answers has the mean of their losses."""
    log_ratio_B = log_prob_B - batch.reference_B
    ties, partition = loss.tie_rules()
    quantile_B = quantile_rewards(
        batch.reward_B, batch.ref_reward_BN, ties=ties, leave_one_out=loss.leave_one_out
    )
    compared_B = (~batch.ref_reward_BN.isnan()).sum(dim=1) - int(loss.leave_one_out)
    found = qrpo_loss(
        log_ratio_B,
        quantile_B,
        beta=loss.beta,
        references=compared_B,
        transform=loss.transform,
        partition=partition,
        reference_quantile_BN=_reference_quantiles(loss, batch.ref_reward_BN),
        length_B=batch.length_B,
        normalize=loss.normalize,
        largest_beta=loss.largest_beta,
    )
    answers = len(batch.length_B) / max(batch.num_examples, 1)  # per example
    metrics = {
        "reward/log_ratio": log_ratio_B.detach(),
        "reward/quantile": quantile_B,
        "reward/target": (found.target_B / found.beta_B).detach(),
    }
    return found.loss_B / answers, {name: value / answers for name, value in metrics.items()}


def _reference_quantiles(loss: QRPO, ref_reward_BN: Tensor) -> Tensor | None:
    """Quantiles of the references among themselves, NaN where missing; None: not needed.

    With leave_one_out each is left out of its own comparison, as the answer is.
    """
    ties, partition = loss.tie_rules()
    if partition != "empirical":
        return None
    known_BN = ~ref_reward_BN.isnan()
    below_BN = (ref_reward_BN[:, None, :] < ref_reward_BN[:, :, None]).sum(-1).double()
    equal_BN = (ref_reward_BN[:, None, :] == ref_reward_BN[:, :, None]).sum(-1).double()
    own = int(loss.leave_one_out)
    weight = 1.0 if ties == "le" else 0.5
    compared_B1 = known_BN.sum(dim=1, keepdim=True) - own
    quantile_BN = (below_BN + (equal_BN - own) * weight) / compared_B1
    return quantile_BN.masked_fill(~known_BN, torch.nan)


def _kto(
    loss: KTO, log_prob_B: Tensor, batch: AnswerBatch, kl: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of each answer and metrics."""
    log_ratio_B = log_prob_B - batch.reference_B
    desirable_B = batch.reward_B > 0.5
    loss_B = kto_loss(
        log_ratio_B,
        desirable_B,
        kl,
        beta=loss.beta,
        desirable_weight=loss.desirable_weight,
        undesirable_weight=loss.undesirable_weight,
    )
    log_ratio_B = log_ratio_B.detach()
    kl_B = torch.full_like(log_ratio_B, float(kl))
    margin_B = torch.where(desirable_B, log_ratio_B - kl_B, kl_B - log_ratio_B)
    accuracy_B = bradley_terry_accuracy(margin_B, torch.zeros_like(margin_B))
    metrics = {
        "reward/log_ratio": log_ratio_B,
        "reward/kl": kl_B,
        "reward/accuracy": accuracy_B.masked_fill(margin_B.abs() <= ROUNDING, 0.5),
    }
    return loss_B, metrics


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
    # A log-ratio of rounding errors is a tie, as all are before the first update.
    score_B = score_B.detach()
    near_P = (score_B[chosen] - score_B[rejected]).abs() <= ROUNDING
    accuracy_P = bradley_terry_accuracy(score_B[chosen], score_B[rejected])
    metrics = {
        "reward/chosen_log_ratio": score_B[chosen],
        "reward/rejected_log_ratio": score_B[rejected],
        "reward/accuracy": accuracy_P.masked_fill(near_P, 0.5),
    }
    return loss_P, metrics
