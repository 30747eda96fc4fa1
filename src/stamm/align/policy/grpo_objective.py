"""Objective of GRPO: the model answers prompts, and each step trains on the advantages of its answers.

Before the first step of a rollout the model answers its prompts as it is then. With one step for each
rollout the ratio of `losses.policy_gradient` is 1 in the forward pass; with several, log-probabilities
are computed once, before the first of them.

Checked  tests/unit/align/test_grpo.py
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from stamm.align.policy.config import GRPORun
from stamm.align.policy.rollouts import (
    FOLDER,
    Prompts,
    Rollout,
    RolloutBatch,
    RolloutSampler,
    packed_batch,
    read_rollout,
    trained_tokens,
    write_rollout,
)
from stamm.align.training.answer_objective import PREFERENCE_LOSS
from stamm.align.training.log_probs import token_log_probs
from stamm.align.training.loss_config import GRPO
from stamm.base.console import Progress
from stamm.chat.formats import ChatFormat
from stamm.engine.distributed import DistributedContext
from stamm.engine.objective import StepLoss
from stamm.engine.parallel import full_state_dict
from stamm.losses.policy_gradient import policy_loss
from stamm.models.decoder import Decoder
from stamm.models.lora import merged_decoder
from stamm.models.serialization import load_decoder
from stamm.pretrain.sequence_objective import SequenceObjective, cut, shapes

CLIPPED, KL = "reward/clip_share", "reward/kl_per_token"
_LINES = 20  # of a run on the terminal


class GRPOObjective(SequenceObjective[RolloutBatch]):
    """The loss `losses.policy_gradient` on answers that the model gives during training.

    Metrics  "train/loss"; "reward/clip_share", the share of the step's tokens whose gradient the clipping
             removed; "reward/kl_per_token", the mean k3 estimate in nats, where beta > 0; those of
             `rollouts.Rollout.metrics`
    Memory   the start model beside the trained one where beta > 0; with adapters, and where weights are
             cast to bfloat16, a copy of the trained one while it answers

    start    folder of the start model
    folder   of the arm
    """

    primary_metric = PREFERENCE_LOSS
    least_spread = 10.0  # advantages have the mean 0, and so has the loss

    def __init__(
        self,
        config: GRPORun,
        decoder: Decoder,
        prompts: Prompts,
        world: DistributedContext,
        *,
        chat: ChatFormat,
        start: Path,
        folder: Path,
        progress: Progress,
    ) -> None:
        super().__init__(config, decoder, prompts, world)
        assert isinstance(config.loss, GRPO)
        self._run, self._loss, self._pad = config, config.loss, chat.pad_id
        self._sampler = RolloutSampler(config, prompts, chat)
        self._folder, self._progress = folder / FOLDER, progress
        self._rollout: Rollout | None = None
        self._step_tokens, self._answer_tokens = 0, 1
        self._tokens = (0, 0)  # of the run, up to a step
        self._sums: dict[str, float] = {}
        self._lock = Lock()
        self._reference: Decoder | None = None
        if self._loss.beta:
            self._reference = load_decoder(start).requires_grad_(requires_grad=False)
            self._reference.to(world.device)

    def begin_step(self, batches: Sequence[RolloutBatch]) -> None:
        """Count the answer tokens of the step."""
        self._answer_tokens = max(sum(len(batch.weight_N) for batch in batches), 1)
        self._count = max(self._count, 1)  # a step may have no group
        self._sums = {}

    def step_loss(self, batch: RolloutBatch, num_loss_tokens: float) -> StepLoss:
        """The micro-batch's part of the loss, and metrics."""
        log_prob_N = self.decoder.sequence_log_probs(
            batch.tokens_RT,
            batch.target_RT,
            batch.token_RT,
            len(batch.weight_N),
            attention=self.attention(batch.document_RT),
        )
        found = policy_loss(
            log_prob_N,
            log_prob_N.detach() if self._loss.steps_per_rollout == 1 else batch.old_N,
            batch.advantage_N,
            clip_low=self._loss.clip_low,
            clip_high=self._loss.clip_high,
            reference_log_prob_N=batch.reference_N if self._loss.beta else None,
            beta=self._loss.beta,
        )
        loss = (found.loss_N * batch.weight_N).sum() / num_loss_tokens
        metrics = {
            PREFERENCE_LOSS: loss.detach(),
            CLIPPED: found.clipped_N.double().sum() / self._answer_tokens,
        }
        if self._loss.beta:
            metrics[KL] = found.kl_N.sum() / self._answer_tokens
        with self._lock:
            for name, value in metrics.items():
                self._sums[name] = self._sums.get(name, 0.0) + float(value)
        return StepLoss(loss, metrics)

    def metrics(self, step: int) -> dict[str, float]:
        """Those of pretraining, and of the rollout; a line on the terminal at most 20 times a run."""
        assert self._rollout is not None
        found = self._rollout.metrics()
        if step == 1 or step == self.num_steps or step % -(-self.num_steps // _LINES) == 0:
            self._progress.log(_line(step, found, self._sums))
        reached, total = self._tokens
        if reached != step - 1:
            total = trained_tokens(self._folder, step)
        self._tokens = (step, total + self._step_tokens)
        values = {
            "tokens": float(self._tokens[1]),
            "train/tokens": float(self._step_tokens),
            **found,
        }
        return values | (shapes(self.decoder) if self.records(step) else {})

    def _num_tokens(self, step: int) -> int:
        return self._step_tokens

    def _read(self, step: int) -> list[RolloutBatch]:
        """The answers that a step trains on; the first step of a rollout gives them."""
        rollout = self._rollout_of(step)
        groups = rollout.of_step(step)
        self._step_tokens = sum(len(answer.ids) - 1 for group in groups for answer in group)
        return [
            packed_batch(
                [*itertools.chain(*(groups[place] for place in piece))], self._run, self._pad
            )
            for micro in cut(range(len(groups)), max(self._config.parts(len(groups)), 1))
            for piece in cut(micro, self._pieces(max(len(micro), 1)))  # a step may have no group
        ]

    def _rollout_of(self, step: int) -> Rollout:
        """The rollout of a step: that of the step before, a stored one, or a new one."""
        length = self._loss.steps_per_rollout
        first = (step - 1) // length * length + 1
        if self._rollout is not None and self._rollout.first_step == first and step > first:
            return self._rollout
        if step > first:
            self._rollout = read_rollout(self._folder, first)
            return self._rollout
        steps = range(first, min(first + length, self.num_steps + 1))
        spans = [self._plan.step(number - 1) for number in steps]
        begin = self._config.first_sequence + spans[0].first
        rollout = self._sampler.rollout(self._policy(), first, begin, [span.size for span in spans])
        self._rollout = self._with_log_probs(rollout)
        write_rollout(self._folder, self._rollout, whole=length > 1)
        return self._rollout

    def _with_log_probs(self, rollout: Rollout) -> Rollout:
        """With what the loss reads of each answer that is trained on."""
        models = {"reference_log_probs": self._reference} if self._reference is not None else {}
        if self._loss.steps_per_rollout > 1:
            models["old_log_probs"] = self.decoder
        places = [p for p, answer in enumerate(rollout.answers) if answer.step is not None]
        answers = list(rollout.answers)
        for name, model in models.items():
            found = token_log_probs(model, [answers[place] for place in places])
            for place, log_probs in zip(places, found, strict=True):
                more: dict[str, Any] = {name: log_probs}
                answers[place] = replace(answers[place], **more)
        return replace(rollout, answers=answers)

    def _policy(self) -> Decoder:
        """The model as it is now, whole, for sampling."""
        lora = self._run.lora
        if self._world.mesh is None and lora is None:
            return self.decoder
        weights = full_state_dict(self.decoder, self._world)
        if lora is not None:
            return merged_decoder(self._run.model, weights, lora).to(self._world.device)
        decoder = Decoder(self._run.model)
        decoder.load_state_dict(weights, strict=False)  # tied weights are stored once
        return decoder.to(self._world.device)


def _line(step: int, rollout: dict[str, float], sums: dict[str, float]) -> str:
    shown = [f"reward {rollout['reward/mean']:.4f}"]
    shown += [f"KL {sums[KL]:.4f} nats per token"] if KL in sums else []
    shown += [
        f"clipped {sums[CLIPPED]:.1%}",
        f"groups of equal rewards {rollout['reward/equal_groups']:.0%}",
        f"{rollout['reward/length']:.1f} tokens",
        f"cut {rollout['reward/cut']:.0%}",
    ]
    shown += [f"unrated {share:.0%}"] if (share := rollout["reward/unrated"]) else []
    return f"Step {step}: {', '.join(shown)}."
