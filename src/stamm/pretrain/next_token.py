"""Next-token prediction under a loss mask: the objective of pretraining and of supervised fine-tuning."""

from __future__ import annotations

from stamm.engine.objective import StepLoss
from stamm.pretrain.dataset import TokenBatch
from stamm.pretrain.sequence_objective import SequenceObjective

LOSS, Z_LOSS, DENSITY = "train/loss_nats", "train/z_loss_nats", "train/unit_density"


class NextToken(SequenceObjective[TokenBatch]):
    """Next-token cross-entropy. The sequences of the next step are prefetched during a step.

    A subclass that changes the loss overrides `step_loss` (docs/extending/objective.md).

    Raises   ConfigError when steps or sequences cannot be divided evenly over the processes, and for
             an engine.attention that cannot train the model here
    """

    primary_metric = LOSS

    def step_loss(self, batch: TokenBatch, num_loss_tokens: float) -> StepLoss:
        """Loss and metrics of one micro-batch.

        batch             this process's sequences, whole, on its device
        num_loss_tokens   tokens of the whole step that have a loss: divide sums by it
        """
        losses = self.decoder.losses(
            self._shard.tokens(batch.tokens_BT),
            self._shard.tokens(batch.target_BT),
            self._shard.tokens(batch.keep_BT),
            num_loss_tokens,
            attention=self.attention(batch.document_BT),
            z_loss=self._config.z_loss,
            density=self._config.density,
        )
        metrics = {LOSS: losses.nll}
        if self._config.z_loss:
            metrics[Z_LOSS] = losses.z
        if losses.density is not None:
            metrics[DENSITY] = losses.density
        return StepLoss(losses.loss, metrics)

    def metrics(self, step: int) -> dict[str, float]:
        """Tokens so far, tokens and loss tokens of the step; on some steps activation parameters."""
        values = super().metrics(step)
        names = ("tokens", "train/tokens")
        return {
            **{name: values.pop(name) for name in names},
            "train/kept_tokens": self.loss_count,
            **values,
        }
