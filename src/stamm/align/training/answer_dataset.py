"""Answers to prompts as training examples: single ones with a reward, or pairs, packed into sequences.

Letters: B answers, R packed rows, T tokens of a row, N reference rewards.
Checked  tests/unit/align/test_answer_dataset.py
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stamm.align.data.encoded import EncodedAnswer, ReadSequence
from stamm.align.training.chat_dataset import (
    best_fit,
    epoch_order,
    filled_rows,
    row_width,
    token_counts,
)
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
        """Reward of the answer; None: not rated."""

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
    mismatched             prompts with answers to other prompts, for losses that read KL
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
        others = None if self.mismatched is None else self.mismatched.to(device)
        return dataclasses.replace(self, **on_device(self, device), mismatched=others)


class AnswerSequences:
    """Examples by their place in the run; random access, no state.

    answers      prepared answers, those of a pair beside each other
    reference    log-probability of each answer under the reference policy, float64; None: not needed
    paired       examples are pairs; otherwise every answer is an example of its own
    context      most tokens of a packed row; rows of equally many examples are equally wide, by
                 `row_width` of the longest examples of the data
    seed         decides the order in each epoch
    pad          id of the padding token
    padded       whether all rows have `context` tokens: processes divide them at fixed places
    labels       1 or 0 for each answer, in place of its reward; None: rewards are read
    mismatched   prompts with answers to others, and their log-probabilities under the reference
                 policy, as `MismatchedAnswers`; None: not needed

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
        padded: bool = False,
        labels: Sequence[float] | None = None,
        mismatched: tuple[Sequence[TrainingAnswer | None], Sequence[float]] | None = None,
    ) -> None:
        if not answers:
            raise DataError("no answer to train on", fix="Check the data and the context")
        self._answers, self._context, self._seed, self._pad = answers, context, seed, pad
        self._labels, self._mismatched = labels, mismatched
        self._reference = [math.nan] * len(answers) if reference is None else list(reference)
        self._examples = (
            pairs_of(answers) if paired else [(position,) for position in range(len(answers))]
        )
        self._lengths = token_counts(answers) - 1
        longest = int(self._lengths.max())
        if longest > context:
            raise DataError(
                f"an answer has {longest} tokens with its prompt, and sequences have {context}",
                fix="Prepare the data with this context",
            )
        self._example_tokens = np.array(
            [sum(self._lengths[position] for position in example) for example in self._examples],
            dtype=np.int64,
        )

        self._most_tokens = np.sort(self._example_tokens)[::-1].cumsum()
        self._padded = padded

    @property
    def per_epoch(self) -> int:
        """Examples in one pass over the data."""
        return len(self._examples)

    def num_tokens(self, first: int, count: int) -> int:
        """Tokens of the examples first .. first + count - 1 of the run, prompts included."""
        return int(self._example_tokens[self._places(first, count)].sum())

    def batch(self, first: int, count: int) -> AnswerBatch:
        """Examples first .. first + count - 1 of the run, packed into as few rows as best fit finds."""
        examples = [self._examples[index] for index in self._places(first, count)]
        chosen = [position for example in examples for position in example]
        chosen_answers = [self._answers[position] for position in chosen]
        rewards = [
            math.nan if answer.reward is None else answer.reward for answer in chosen_answers
        ]
        if self._labels is not None:
            rewards = [self._labels[position] for position in chosen]
        reference = [self._reference[position] for position in chosen]
        # The same for every batch of as many examples: a compiled step has one shape.
        most = self._most_tokens[: max(count, 1)][-1]
        width = self._context if self._padded else row_width(int(most), self._context)
        batch = self._packed(chosen_answers, reference, rewards, count, width)
        if self._mismatched is None:
            return batch
        answers, log_probs = self._mismatched
        others = [
            (other, log_probs[position])
            for position in chosen
            if (other := answers[position]) is not None
        ]
        unrated = [math.nan] * len(others)
        rest = [list(part) for part in zip(*others, strict=True)] or [[], []]
        mismatched = self._packed(rest[0], rest[1], unrated, len(others), self._context)
        return dataclasses.replace(batch, mismatched=mismatched)

    def _packed(
        self,
        answers: Sequence[TrainingAnswer],
        reference: Sequence[float],
        rewards: Sequence[float],
        count: int,
        width: int,
    ) -> AnswerBatch:
        """These answers in as few rows of this width as best fit finds."""
        tokens, target, document, completion = packed_rows(answers, width, self._pad)
        most = max([1, *(len(answer.ref_rewards) for answer in answers)])
        references = [
            [*answer.ref_rewards, *[math.nan] * (most - len(answer.ref_rewards))]
            for answer in answers
        ]
        lengths = [sum(answer.supervised[1:]) for answer in answers]
        return AnswerBatch(
            tokens_RT=torch.from_numpy(tokens),
            target_RT=torch.from_numpy(target),
            document_RT=torch.from_numpy(document),
            completion_RT=torch.from_numpy(completion),
            reference_B=torch.tensor(reference, dtype=torch.float64),
            reward_B=torch.tensor(rewards, dtype=torch.float64),
            ref_reward_BN=torch.tensor(references, dtype=torch.float64).reshape(len(answers), most),
            length_B=torch.tensor(lengths, dtype=torch.int64),
            num_examples=count,
        )

    def _places(self, first: int, count: int) -> NDArray[np.int64]:
        """Numbers of the examples at these places of the run."""
        return epoch_order(first, count, len(self._examples), self._seed)


