"""Objectives over sequences with random access: the part of each step that this process computes.

What a step reads, how it is divided over processes, micro-batches and threads, its learning rate and
its metrics are the same for every objective over `TrainingSequences`; a subclass computes the loss of
a micro-batch (`pretrain.next_token`, `align.training.objectives`).
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic

import torch

from stamm.activations.module import Activation, GatedActivation
from stamm.base.errors import ConfigError, RunError, StammError
from stamm.engine.attention_support import refusals
from stamm.engine.distributed import DistributedContext
from stamm.engine.objective import MicroBatch, MicroBatches, Objective, StepLoss
from stamm.engine.pieces import pieces_of
from stamm.engine.sequence_sharding import SequenceShard
from stamm.models.attention_mask import AttentionInputs
from stamm.models.decoder import Decoder
from stamm.models.flops import guide_flops, training_flops
from stamm.models.guide_draws import guide_uses
from stamm.models.linear import structured_linears
from stamm.models.lora import lora_sizes
from stamm.optim.schedules import BatchPlan, step_rate
from stamm.pretrain.config import DecoderTrainingConfig
from stamm.pretrain.dataset import BatchT, TrainingSequences


class SequenceObjective(Objective, Generic[BatchT]):
    """An objective over training sequences. The sequences of the next step are prefetched during a step.

    Raises   ConfigError when steps or sequences cannot be divided evenly over the processes, and for
             an engine.attention that cannot train the model here
    """

    unit = "tokens"

    def __init__(
        self,
        config: DecoderTrainingConfig,
        decoder: Decoder,
        windows: TrainingSequences[BatchT],
        world: DistributedContext,
    ) -> None:
        self._config, self.decoder, self._windows, self._world = config, decoder, windows, world
        self.total_sequences = config.total_sequences(windows.per_epoch)
        self._plan = config.batches(self.total_sequences)
        self.num_steps = self._plan.num_steps
        for what, fix in refusals(config.engine, config.model, gpu=world.device.type == "cuda"):
            raise ConfigError(what, fix=fix)
        self._shard = SequenceShard(world, config.context)
        for stage in config.batch:
            self._shard.check_batch(stage.size)
        long = config.engine.precision == "float32"
        self._dtype = torch.float32 if long else torch.bfloat16
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="sequences")
        self._ahead: tuple[int, Future[list[BatchT]]] | None = None
        self._count = 0

    @property
    def loss_count(self) -> int:
        """`loss_count` of the newest step, of all processes together."""
        return self._count

    @property
    def milestones(self) -> frozenset[int]:
        """The last step before the learning rate decays: cooldowns of other lengths start there."""
        start = self._config.schedule.decay_start(self.total_sequences)
        before = steps_before(self._plan, start)
        return frozenset({before} if 0 < before < self.num_steps else ())

    def micro_batches(self, step: int) -> MicroBatches:
        """This process's part of the step; on a CPU split further, for its threads."""
        self.decoder.begin_step(step, self.num_steps, self._config.seed)
        batches = self._read(step)
        most = self._shard.largest(self._plan.step(step - 1).size)
        largest = self._config.largest_micro_batch(most)
        self._count = self.total_count(batches)
        self.begin_step(batches)
        guides = tuple(linear.guided for _, linear in structured_linears(self.decoder))
        pieces = [
            MicroBatch(partial(self._compute, piece, self._count), kind=(piece.num_rows, guides))
            for piece in batches
        ]
        return MicroBatches(pieces, at_once=self._pieces(largest))

    def begin_step(self, batches: Sequence[BatchT]) -> None:
        """Called before the micro-batches of a step are computed, with this process's part of it."""

    @abstractmethod
    def step_loss(self, batch: BatchT, num_loss_tokens: float) -> StepLoss:
        """Loss and metrics of one micro-batch.

        batch             this process's sequences, whole, on its device
        num_loss_tokens   `loss_count` of the whole step: divide sums by it
        """

    def attention(self, document_BT: torch.Tensor) -> AttentionInputs:
        """Rotary angles and attention mask of this process's tokens: documents see themselves alone.

        document_BT   document number of each token of the whole sequences
        """
        return self._shard.attention_inputs(
            self.decoder.model, document_BT, self._dtype, self._config.engine.attention
        )

    def _compute(self, batch: BatchT, count: float) -> StepLoss:
        return self.step_loss(batch.to(self._world.device), float(count))

    def learning_rate(self, step: int) -> float:
        """Learning rate of the step."""
        span = self._plan.step(step - 1)
        return step_rate(self._config.schedule, span.first, span.size, self.total_sequences)

    def num_items(self, step: int) -> float:
        """Tokens of the step."""
        return self._num_tokens(step)

    def flops(self, step: int) -> int:
        """Model FLOPs of the step."""
        model, context = self._config.model, self._config.context
        guided = guide_uses(model, step, self.num_steps, self._config.seed)
        flops = training_flops(model, context, **lora_sizes(self.decoder))
        flops += guided * guide_flops(model, context)
        return flops * self._num_tokens(step) // context

    def fraction_done(self, step: int) -> float:
        """Fraction of the run's sequences that are trained on after the step."""
        span = self._plan.step(step - 1)
        return (span.first + span.size) / self.total_sequences

    def metrics(self, step: int) -> dict[str, float]:
        """Tokens so far and tokens of the step; on some steps activation parameters."""
        span = self._plan.step(step - 1)
        first = self._config.first_sequence
        values: dict[str, float] = {
            "tokens": self._windows.num_tokens(first, span.first + span.size),
            "train/tokens": self._num_tokens(step),
        }
        if self.records(step):
            values.update(shapes(self.decoder))
        return values

    def records(self, step: int) -> bool:
        """Whether metrics that are not of every step are recorded: each interval, and the last step."""
        return step % self._config.record_shapes_every == 0 or step == self.num_steps

    def _num_tokens(self, step: int) -> int:
        span = self._plan.step(step - 1)
        return self._windows.num_tokens(self._config.first_sequence + span.first, span.size)

    def _read(self, step: int) -> list[BatchT]:
        """Sequences of `step`, in pieces; starts to read those of the next step."""
        ahead = self._ahead
        pending = ahead[1] if ahead and ahead[0] == step else self._reader.submit(self._rows, step)
        try:
            batches = pending.result()
        except Exception as error:
            what, fix = str(error), "Check that the training data exists, and run it again"
            if isinstance(error, StammError):
                what, fix = error.what, error.fix
            raise RunError(
                f"the sequences of step {step} could not be read: {what}", fix=fix
            ) from error
        self._ahead = None
        if step < self.num_steps:
            self._ahead = (step + 1, self._reader.submit(self._rows, step + 1))
        return batches

    def _rows(self, step: int) -> list[BatchT]:
        span = self._plan.step(step - 1)
        return self._part(self._config.first_sequence + span.first, span.size)

    def _part(self, first: int, count: int) -> list[BatchT]:
        """This process's part of `count` sequences, in as many pieces as that of every other process."""
        mine = self._shard.rows(first, count)
        pieces = [
            piece
            for micro in cut(mine, self._config.parts(self._shard.largest(count)))
            for piece in cut(micro, self._pieces(len(micro)))
        ]
        return [self._windows.batch(piece.start, len(piece)) for piece in pieces]

    @torch.no_grad()
    def mean_metrics(self) -> dict[str, float]:
        """Metrics of all sequences, as those of one step that trains on them; nothing is trained.

        Every process calls it; all get the same values.
        """
        count = self._windows.per_epoch
        largest = self._config.largest_micro_batch(self._shard.largest(self._config.batch[0].size))
        mine = self._shard.rows(0, count)
        pieces = _Pieces(self._windows, [*cut(mine, -(-self._shard.largest(count) // largest))])
        terms = float(self.total_count(pieces))
        self.begin_step(pieces)
        total: dict[str, torch.Tensor] = {}
        for batch in pieces:
            for name, value in self._compute(batch, terms).metrics.items():
                total[name] = total.get(name, 0.0) + value.detach().double()
        names = list(total)
        values = torch.stack([total[name] for name in names]).to(self._world.device)
        return dict(zip(names, self._world.all_reduce_sum(values).tolist(), strict=True))

    def _pieces(self, sequences: int) -> int:
        """Number of pieces of a micro-batch of so many sequences."""
        if self._world.mesh is not None or self._world.device.type != "cpu":
            return 1
        return pieces_of(self._config.engine, sequences, self._config.context)

    def total_count(self, batches: Sequence[BatchT]) -> int:
        """`loss_count` of the whole step, from this process's part of it."""
        count = sum(batch.loss_count for batch in batches)
        world = self._world
        if world.size == 1:
            return count
        summed = world.all_reduce_sum(torch.tensor(count, dtype=torch.int64, device=world.device))
        # Processes of context and tensor parallelism read the same sequences.
        return int(summed) // (world.context * world.tensor)


class _Pieces(Sequence[BatchT]):
    """Batches that are read at each access, so that only one is in memory."""

    def __init__(self, windows: TrainingSequences[BatchT], pieces: Sequence[range]) -> None:
        self._windows, self._pieces = windows, pieces

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: Any) -> Any:
        piece = self._pieces[index]
        return self._windows.batch(piece.start, len(piece))


def steps_before(plan: BatchPlan, sequence: int) -> int:
    """Number of steps that end at `sequence` or before."""
    return bisect_right(
        range(plan.num_steps), sequence, key=lambda i: plan.step(i).first + plan.step(i).size
    )


def cut(rows: range, ways: int) -> Iterator[range]:
    """`rows` in so many ranges of equal length, up to one."""
    borders = [rows.start + len(rows) * i // ways for i in range(ways + 1)]
    return (range(a, b) for a, b in itertools.pairwise(borders))


def shapes(decoder: Decoder) -> dict[str, float]:
    """Effective activation parameters by layer, means over neurons: {"shape/layers.0.alpha_p": 0.8, ...}."""
    means: dict[str, float] = {}
    for index, layer in enumerate(decoder.model.layers):
        activation = layer.get_submodule("mlp.act_fn")
        if isinstance(activation, (Activation, GatedActivation)):
            for name, value in activation.means().items():
                means[f"shape/layers.{index}.{name}"] = value
    return means
