"""The objective of a reward model: Bradley-Terry on pairs of answers, in the training loop of pretraining.

The reward is read at an answer's stop token, where `align.training.answer_rewards` reads it.

Letters: B answers, P pairs.
Checked  tests/unit/align/test_reward_training.py
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from stamm.align.data.encoded import EncodedAnswer
from stamm.align.training.answer_dataset import AnswerBatch
from stamm.align.training.answer_objective import AnswerObjective
from stamm.align.training.answer_rewards import stop_place
from stamm.align.training.finetune_config import FineTuneRun
from stamm.align.training.loss_config import BradleyTerry
from stamm.base.errors import ConfigError
from stamm.engine.distributed import DistributedContext
from stamm.engine.objective import StepLoss
from stamm.losses.bradley_terry import bradley_terry_accuracy, bradley_terry_loss
from stamm.models.decoder import Decoder
from stamm.pretrain.dataset import TrainingSequences


class RewardObjective(AnswerObjective):
    """The loss `BradleyTerry` on pairs of `answers_at_stop`.

    Metrics  "train/loss" (nats, the regularisation included), "reward/accuracy" (share of pairs in
             order, a tie counting 1/2), "reward/margin" (chosen minus rejected), "reward/chosen",
             "reward/rejected": means over pairs
    Raises   ConfigError for another loss
    """

    def __init__(
        self,
        config: FineTuneRun,
        decoder: Decoder,
        answers: TrainingSequences[AnswerBatch],
        world: DistributedContext,
    ) -> None:
        if not isinstance(config.loss, BradleyTerry):
            raise ConfigError(f"{type(config.loss).__name__} is not the loss of a reward model")
        super().__init__(config, decoder, answers, world)
        self._loss = config.loss

    def step_loss(self, batch: AnswerBatch, num_loss_tokens: float) -> StepLoss:
        """Loss of the micro-batch's pairs, divided by those of the whole step, and metrics."""
        reward_B = self._rewards(batch)
        chosen_P, rejected_P = reward_B[0::2], reward_B[1::2]
        # A pair without rewards has NaN.
        margin_P = (batch.reward_B[0::2] - batch.reward_B[1::2]).nan_to_num(nan=0.0)
        loss_P = bradley_terry_loss(
            chosen_P, rejected_P, margin=margin_P if self._loss.margin else 0.0
        )
        if self._loss.centre:
            loss_P = loss_P + self._loss.centre * (chosen_P + rejected_P).square()
        chosen_P, rejected_P = chosen_P.detach(), rejected_P.detach()
        metrics = {
            "reward/accuracy": bradley_terry_accuracy(chosen_P, rejected_P),
            "reward/margin": chosen_P - rejected_P,
            "reward/chosen": chosen_P,
            "reward/rejected": rejected_P,
        }
        return self.mean_loss(loss_P, metrics, num_loss_tokens)

    def _rewards(self, batch: AnswerBatch) -> Tensor:
        """The reward of each answer, whichever process holds its stop token, float64."""
        part_B = self.decoder.sequence_rewards(
            self._shard.tokens(batch.tokens_RT),
            self._shard.tokens(batch.completion_RT),
            len(batch.length_B),
            attention=self.attention(batch.document_RT),
        )
        return self.over_processes(part_B)


def answers_at_stop(answers: Sequence[EncodedAnswer], pad: int) -> list[EncodedAnswer]:
    """The answers for `AnswerSequences`: each ends with its stop token, which alone counts.

    A padding token follows as the last target, so that the stop token is an input.

    Raises   DataError for an answer without a token of the assistant
    """
    found = []
    for answer in answers:
        read = stop_place(answer.supervised) + 1
        found.append(
            dataclasses.replace(
                answer, ids=[*answer.ids[:read], pad], supervised=[False] * read + [True]
            )
        )
    return found
