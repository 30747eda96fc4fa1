"""Training objectives: the protocol between the training loop and what a model is trained to do.

This is the whole interface: the trainer back-propagates `StepLoss.loss`, sums and records
the named metrics, and reads one of them for spike detection. Next-token prediction is one objective
(`pretrain.next_token`); a user's is written the same way (docs/extending/objective.md).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True)
class StepLoss:
    """Loss of one micro-batch, scaled so that it adds up over micro-batches and processes.

    loss      what is differentiated, shape ()
    metrics   recorded values by their name in metrics.jsonl ("train/loss_nats"), each of shape () and
              summed in float64, first over the micro-batches in order, then over the processes. The
              same names in the same order in every micro-batch of a run
    """

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)

    def detach(self) -> StepLoss:
        """The same values without their graph."""
        metrics = {name: value.detach() for name, value in self.metrics.items()}
        return StepLoss(self.loss.detach(), metrics)


@dataclass(frozen=True)
class MicroBatch:
    """A part of a step that is computed at once.

    compute   forward pass and loss; may be called on any thread
    kind      equal where the compiler makes the same code: the first of a kind is computed alone
    """

    compute: Callable[[], StepLoss]
    kind: Hashable = None


@dataclass(frozen=True)
class MicroBatches:
    """The micro-batches of one step, in the order in which their gradients are added.

    at_once   how many may be in flight; 1 on a GPU, and where processes share the gradients while
              they are computed
    """

    each: Sequence[MicroBatch]
    at_once: int = 1


@runtime_checkable
class Objective(Protocol):
    """A training objective: micro-batches, their loss and their metrics. Steps count from 1.

    num_steps        length of the run
    primary_metric   the metric of `StepLoss` that decides whether a step is non-finite or a spike,
                     and that the progress line shows as the loss
    unit             what throughput counts, in the plural: "tokens" gives `speed/tokens_per_s`
    least_spread     of the losses, for the detection of loss spikes

    Subclass it to inherit what is optional: `least_spread`, `milestones`, `flops`, `fraction_done` and
    `metrics`.
    """

    num_steps: int
    primary_metric: str
    unit: str

    def micro_batches(self, step: int) -> MicroBatches:
        """This process's part of the step; over all processes the losses sum to the step's loss."""

    def learning_rate(self, step: int) -> float:
        """Learning rate of the step."""

    def num_items(self, step: int) -> float:
        """Number of `unit` that the step trains on, on all processes together."""

    @property
    def milestones(self) -> frozenset[int]:
        """Steps whose checkpoints are kept for good."""
        return frozenset()

    def flops(self, step: int) -> int:
        """Floating-point operations of the model in the step, on all processes, for MFU; 0: unknown."""
        return 0

    def fraction_done(self, step: int) -> float:
        """Fraction of the run that is done after the step, for the progress bar."""
        return step / self.num_steps

    def metrics(self, step: int) -> dict[str, float]:
        """Further values to record, already those of the whole step; read after its update."""
        return {}
