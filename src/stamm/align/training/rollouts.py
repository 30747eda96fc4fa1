"""Rollouts: answers that the trained model gives during training, with rewards and advantages.

A rollout is the groups of answers that the next steps train on, and a file: rollouts/step-000001.parquet,
by its first step. A row per answer:

prompt, sample         number of the prompt in the file of prompts (from 0), and of the answer in its group
draw                   0, or which refill of dynamic sampling the prompt is from
step                   that trains on it; null: dropped, or without a loss
reward, advantage      null where the answer could not be rated
prompt_tokens, num_tokens, stopped, text
ids, old_log_probs, reference_log_probs   where several steps train on a rollout, which a
                       resumed run reads again; else null

Letters: R packed rows, T tokens of a row, N answer tokens.
Checked  tests/unit/align/test_grpo.py
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from stamm.align.rewards.load_reward import load_reward
from stamm.align.rewards.reward import Answer, rewards_of
from stamm.align.sampling.prompts import SamplePrompt, completion_row
from stamm.align.training.answer_dataset import on_device, packed_rows
from stamm.align.training.chat_dataset import epoch_order, row_width
from stamm.align.training.config import GRPO, GRPORun
from stamm.base.errors import DataError, RunError, StammError
from stamm.chat.conversation import AssistantTurn
from stamm.chat.formats import ChatFormat
from stamm.corpus.tables import read_table, write_whole
from stamm.engine.distributed import DistributedContext
from stamm.losses.policy_gradient import (
    answer_weights,
    are_equal,
    group_advantages,
    overlong_penalty,
)
from stamm.models.decoder import Decoder
from stamm.models.sampling import sample
from stamm.pretrain.sequence_objective import cut

FOLDER = "rollouts"
_FLOATS, _IDS = pa.list_(pa.float64()), pa.list_(pa.int32())
_SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in ("prompt", "sample", "draw", "step")),
        *((name, pa.float64()) for name in ("reward", "advantage")),
        *(("num_tokens", pa.int64()), ("stopped", pa.bool_()), ("text", pa.string())),
        *(("ids", _IDS), ("prompt_tokens", pa.int64())),
        *(("old_log_probs", _FLOATS), ("reference_log_probs", _FLOATS)),
    ]
)
_OTHER_PROMPTS = 1 << 32  # of refills: other seeds of the order, and other keys of the sampler


@dataclass(frozen=True, kw_only=True)
class Rated:
    """An answer of a rollout; the columns of its file, `ids` with the prompt."""

    prompt: int
    sample: int
    draw: int
    step: int | None = None
    reward: float | None
    advantage: float | None = None
    num_tokens: int
    stopped: bool
    text: str
    ids: Sequence[int]
    prompt_tokens: int
    old_log_probs: Sequence[float] | None = None
    reference_log_probs: Sequence[float] | None = None

    @property
    def supervised(self) -> Sequence[bool]:
        """Which ids the model wrote."""
        return [position >= self.prompt_tokens for position in range(len(self.ids))]


@dataclass(frozen=True)
class RolloutBatch:
    """Answers of one micro-batch, packed.

    tokens_RT, target_RT, document_RT   as in `answer_dataset.AnswerBatch`
    token_RT                            number of each answer token, 0 to N - 1, answer by answer; -1:
                                        prompts and padding
    advantage_N, weight_N               of its answer
    old_N, reference_N                  log-probabilities in nats, float64; NaN: not needed
    terms                               what the sums of a step are divided by
    """

    tokens_RT: Tensor
    target_RT: Tensor
    document_RT: Tensor
    token_RT: Tensor
    advantage_N: Tensor
    weight_N: Tensor
    old_N: Tensor
    reference_N: Tensor
    terms: int

    @property
    def num_rows(self) -> int:
        """Packed rows."""
        return len(self.tokens_RT)

    @property
    def loss_count(self) -> int:
        """Answers, or tokens where the loss is their mean."""
        return self.terms

    def to(self, device: torch.device) -> RolloutBatch:
        """The same batch on a device."""
        return dataclasses.replace(self, **on_device(self, device))


class Prompts:
    """Encoded prompts with random access by their place in the run.

    ids    of each prompt, as the chat format encodes it
    """

    def __init__(self, prompts: Sequence[SamplePrompt], ids: Sequence[list[int]]) -> None:
        self.prompts, self.ids = prompts, ids

    @property
    def per_epoch(self) -> int:
        """Prompts in one pass."""
        return len(self.prompts)

    def batch(self, first: int, count: int) -> RolloutBatch:
        """Never called: the answers to a prompt do not exist before their step."""
        raise NotImplementedError

    def num_tokens(self, first: int, count: int) -> int:
        """Never called, as `batch`."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """All answers of a rollout, those of a group beside each other."""

    first_step: int
    answers: Sequence[Rated]

    def of_step(self, step: int) -> list[list[int]]:
        """Places in `answers` of the groups that a step trains on, without answers that have no loss."""
        groups = [[p for p in group if self.answers[p].step == step] for group in self._groups()]
        return [group for group in groups if group]

    def _groups(self) -> list[list[int]]:
        """Places of all groups; a prompt has several where a step has more prompts than the file."""
        groups: list[list[int]] = []
        for position, answer in enumerate(self.answers):
            if answer.sample == 0:
                groups.append([])
            groups[-1].append(position)
        return groups

    def metrics(self) -> dict[str, float]:
        """Means over all sampled answers; the share of groups of equal rewards."""
        groups = ([self.answers[position] for position in group] for group in self._groups())
        rewards = [rated for group in groups if (rated := _rewards(group))]
        rated = [reward for group in rewards for reward in group]
        count = len(self.answers)
        return {
            "reward/mean": math.fsum(rated) / len(rated),
            "reward/equal_groups": sum(map(are_equal, rewards)) / len(rewards),
            "reward/unrated": 1 - len(rated) / count,
            "reward/length": sum(answer.num_tokens for answer in self.answers) / count,
            "reward/cut": sum(not answer.stopped for answer in self.answers) / count,
        }


@dataclass(frozen=True)
class RolloutShare:
    """Rated answers of one process, or the error that ended it.

    unrated   why the first answer could not be rated, where none could
    error     of sampling or of the reward
    """

    groups: Sequence[list[Rated]] = ()
    unrated: RunError | None = None
    error: StammError | None = None


class RolloutSampler:
    """Answers prompts with the policy, and rates them; every process its share of the prompts.

    Raises   what loading the reward raises
    """

    def __init__(
        self, config: GRPORun, prompts: Prompts, chat: ChatFormat, world: DistributedContext
    ) -> None:
        assert isinstance(config.loss, GRPO)
        self._config, self._loss, self._prompts, self._chat = config, config.loss, prompts, chat
        self._world = world
        self._reward = load_reward(config.reward)

    def rollout(
        self, policy: Decoder, first_step: int, first: int, sizes: Sequence[int]
    ) -> Rollout:
        """The answers to the prompts at the places first .. first + sum(sizes) - 1 of the run.

        All processes call it, and get all answers.

        sizes   prompts of each step that trains on them. Where dynamic sampling finds fewer groups,
                every step has fewer

        Raises   RunError where no answer could be rated; what the reward raises
        """
        wanted = sum(sizes)
        groups: list[list[Rated]] = []
        kept: list[int] = []
        for draw in range(self._loss.refills + 1 if self._loss.drop_equal else 1):
            missing = wanted - len(kept)
            if not missing:
                break
            for group in self._groups(policy, draw, first, missing):
                if len(_rewards(group)) > 1 and not (
                    self._loss.drop_equal and are_equal(_rewards(group))
                ):
                    kept.append(len(groups))
                groups.append(group)
        bounds = np.cumsum([0, *sizes])
        for number, index in enumerate(kept):
            prompt_number = number * wanted // len(kept)
            offset = int(np.searchsorted(bounds, prompt_number, side="right")) - 1
            groups[index] = self._advantages(groups[index], first_step + offset)
        return Rollout(
            first_step=first_step, answers=[answer for group in groups for answer in group]
        )

    def _groups(self, policy: Decoder, draw: int, first: int, count: int) -> list[list[Rated]]:
        """A group of rated answers for each of `count` prompts.

        An error in one process is raised in all processes.
        """
        seed = self._config.seed + draw * _OTHER_PROMPTS
        numbers = epoch_order(first, count, self._prompts.per_epoch, seed).tolist()
        own_range = [*cut(range(count), self._world.size)][self._world.rank]
        share = RolloutShare()
        if own_range:
            start = draw * _OTHER_PROMPTS + first + own_range.start
            try:
                share = self._share(policy, draw, numbers[own_range.start : own_range.stop], start)
            except StammError as error:
                share = RolloutShare(error=error)
        shares: list[RolloutShare] = self._world.all_gather_object(share)
        for rollout_share in shares:
            if rollout_share.error is not None:
                raise rollout_share.error
        unrated = [rollout_share.unrated for rollout_share in shares if rollout_share.groups]
        if draw == 0 and all(unrated) and unrated[0] is not None:
            raise unrated[0]
        return [group for rollout_share in shares for group in rollout_share.groups]

    def _share(
        self, policy: Decoder, draw: int, numbers: Sequence[int], start: int
    ) -> RolloutShare:
        """Rated answers to the prompts of these numbers.

        start   place of the first prompt in the run, which the random numbers follow from: they do not
                depend on the process
        """
        config, n = self._config, self._config.n
        ids = [self._prompts.ids[number] for number in numbers for _ in range(n)]
        keys = range(start * n, start * n + len(ids))
        sampled = sample(policy, ids, config.sampling, self._chat.stop_ids, keys)
        completions = sorted(sampled, key=lambda completion: completion.request)
        prompts = [
            self._prompts.prompts[numbers[completion.request // n]] for completion in completions
        ]
        answers = [
            Answer(
                prompt.conversation,
                AssistantTurn(self._chat.parse(completion.tokens)),
                completion_row(prompt, completion, n, self._chat),
            )
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        rewards = rewards_of(self._reward, answers)
        unrated = None
        if all(isinstance(reward, DataError) for reward in rewards):
            unrated = RunError(
                f"no answer could be rated: {rewards[0]}",
                where=f"{prompts[0].file}, row {prompts[0].row}",
                fix="Check reward and prompts",
            )
        rated = [
            Rated(
                prompt=numbers[completion.request // n],
                sample=completion.request % n,
                draw=draw,
                reward=None if isinstance(reward, DataError) else reward,
                num_tokens=len(completion.tokens),
                stopped=completion.stopped,
                text=answer.text,
                ids=[*ids[completion.request], *completion.tokens],
                prompt_tokens=len(ids[completion.request]),
            )
            for completion, answer, reward in zip(completions, answers, rewards, strict=True)
        ]
        groups = [rated[start : start + n] for start in range(0, len(rated), n)]
        return RolloutShare(groups, unrated)

    def _advantages(self, group: Sequence[Rated], step: int) -> list[Rated]:
        """The group with the advantages of its answers, and the step that trains on them."""
        loss, longest = self._loss, self._config.sampling.max_new_tokens
        rated = [answer for answer in group if answer.reward is not None]
        penalties = [
            overlong_penalty(answer.num_tokens, longest, loss.overlong_tokens)
            if loss.overlong == "penalty"
            else 0.0
            for answer in rated
        ]
        rewards = [r + penalty for r, penalty in zip(_rewards(group), penalties, strict=True)]
        advantages = iter(group_advantages(rewards, loss.scale))
        return [
            answer
            if answer.reward is None
            else dataclasses.replace(
                answer,
                advantage=next(advantages),
                step=step if answer.stopped or loss.overlong != "mask" else None,
            )
            for answer in group
        ]


def packed_batch(answers: Sequence[Rated], config: GRPORun, pad: int) -> RolloutBatch:
    """These answers as tensors."""
    assert isinstance(config.loss, GRPO)
    average = config.loss.average
    parallel = config.engine.parallel
    width = config.context
    if parallel.context * parallel.tensor == 1:  # else processes divide rows at fixed places
        width = row_width(sum(len(answer.ids) - 1 for answer in answers), width)
    tokens, target, document, completion = packed_rows(answers, width, pad)
    counted = completion >= 0
    number = np.full(completion.shape, -1)
    order = np.argsort(completion[counted], kind="stable")  # tokens of an answer lie in their order
    number[counted] = np.argsort(order)
    owner = torch.from_numpy(completion[counted][order])

    def by_token(values: Sequence[Sequence[float] | None]) -> Tensor:
        if not values or values[0] is None:
            return torch.full((len(owner),), math.nan, dtype=torch.float64)
        joined = [value for part in values if part is not None for value in part]
        return torch.tensor(joined, dtype=torch.float64)

    length_B = torch.tensor([answer.num_tokens for answer in answers], dtype=torch.float64)
    advantage_B = torch.tensor([answer.advantage or 0.0 for answer in answers], dtype=torch.float64)
    weight_B = answer_weights(length_B, average, config.sampling.max_new_tokens)
    return RolloutBatch(
        tokens_RT=torch.from_numpy(tokens),
        target_RT=torch.from_numpy(target),
        document_RT=torch.from_numpy(document),
        token_RT=torch.from_numpy(number),
        advantage_N=advantage_B[owner],
        weight_N=weight_B[owner],
        old_N=by_token([answer.old_log_probs for answer in answers]),
        reference_N=by_token([answer.reference_log_probs for answer in answers]),
        terms=len(owner) if average == "token" else len(answers),
    )


def write_rollout(folder: Path, rollout: Rollout, *, whole: bool) -> None:
    """Store a rollout; `whole`: with the ids and log-probabilities that a resumed run needs."""
    left_out = () if whole else ("ids", "old_log_probs", "reference_log_probs")
    rows = ({**vars(answer), **dict.fromkeys(left_out)} for answer in rollout.answers)
    folder.mkdir(exist_ok=True)
    write_whole(_path(folder, rollout.first_step), _SCHEMA, rows)


def read_rollout(folder: Path, first_step: int) -> Rollout:
    """The stored rollout whose first step is `first_step`."""
    rows = read_table(_path(folder, first_step)).to_pylist()
    return Rollout(first_step=first_step, answers=[Rated(**row) for row in rows])


def trained_tokens(folder: Path, before: int) -> int:
    """Tokens that the steps before `before` trained on, by the stored rollouts, padding left out."""
    total = 0
    for path in sorted(folder.glob("step-*.parquet")):
        for row in read_table(path, ["step", "prompt_tokens", "num_tokens"]).to_pylist():
            if row["step"] is not None and row["step"] < before:
                total += row["prompt_tokens"] + row["num_tokens"] - 1
    return total


def _path(folder: Path, first_step: int) -> Path:
    return folder / f"step-{first_step:06d}.parquet"


def _rewards(group: Sequence[Rated]) -> list[float]:
    return [answer.reward for answer in group if answer.reward is not None]
