"""PFO during training: features of the start model at the same tokens, from a frozen copy of it.

Letters: R packed rows, T tokens of a row, D model.
Checked  tests/unit/align/test_pfo.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from stamm.align.training.answer_dataset import AnswerBatch
from stamm.align.training.finetune_config import FineTuneRun
from stamm.engine.distributed import DistributedContext
from stamm.engine.objective import StepLoss
from stamm.engine.parallel import small_parameters
from stamm.losses.feature_regularization import feature_distances
from stamm.models.attention_mask import AttentionInputs
from stamm.models.decoder import HiddenStates
from stamm.models.serialization import load_decoder

METRIC = "train/pfo"


class ProximalFeatures:
    """The term of `config.pfo`: a mean over the answer tokens of a step, over all processes.

    start   folder of the start model

    Memory   the start model whole in every process, in float32, or matrices in bfloat16
    Cost     one more forward pass of every micro-batch
    """

    def __init__(self, config: FineTuneRun, start: Path, world: DistributedContext) -> None:
        assert config.pfo is not None
        self._pfo, self._world = config.pfo, world
        self._start = load_decoder(start).requires_grad_(requires_grad=False).model
        if config.engine.precision != "float32":  # as FSDP casts the model that is trained
            vectors = set(small_parameters(self._start))
            for parameter in self._start.parameters():
                if parameter not in vectors:
                    parameter.data = parameter.data.bfloat16()
        self._start.to(world.device)
        self._tokens = 1

    def begin_step(self, batches: Sequence[AnswerBatch]) -> None:
        """Count the answer tokens of the whole step; `batches` is this process's part of it."""
        mine = sum((batch.length_B.sum() for batch in batches), torch.zeros((), dtype=torch.int64))
        self._tokens = int(self._world.all_reduce_sum(mine.to(self._world.device)))

    def added(
        self, loss: StepLoss, batch: AnswerBatch, hidden: HiddenStates, attention: AttentionInputs
    ) -> StepLoss:
        """`loss` with the micro-batch's part of the term, and its distance as a metric.

        hidden   last hidden states of the model that is trained
        """
        before = self._pfo.features == "before_norm"
        new_RTD = hidden.before_norm if before else hidden.after_norm
        with torch.no_grad():
            features_of = self._start.before_norm if before else self._start
            old_RTD = features_of(batch.tokens_RT, attention=attention)
        answer_RT = batch.completion_RT >= 0
        distance_N = feature_distances(new_RTD[answer_RT], old_RTD[answer_RT], self._pfo.distance)
        mean = distance_N.double().sum() / self._tokens
        return StepLoss(
            loss.loss + self._pfo.weight * mean, {**loss.metrics, METRIC: mean.detach()}
        )
