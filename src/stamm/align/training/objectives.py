"""Base of the objectives on answers: values of whole answers, and metrics, over all processes.

Letters: B answers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stamm.align.data.encoded import EncodedAnswer
from stamm.align.losses.preference_loss import LossInputs
from stamm.align.training.answer_dataset import AnswerBatch
from stamm.align.training.config import BradleyTerry, FineTuneRun, Preference, preference_loss
from stamm.align.training.reward_model import stop_place
from stamm.base.errors import ConfigError
from stamm.engine.distributed import DistributedContext
from stamm.engine.objective import MicroBatches, StepLoss
from stamm.engine.parallel import small_parameters
from stamm.losses.bradley_terry import bradley_terry_accuracy, bradley_terry_loss
from stamm.losses.feature_regularization import feature_distances
from stamm.models.attention_mask import AttentionInputs
from stamm.models.decoder import Decoder, HiddenStates
from stamm.models.serialization import load_decoder
from stamm.observe.statistics import effective_rank, pca_rank
from stamm.pretrain.dataset import BatchT, TrainingSequences
from stamm.pretrain.sequence_objective import SequenceObjective

MOST_TOKENS = 8192
"""Tokens of the answers with their prompts, unless one example has more."""
MOST_FEATURES = 1024
"""Answer tokens whose features are analysed: matrices are not larger than this."""
DORMANT = 0.025


class LastUnits:
    """While in use, keeps the newest outputs of the activation of the last feed-forward layer."""

    def __init__(self, decoder: Decoder) -> None:
        self._activation: nn.Module = decoder.model.layers[-1].get_submodule("mlp.act_fn")
        self.newest: Tensor | None = None

    def __enter__(self) -> LastUnits:
        def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
            self.newest = output.detach()

        self._handle = self._activation.register_forward_hook(keep)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()


def gathered(
    feature_ND: Tensor, units_NC: Tensor | None, world: DistributedContext
) -> tuple[Tensor, Tensor | None]:
    """The features of all processes that divide the same sequences, and one row of mean |h| over their tokens.

    Without context parallelism these are the process's own. With tensor parallelism the units are
    those of this process, which has all of their tokens. All processes must call it.
    """
    if world.context * world.tensor == 1:
        return feature_ND, units_NC
    size_C = None if units_NC is None else units_NC.float().abs().sum(0, dtype=torch.float64).cpu()
    count = 0 if units_NC is None else len(units_NC)
    own_part = (world.mesh_coordinates, feature_ND.detach().float().cpu(), size_C, count)
    parts = [part for part in world.all_gather_object(own_part) if part[0][0] == own_part[0][0]]
    whole_ND = torch.cat([part[1] for part in parts])
    sums = [part for part in parts if part[0][2] == own_part[0][2] and part[2] is not None]
    tokens = sum(part[3] for part in sums)
    if not tokens:
        return whole_ND, None
    return whole_ND, (sum(part[2] for part in sums) / tokens)[None]


def feature_metrics(
    feature_ND: Tensor, hidden_ND: Tensor, units_NC: Tensor | None
) -> dict[str, float]:
    """Metrics of the last hidden states, and of the outputs of the last activation.

    feature_ND   phi, before the final norm: a model that collapses lets it grow, or loses directions
    hidden_ND    the same behind the final norm, which divides by the length and scales by its weights

    tokens           N', evenly spaced tokens, at most MOST_FEATURES: the others are of these
    feature_norm     mean of |phi|
    effective_rank   exp(-sum p log p), p the singular values of phi (N', D) divided by their sum
    pca_rank         smallest number of singular values whose squares are 99 % of the sum of all
    .._centred       the same of phi minus its mean over tokens: a mean that all tokens share, or a few
                     large dimensions, can make ranks small where nothing is wrong
    .._after_norm    the norm and the two uncentred ranks of the hidden states behind the final norm
    dormant_share    share of units with mean |h| at most DORMANT times the mean over units; of this
                     process's units. Not in the result where units_NC is None

    Edge     {} without a token
    Dtypes   float64: in float32 rounding errors of small singular values would add to the ranks
    """
    if not len(feature_ND):
        return {}
    count = min(len(feature_ND), MOST_FEATURES)
    token_indexes = torch.arange(count, device=feature_ND.device) * len(feature_ND) // count
    wide, after = (states.detach()[token_indexes].double() for states in (feature_ND, hidden_ND))
    metrics = {"tokens": float(count)}
    for name, x_ND in (("", wide), ("_centred", wide - wide.mean(0)), ("_after_norm", after)):
        gram = x_ND @ x_ND.T if len(x_ND) < x_ND.shape[1] else x_ND.T @ x_ND
        squares = torch.linalg.eigvalsh(gram)
        metrics[f"effective_rank{name}"] = effective_rank(squares)
        metrics[f"pca_rank{name}"] = float(pca_rank(squares))
        if name != "_centred":
            metrics[f"feature_norm{name}"] = float(x_ND.norm(dim=1).mean())
    if units_NC is not None:
        size = units_NC.float().abs().mean(0, dtype=torch.float64)
        metrics["dormant_share"] = float((size <= DORMANT * size.mean()).double().mean())
    return {f"representation/{name}": value for name, value in metrics.items()}


def ratio_metrics(log_ratio_B: Tensor, length_B: Tensor) -> dict[str, float]:
    """Means of the policy ratios above 1, and of those of at most 1; 1 where there is none.

    The ratio of an answer is exp(log-ratio / tokens), the geometric mean over its tokens.
    """
    ratio_B = (log_ratio_B.double() / length_B.clamp(min=1)).exp()
    sides = {"ratio_above": ratio_B[ratio_B > 1], "ratio_below": ratio_B[ratio_B <= 1]}
    return {
        f"representation/{name}": float(ratio_side_N.mean()) if len(ratio_side_N) else 1.0
        for name, ratio_side_N in sides.items()
    }


PREFERENCE_LOSS = "train/loss"


class AnswerObjective(SequenceObjective[BatchT]):
    """An objective on answers; its loss is a mean over the examples of a step."""

    primary_metric = PREFERENCE_LOSS
    least_spread = 0.05  # at the start each step has the same loss, such as log 2

    def over_processes(self, part_B: Tensor) -> Tensor:
        """Values of whole answers, or of all tokens, from the parts that this process computed.

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
        share = self.share(num_examples)
        sums = {PREFERENCE_LOSS: loss.detach(), **metrics}
        return StepLoss(
            loss.sum() / num_examples, {name: value.sum() * share for name, value in sums.items()}
        )

    def share(self, terms: float = 1.0) -> float:
        """Factor of a sum over micro-batches that makes it this process's part of a mean over `terms`.

        Processes that divide sequences compute the same values: each reports its share of them.
        """
        return 1.0 / (terms * self._world.context * self._world.tensor)


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
        num_tokens = sum(
            (batch.length_B.sum() for batch in batches), torch.zeros((), dtype=torch.int64)
        )
        self._tokens = int(self._world.all_reduce_sum(num_tokens.to(self._world.device)))

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


class PreferenceObjective(AnswerObjective[AnswerBatch]):
    """The loss that `config.loss` names, on answers.

    Metrics  "train/loss"; for pairs "reward/chosen_log_ratio", "reward/rejected_log_ratio" (nats; for
             SimPO log-probabilities per token) and "reward/accuracy", the share of pairs in order, a
             tie counting 1/2; for QRPO "reward/log_ratio", "reward/quantile" and "reward/target", means
             over answers; for KTO "reward/log_ratio", "reward/kl" (the estimate, at least 0), and
             "reward/accuracy", the share of answers whose log-ratio is on the right side of it; with
             PFO "train/pfo", the mean distance without its weight, which "train/loss" does not have.
             On some steps "representation/..", of `align.training.objectives`
    start    folder of the start model, which PFO compares with
    Raises   ConfigError for SFT, which is `pretrain.next_token.NextToken`, and for BradleyTerry, which
             is `align.training.objectives.RewardObjective`
    """

    def __init__(
        self,
        config: FineTuneRun,
        decoder: Decoder,
        answers: TrainingSequences[AnswerBatch],
        world: DistributedContext,
        start: Path,
    ) -> None:
        if not isinstance(config.loss, Preference):
            raise ConfigError(f"{type(config.loss).__name__} is not a loss on log-probabilities")
        super().__init__(config, decoder, answers, world)
        self._loss = preference_loss(config.loss)
        self._probe: AnswerBatch | None = None
        self._recorded: dict[str, float] = {}
        self._kl = math.nan
        self._pfo = (
            ProximalFeatures(config, start, world) if config.pfo and config.pfo.weight else None
        )

    def begin_step(self, batches: Sequence[AnswerBatch]) -> None:
        """Compute what micro-batches and processes share: the KL, and PFO's number of tokens."""
        if self._pfo is not None:
            self._pfo.begin_step(batches)
        if not self._loss.NEEDS_MISMATCHED:
            return
        world = self._world
        kl_sums = torch.zeros(2, dtype=torch.float64, device=world.device)
        with torch.no_grad():
            for whole in batches:
                assert whole.mismatched is not None
                batch = whole.mismatched.to(world.device)
                log_prob_B = self._log_probs(batch)
                kl_sums[0] += (log_prob_B - batch.reference_B).sum()
                kl_sums[1] += len(log_prob_B)
        # Processes of context and tensor parallelism have the same values: the quotient is theirs.
        total, count = world.all_reduce_sum(kl_sums).tolist()
        self._kl = max(total / max(count, 1.0), 0.0)

    def step_loss(self, batch: AnswerBatch, num_loss_tokens: float) -> StepLoss:
        """Loss of the micro-batch's examples, divided by those of the whole step, and metrics."""
        attention = self.attention(batch.document_RT)
        log_prob_B, hidden = self._log_probs_and_hidden(batch, attention)
        inputs = LossInputs(
            log_prob_B=log_prob_B,
            reference_B=batch.reference_B,
            reward_B=batch.reward_B,
            ref_reward_BN=batch.ref_reward_BN,
            length_B=batch.length_B,
            num_examples=batch.num_examples,
            kl=self._kl,
        )
        computed = self._loss.losses(inputs)
        mean = self.mean_loss(computed.loss, computed.metrics, num_loss_tokens)
        return mean if self._pfo is None else self._pfo.added(mean, batch, hidden, attention)

    def micro_batches(self, step: int) -> MicroBatches:
        """As in pretraining; on some steps representation metrics are computed first."""
        self._recorded = self._representation() if step == 1 or self.records(step) else {}
        return super().micro_batches(step)

    def metrics(self, step: int) -> dict[str, float]:
        """Metrics of pretraining; on the first step, and where shapes are recorded, representations."""
        return {**super().metrics(step), **self._recorded}

    @torch.no_grad()
    def _representation(self) -> dict[str, float]:
        """Metrics of `align.training.objectives`; all processes must call it."""
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
        newest = units.newest
        if newest is not None:
            # Processes of tensor parallelism have some units of all tokens.
            whole = newest.shape[:2] == batch.completion_RT.shape
            newest = newest[batch.completion_RT >= 0 if whole else answer_RT]
        both_NE = torch.cat([states[answer_RT] for states in hidden], dim=-1)
        both_NE, units_NC = gathered(both_NE, newest, self._world)
        if not self._world.is_main_process:
            return {}
        feature_ND, hidden_ND = both_NE.chunk(2, dim=-1)
        metrics = feature_metrics(feature_ND, hidden_ND, units_NC)
        if self._loss.NEEDS_REFERENCE:
            metrics |= ratio_metrics(log_prob_B - batch.reference_B, batch.length_B)
        return metrics

    def _log_probs(self, batch: AnswerBatch) -> Tensor:
        """Log-probability of each answer, whichever processes hold its tokens, float64."""
        return self._log_probs_and_hidden(batch, self.attention(batch.document_RT))[0]

    def _log_probs_and_hidden(
        self, batch: AnswerBatch, attention: AttentionInputs
    ) -> tuple[Tensor, HiddenStates]:
        """Log-probability of each answer, and the last hidden states of this process's tokens."""
        part_B, hidden = self.decoder.sequence_log_probs_and_hidden(
            self._shard.tokens(batch.tokens_RT),
            self._shard.tokens(batch.target_RT),
            self._shard.tokens(batch.completion_RT),
            len(batch.length_B),
            attention=attention,
        )
        return self.over_processes(part_B), hidden


class RewardObjective(AnswerObjective[AnswerBatch]):
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
    answers_to_stop = []
    for answer in answers:
        read = stop_place(answer.supervised) + 1
        answers_to_stop.append(
            dataclasses.replace(
                answer, ids=[*answer.ids[:read], pad], supervised=[False] * read + [True]
            )
        )
    return answers_to_stop
