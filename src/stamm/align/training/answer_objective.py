"""Base of the objectives on answers: values of whole answers, and metrics, over all processes.

Letters: B answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from stamm.align.training.answer_dataset import AnswerBatch
from stamm.engine.objective import StepLoss
from stamm.pretrain.sequence_objective import SequenceObjective

PREFERENCE_LOSS = "train/loss"


class AnswerObjective(SequenceObjective[AnswerBatch]):
    """An objective on answers; its loss is a mean over the examples of a step."""

    primary_metric = PREFERENCE_LOSS
    least_spread = 0.05  # these losses begin at one value, such as log 2, in every step

    def over_processes(self, part_B: Tensor) -> Tensor:
        """Values of whole answers, from the parts that this process computed from its tokens.

        Edge   the gradient is that of this process's tokens; FSDP adds them up
        """
        if self._shard.is_whole:
            return part_B
        whole_B = self._world.all_reduce_sequences(part_B.detach().clone())
        return part_B + (whole_B - part_B.detach())

    def mean_loss(
        self, loss: Tensor, metrics: Mapping[str, Tensor], num_examples: float
    ) -> StepLoss:
        """The losses and metrics of a micro-batch's examples, divided by those of the whole step."""
        # Processes that divide sequences compute the same values: each reports its share of them.
        share = 1.0 / (num_examples * self._world.context * self._world.tensor)
        sums = {PREFERENCE_LOSS: loss.detach(), **metrics}
        return StepLoss(
            loss.sum() / num_examples, {name: value.sum() * share for name, value in sums.items()}
        )