def on_device(batch: Any, device: torch.device) -> dict[str, Any]:
    """The tensors among the fields of a batch, on a device."""
    tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return dict(zip(tensors, moved([*tensors.values()], device), strict=True))


def packed_rows(
    answers: Sequence[AnswerTokens], context: int, pad: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """These answers in as few rows as best fit finds: tokens, targets, documents, completions, (R, T).

    Edge   no answers make one row of padding: all processes run the same passes
    """
    rows = best_fit([len(answer.ids) - 1 for answer in answers], context) or [[]]
    return filled_rows(answers, rows, context, pad)


def pairs_of(answers: Sequence[TrainingAnswer]) -> list[tuple[int, ...]]:
    """Positions of the chosen and the rejected answer of each example.

    Raises   DataError for an example that is not a pair
    """
    by_example: dict[int, dict[str, int]] = {}
    for position, answer in enumerate(answers):
        roles = by_example.setdefault(answer.example, {})
        if answer.role in roles:
            raise DataError(f"example {answer.example} has two {answer.role} answers")
        roles[answer.role] = position
    for example, roles in by_example.items():
        if roles.keys() != {"chosen", "rejected"}:
            raise DataError(
                f"example {example} has the answers {', '.join(sorted(roles))}, not chosen and "
                "rejected",
                fix="Give pairs (chosen, rejected), or train with QRPO on rated answers",
            )
    return [(roles["chosen"], roles["rejected"]) for roles in by_example.values()]


_FARTHEST = 1000


class MismatchedAnswers(ReadSequence[EncodedAnswer | None]):
    """The prompt of each answer, with the answer of the nearest earlier row that has another prompt.

    The first rows continue at the end of the data. A row has None where no answer of the 1,000 rows
    before it fits into the context.

    context   most tokens of prompt and answer
    what      they are, for messages: "held-out answers"

    Raises   DataError when all answers are to one prompt
    Source   TRL 1.16, KTOTrainer: the answers of a batch, shifted by one row
    """

    def __init__(
        self, answers: Sequence[EncodedAnswer], context: int, what: str = "answers"
    ) -> None:
        self._answers = answers
        facts = [(_prompt_hash(a), a.prompt_tokens, len(a.ids)) for a in answers]
        prompts, starts, ends = np.array(facts, dtype=np.int64).reshape(-1, 3).T
        if len(np.unique(prompts)) < 2:
            raise DataError(
                f"all {what} are to one prompt, and the loss compares with answers to other prompts",
                fix="Add rows with other prompts",
            )
        self.partners = _partners(prompts, starts, ends - starts, context)

    def __len__(self) -> int:
        return len(self._answers)

    def _at(self, position: int) -> EncodedAnswer | None:
        if self.partners[position] < 0:
            return None
        prompt, other = self._answers[position], self._answers[int(self.partners[position])]
        begin, end = prompt.prompt_tokens, other.prompt_tokens
        return replace(
            prompt,
            ids=prompt.ids[:begin] + other.ids[end:],
            supervised=prompt.supervised[:begin] + other.supervised[end:],
        )


def have_other_prompts(answers: Iterable[EncodedAnswer]) -> bool:
    """Whether the answers are to more than one prompt."""
    hashes = map(_prompt_hash, answers)
    first = next(hashes, None)
    return any(other != first for other in hashes)


def _prompt_hash(answer: EncodedAnswer) -> int:
    return zlib.crc32(np.asarray(answer.ids[: answer.prompt_tokens], np.int32).tobytes())


def _partners(
    prompts: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64], context: int
) -> NDArray[np.int64]:
    """Row whose answer each row's prompt gets, -1: none."""
    rows = np.arange(len(prompts))
    partner = np.full(len(prompts), -1, dtype=np.int64)
    for back in range(1, min(len(prompts), _FARTHEST + 1)):
        (open_,) = np.nonzero(partner < 0)
        if not len(open_):
            break
        other = rows[open_ - back]  # below 0: from the end
        fits = (prompts[other] != prompts[open_]) & (starts[open_] + lengths[other] <= context)
        partner[open_[fits]] = other[fits]
    return partner
