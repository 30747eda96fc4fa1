"""Answers to prompts as training examples: single ones with a reward, or pairs, packed into sequences.

Letters: B answers, R packed rows, T tokens of a row, N reference rewards.
Checked  tests/unit/align/test_answer_dataset.py
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stamm.align.training.chat_dataset import best_fit, token_counts
from stamm.align.training.epoch_order import epoch_order
from stamm.align.training.log_probs import AnswerTokens
from stamm.base.errors import DataError
from stamm.pretrain.dataset import moved


class TrainingAnswer(AnswerTokens, Protocol):
    """An answer to train on, with its place in the data."""

    @property
    def example(self) -> int:
        """Number of the example: the two answers of a pair share it."""

    @property
    def role(self) -> str:
        """ "chosen", "rejected" or "rated"."""

    @property
    def reward(self) -> float | None:
        """Its reward; None: not rated."""

    @property
    def ref_rewards(self) -> tuple[float, ...]:
        """Rewards of reference completions of the same prompt."""


@dataclass(frozen=True)
class AnswerBatch:
    """Answers of one micro-batch; pairs are answers 2i (chosen) and 2i + 1 (rejected).

    tokens_RT, target_RT   inputs, and the token after each
    document_RT            answer that each input belongs to, within its row; attention stays in it
    completion_RT          answer whose log-probability each target counts for, 0 to B - 1; -1: none
    reference_B            log-probability under the reference policy in nats, float64; NaN: unknown
    reward_B               float64; NaN: not rated
    ref_reward_BN          rewards of reference completions, float64, filled up with NaN
    length_B               tokens that count, int64
    num_examples           pairs, or single answers
    mismatched             prompts with answers to other prompts, for KTO
    """

    tokens_RT: Tensor
    target_RT: Tensor
    document_RT: Tensor
    completion_RT: Tensor
    reference_B: Tensor
    reward_B: Tensor
    ref_reward_BN: Tensor
    length_B: Tensor
    num_examples: int
    mismatched: AnswerBatch | None = None

    @property
    def num_rows(self) -> int:
        """Packed rows."""
        return len(self.tokens_RT)

    @property
    def loss_count(self) -> int:
        """Number of examples."""
        return self.num_examples

    def to(self, device: torch.device) -> AnswerBatch:
        """The same batch on a device."""
        left = ("num_examples", "mismatched")
        names = [f.name for f in dataclasses.fields(self) if f.name not in left]
        values = moved([getattr(self, name) for name in names], device)
        tensors: dict[str, Any] = dict(zip(names, values, strict=True))
        others = None if self.mismatched is None else self.mismatched.to(device)
        return dataclasses.replace(self, **tensors, mismatched=others)


class AnswerSequences:
    """Examples by their place in the run; random access, no state.

    answers      prepared answers, those of a pair beside each other
    reference    log-probability of each answer under the reference policy, float64; None: not needed
    paired       examples are pairs; otherwise every answer is an example of its own
    context      tokens of a packed row
    seed         decides the order in each epoch
    pad          id of the padding token
    labels       1 or 0 for each answer, in place of its reward; None: rewards are read
    mismatched   prompts with answers to others, and their log-probabilities under the reference
                 policy, as `mismatched_answers.MismatchedAnswers`; None: not needed

    Raises   DataError without answers, for an answer that is longer than a row, and with `paired`
             for an example that is not one chosen and one rejected answer
    """

    def __init__(
        self,
        answers: Sequence[TrainingAnswer],
        reference: Sequence[float] | None,
        *,
        paired: bool,
        context: int,
        seed: int,
        pad: int,
        labels: Sequence[float] | None = None,
        mismatched: tuple[Sequence[TrainingAnswer | None], Sequence[float]] | None = None,
    ) -> None:
        if not answers:
            raise DataError("no answer to train on", fix="Check the data and the context")
        self._answers, self._context, self._seed, self._pad = answers, context, seed, pad
        self._labels, self._mismatched = labels, mismatched
        self._reference = [math.nan] * len(answers) if reference is None else list(reference)
        self._examples = _pairs(answers) if paired else [(place,) for place in range(len(answers))]
        self._lengths = token_counts(answers) - 1
        longest = int(self._lengths.max())
        if longest > context:
            raise DataError(
                f"an answer has {longest} tokens with its prompt, and sequences have {context}",
                fix="Prepare the data with this context",
            )
        self._example_tokens = np.array(
            [sum(self._lengths[place] for place in each) for each in self._examples], dtype=np.int64
        )

    @property
    def per_epoch(self) -> int:
        """Examples in one pass over the data."""
        return len(self._examples)

    def num_tokens(self, first: int, count: int) -> int:
        """Tokens of the examples first .. first + count - 1 of the run, prompts included."""
        return int(self._example_tokens[self._places(first, count)].sum())

    def batch(self, first: int, count: int) -> AnswerBatch:
        """Examples first .. first + count - 1 of the run, packed into as few rows as best fit finds."""
        examples = [self._examples[place] for place in self._places(first, count)]
        chosen = [place for example in examples for place in example]
        found = [self._answers[place] for place in chosen]
        rewards = [math.nan if answer.reward is None else answer.reward for answer in found]
        if self._labels is not None:
            rewards = [self._labels[place] for place in chosen]
        batch = self._packed(found, [self._reference[place] for place in chosen], rewards, count)
        if self._mismatched is None:
            return batch
        answers, log_probs = self._mismatched
        others = [
            (other, log_probs[place]) for place in chosen if (other := answers[place]) is not None
        ]
        unrated = [math.nan] * len(others)
        rest = [list(part) for part in zip(*others, strict=True)] or [[], []]
        mismatched = self._packed(rest[0], rest[1], unrated, len(others))
        return dataclasses.replace(batch, mismatched=mismatched)

    def _packed(
        self,
        found: Sequence[TrainingAnswer],
        reference: Sequence[float],
        rewards: Sequence[float],
        count: int,
    ) -> AnswerBatch:
        """These answers in as few rows as best fit finds."""
        tokens, target, document, completion = packed_rows(found, self._context, self._pad)
        most = max([1, *(len(answer.ref_rewards) for answer in found)])
        references = [
            [*answer.ref_rewards, *[math.nan] * (most - len(answer.ref_rewards))]
            for answer in found
        ]
        lengths = [sum(answer.supervised[1:]) for answer in found]
        return AnswerBatch(
            tokens_RT=torch.from_numpy(tokens),
            target_RT=torch.from_numpy(target),
            document_RT=torch.from_numpy(document),
            completion_RT=torch.from_numpy(completion),
            reference_B=torch.tensor(reference, dtype=torch.float64),
            reward_B=torch.tensor(rewards, dtype=torch.float64),
            ref_reward_BN=torch.tensor(references, dtype=torch.float64).reshape(len(found), most),
            length_B=torch.tensor(lengths, dtype=torch.int64),
            num_examples=count,
        )

    def _places(self, first: int, count: int) -> NDArray[np.int64]:
        """Numbers of the examples at these places of the run."""
        return epoch_order(first, count, len(self._examples), self._seed)


def packed_rows(
    answers: Sequence[AnswerTokens], context: int, pad: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """These answers in as few rows as best fit finds: tokens, targets, documents, completions, (R, T).

    Edge   no answers make one row of padding: all processes run the same passes
    """
    rows = best_fit([len(answer.ids) - 1 for answer in answers], context) or [[]]
    shape = (len(rows), context)
    tokens, target = np.full(shape, pad), np.full(shape, pad)
    document, completion = np.zeros(shape, dtype=np.int64), np.full(shape, -1)
    for row, inside in enumerate(rows):
        start = 0
        for number, position in enumerate(inside):
            answer = answers[position]
            stop = start + len(answer.ids) - 1
            tokens[row, start:stop] = answer.ids[:-1]
            target[row, start:stop] = answer.ids[1:]
            document[row, start:stop] = number
            counted = np.asarray(answer.supervised[1:], dtype=np.bool_)
            completion[row, start:stop][counted] = position
            start = stop
        document[row, start:] = len(inside)
    return tokens, target, document, completion


def _pairs(answers: Sequence[TrainingAnswer]) -> list[tuple[int, ...]]:
    """Positions of the chosen and the rejected answer of each example."""
    by_example: dict[int, dict[str, int]] = {}
    for place, answer in enumerate(answers):
        roles = by_example.setdefault(answer.example, {})
        if answer.role in roles:
            raise DataError(f"example {answer.example} has two {answer.role} answers")
        roles[answer.role] = place
    for example, roles in by_example.items():
        if roles.keys() != {"chosen", "rejected"}:
            raise DataError(
                f"example {example} has the answers {', '.join(sorted(roles))}, not chosen and "
                "rejected",
                fix="Give pairs (chosen, rejected), or train with QRPO on rated answers",
            )
    return [(roles["chosen"], roles["rejected"]) for roles in by_example.values()]
