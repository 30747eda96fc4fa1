"""Objective of GRPO: the model answers prompts, and each step trains on the advantages of its answers.

Before the first step of a rollout the model answers its prompts as it is then. With one step for each
rollout the ratio of `losses.policy_gradient` is 1 in the forward pass; with several, log-probabilities
are computed once, before the first of them. Each of several processes answers its share of the prompts,
and all have all answers then; of each step it trains on whole groups.

Checked  tests/unit/align/test_grpo.py, tests/unit/align/test_grpo_processes.py
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from stamm.align.training.config import GRPO, GRPORun
from stamm.align.training.log_probs import token_log_probs
from stamm.align.training.objectives import PREFERENCE_LOSS, AnswerObjective
from stamm.align.training.rollouts import (
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
from stamm.base.console import Progress
from stamm.chat.formats import ChatFormat
from stamm.engine.distributed import DistributedContext
from stamm.engine.objective import StepLoss
from stamm.engine.parallel import full_state_dict
from stamm.losses.policy_gradient import policy_loss
from stamm.models.decoder import Decoder
from stamm.models.lora import merged_decoder
from stamm.models.serialization import load_decoder
from stamm.pretrain.sequence_objective import cut, shapes

CLIPPED, KL = "reward/clip_share", "reward/kl_per_token"
_LINES = 20  # of a run on the terminal


class GRPOObjective(AnswerObjective[RolloutBatch]):
    """The loss `losses.policy_gradient` on answers that the model gives during training.

    Metrics  "train/loss"; "reward/clip_share", the share of the step's tokens whose gradient the clipping
             removed; "reward/kl_per_token", the mean k3 estimate in nats, where beta > 0; those of
             `rollouts.Rollout.metrics`
    Memory   the start model beside the trained one where beta > 0; with adapters, where weights are cast
             to bfloat16, and with several processes, a copy of the trained one while it answers; both
             are whole in every process

    start    folder of the start model
    folder   of the arm
    """

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
        self._sampler = RolloutSampler(config, prompts, chat, world)
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
        """Begin the sums of the terminal's line."""
        self._count = max(self._count, 1)  # a step may have no group
        self._sums = {}

    def step_loss(self, batch: RolloutBatch, num_loss_tokens: float) -> StepLoss:
        """The micro-batch's part of the loss, and metrics."""
        log_prob_N = self._log_probs(batch)
        policy = policy_loss(
            log_prob_N,
            log_prob_N.detach() if self._loss.steps_per_rollout == 1 else batch.old_N,
            batch.advantage_N,
            clip_low=self._loss.clip_low,
            clip_high=self._loss.clip_high,
            reference_log_prob_N=batch.reference_N if self._loss.beta else None,
            beta=self._loss.beta,
        )
        loss = (policy.loss_N * batch.weight_N).sum() / num_loss_tokens
        metrics = {
            PREFERENCE_LOSS: loss.detach() * self.share(),
            CLIPPED: policy.clipped_N.double().sum() * self.share(self._answer_tokens),
        }
        if self._loss.beta:
            metrics[KL] = policy.kl_N.sum() * self.share(self._answer_tokens)
        with self._lock:
            for name, value in metrics.items():
                self._sums[name] = self._sums.get(name, 0.0) + float(value)
        return StepLoss(loss, metrics)

    def _log_probs(self, batch: RolloutBatch) -> Tensor:
        """Log-probability of each answer token, whichever process holds it, float64."""
        part_N = self.decoder.sequence_log_probs(
            self._shard.tokens(batch.tokens_RT),
            self._shard.tokens(batch.target_RT),
            self._shard.tokens(batch.token_RT),
            len(batch.weight_N),
            attention=self.attention(batch.document_RT),
        )
        return self.over_processes(part_N)

    def metrics(self, step: int) -> dict[str, float]:
        """Metrics of pretraining and of the rollout; logs a line at most 20 times a run."""
        assert self._rollout is not None
        rollout_metrics = self._rollout.metrics()
        if step == 1 or step == self.num_steps or step % -(-self.num_steps // _LINES) == 0:
            values = torch.tensor([*self._sums.values()], dtype=torch.float64)
            summed = self._world.all_reduce_sum(values.to(self._world.device)).tolist()
            self._progress.log(
                _line(step, rollout_metrics, dict(zip(self._sums, summed, strict=True)))
            )
        reached, total = self._tokens
        if reached != step - 1:
            total = trained_tokens(self._folder, step)
        self._tokens = (step, total + self._step_tokens)
        recorded = {
            "tokens": float(self._tokens[1]),
            "train/tokens": float(self._step_tokens),
            **rollout_metrics,
        }
        return recorded | (shapes(self.decoder) if self.records(step) else {})

    def _num_tokens(self, step: int) -> int:
        return self._step_tokens

    def _read(self, step: int) -> list[RolloutBatch]:
        """This process's micro-batches of a step; the first step of a rollout samples the answers."""
        rollout = self._rollout_of(step)
        trained = [
            rollout.answers[position] for group in rollout.of_step(step) for position in group
        ]
        self._step_tokens = sum(len(answer.ids) - 1 for answer in trained)
        self._answer_tokens = max(sum(answer.num_tokens for answer in trained), 1)
        return [
            packed_batch(
                [rollout.answers[position] for position in positions], self._run, self._pad
            )
            for positions in self._parts_of(rollout, step)
        ]

    def _parts_of(self, rollout: Rollout, step: int) -> list[list[int]]:
        """Places of the answers of this process's micro-batches, as many as those of every other one."""
        groups = rollout.of_step(step)
        parts = max(self._config.parts(self._shard.largest(len(groups))), 1)
        return [
            [*itertools.chain(*(groups[number] for number in piece))]
            for micro in cut(self._shard.rows(0, len(groups)), parts)
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
        self._rollout = self._with_log_probs(rollout, steps)
        if self._world.is_main_process:
            write_rollout(self._folder, self._rollout, whole=length > 1)
        return self._rollout

    @torch.no_grad()
    def _with_log_probs(self, rollout: Rollout, steps: Sequence[int]) -> Rollout:
        """The rollout with the log-probabilities that the loss reads; one process computes each."""
        parts = [places for step in steps for places in self._parts_of(rollout, step)]
        log_probs_by_name: dict[str, dict[int, list[float]]] = {}
        if self._loss.steps_per_rollout > 1:
            old = log_probs_by_name["old_log_probs"] = {}
            for places in parts:  # passes as in training: all processes run the same number
                answers = [rollout.answers[position] for position in places]
                batch = packed_batch(answers, self._run, self._pad).to(self._world.device)
                log_probs_by_answer = torch.split(
                    self._log_probs(batch).cpu(), [answer.num_tokens for answer in answers]
                )
                old |= {
                    position: part.tolist()
                    for position, part in zip(places, log_probs_by_answer, strict=True)
                }
        if self._reference is not None:
            positions = [*itertools.chain(*parts)]
            rows = token_log_probs(
                self._reference, [rollout.answers[position] for position in positions]
            )
            log_probs_by_name["reference_log_probs"] = dict(zip(positions, rows, strict=True))
        answers = list(rollout.answers)
        for other in self._world.all_gather_object(log_probs_by_name):
            for name, log_probs in other.items():
                for position, values in log_probs.items():
                    fields: dict[str, Any] = {name: values}
                    answers[position] = replace(answers[position], **fields)
        return replace(rollout, answers=answers)

    def _policy(self) -> Decoder:
        """The current model with unsharded weights, for sampling."""
        lora = self._run.lora
        if self._world.mesh is None and lora is None:
            return self.decoder
        weights = full_state_dict(self.decoder, self._world, everywhere=True)
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
