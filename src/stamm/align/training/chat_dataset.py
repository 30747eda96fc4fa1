"""Conversations as training sequences: packed, with documents kept apart and a mask of what is learned.

Conversations are placed into sequences of `context` tokens by best-fit decreasing, whole: none is cut.
One that is longer than a sequence is left out and reported. Attention sees only tokens of the same
conversation, and the loss counts only what the assistant wrote.

Letters: B sequences, T tokens.
Checked  tests/unit/align/test_chat_dataset.py
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from stamm.align.data.encoded import EncodedAnswers
from stamm.align.training.log_probs import AnswerTokens
from stamm.base.errors import DataError
from stamm.corpus.shuffle import shuffled
from stamm.pretrain.dataset import TokenBatch


def epoch_order(first: int, count: int, total: int, seed: int) -> NDArray[np.int64]:
    """Numbers of the examples at places first .. first + count - 1 of a run over `total` examples.

    Every epoch is a shuffle of its own, which is never stored.

    Shapes   int64, (count,)
    Checked  tests/unit/align/test_answer_dataset.py
    """
    positions = np.arange(first, first + count, dtype=np.int64)
    numbers = np.empty_like(positions)
    for epoch in np.unique(positions // total).tolist():
        inside = positions // total == epoch
        numbers[inside] = shuffled(positions[inside] % total, total, seed + epoch)
    return numbers


_WIDTH_STEP = 64


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Positions of `lengths` in bins of `capacity`, each placed where the least room is left over.

    Longest first; equal lengths in their order. The result depends on nothing else.

    Raises   DataError for a length above the capacity.
    Source   best-fit decreasing: Johnson 1973; for language models Ding et al., arXiv 2404.10830
    """
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (room left, bin), sorted
    for position in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[position]
        if length > capacity:
            raise DataError(f"a conversation of {length} tokens, sequences have {capacity}")
        insertion = bisect.bisect_left(room, (length, -1))
        if insertion == len(room):
            bins.append([position])
            bisect.insort(room, (capacity - length, len(bins) - 1))
            continue
        free, chosen = room.pop(insertion)
        bins[chosen].append(position)
        bisect.insort(room, (free - length, chosen))
    return [sorted(positions) for positions in sorted(bins, key=min)]


def row_width(needed: int, context: int) -> int:
    """Tokens of a row that holds `needed`: a multiple of 64, at most `context`.

    Short data in a long context would be mostly padding, which costs as much as text.
    """
    return min(context, -(-max(needed, 1) // _WIDTH_STEP) * _WIDTH_STEP)


def token_counts(answers: Sequence[AnswerTokens]) -> NDArray[np.int64]:
    """Tokens of each conversation, prompt included."""
    if isinstance(answers, EncodedAnswers):
        return answers.num_tokens
    return np.array([len(answer.ids) for answer in answers], dtype=np.int64)


def _bins(lengths: Sequence[int], capacity: int, copies: Sequence[int]) -> list[list[int]]:
    """As `best_fit`, for the first copies, then for the second ones, and so on."""
    bins: list[list[int]] = []
    places_of: dict[int, list[int]] = {}
    for index, number in enumerate(copies):
        places_of.setdefault(number, []).append(index)
    for indexes in places_of.values():
        inside = best_fit([lengths[index] for index in indexes], capacity)
        bins += [[indexes[position] for position in positions] for positions in inside]
    return bins


def copy_numbers(chats: Iterable[AnswerTokens]) -> list[int]:
    """Returns for each conversation the number of earlier ones with the same ids."""
    seen: Counter[bytes] = Counter()
    numbers = []
    for chat in chats:
        digest = hashlib.sha256(np.asarray(chat.ids, np.int32).tobytes()).digest()[:16]
        numbers.append(seen[digest])
        seen[digest] += 1
    return numbers


def filled_rows(
    answers: Sequence[AnswerTokens], rows: Sequence[Sequence[int]], width: int, pad: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Inputs, targets, documents and learned answers, each (rows, width).

    rows   positions in `answers` of those that a row holds, one after the other

    Documents count from 0 in each row, and padding is one more. A target that is learned has the position
    of its answer; others have -1.
    """
    shape = (len(rows), width)
    tokens, target = np.full(shape, pad), np.full(shape, pad)
    document, learned = np.zeros(shape, dtype=np.int64), np.full(shape, -1)
    for row, inside in enumerate(rows):
        start = 0
        for number, position in enumerate(inside):
            answer = answers[position]
            stop = start + len(answer.ids) - 1
            tokens[row, start:stop] = answer.ids[:-1]
            target[row, start:stop] = answer.ids[1:]
            document[row, start:stop] = number
            counted = np.asarray(answer.supervised[1:], dtype=np.bool_)
            learned[row, start:stop][counted] = position
            start = stop
        document[row, start:] = len(inside)
    return tokens, target, document, learned


class ChatWindows:
    """Training sequences of conversations by their place in the run; random access, no state.

    It has the interface of `stamm.pretrain.dataset.SequenceSampler`, so that the objective of pretraining
    trains on it.

    chats     conversations of 2 to context + 1 tokens; they are read again for each batch, so that
              prepared ones are not held in memory
    context   most tokens of a sequence; all have the `row_width` of the fullest
    seed      decides the order in each epoch
    pad       id of the padding token
    copies    of each conversation, as `copy_numbers`: a sequence has none of them twice; None: not known
    padded    whether all sequences have `context` tokens: processes divide them at fixed places
    """

    def __init__(
        self,
        chats: Sequence[AnswerTokens],
        context: int,
        seed: int,
        pad: int,
        copies: Sequence[int] | None = None,
        *,
        padded: bool = False,
    ) -> None:
        if not chats:
            raise DataError("no conversation to train on", fix="Check the data and the context")
        self._chats, self._seed, self._pad = chats, seed, pad
        # A conversation of n tokens has n - 1 inputs with a target.
        lengths = (token_counts(chats) - 1).tolist()
        self._bins = _bins(lengths, context, copies or [0] * len(chats))
        self._bin_tokens = np.array(
            [sum(lengths[chat] for chat in chats_in_bin) for chats_in_bin in self._bins]
        )
        self._width = context if padded else row_width(int(self._bin_tokens.max()), context)

    @property
    def per_epoch(self) -> int:
        """Sequences in one pass over the conversations."""
        return len(self._bins)

    def num_tokens(self, first: int, count: int) -> int:
        """Tokens with a target in these sequences, padding left out."""
        return int(self._bin_tokens[self._places(first, count)].sum())

    def batch(self, first: int, count: int) -> TokenBatch:
        """Sequences first .. first + count - 1 of the run; for none, one of padding alone."""
        bins = [self._bins[index] for index in self._places(first, count)]
        chats = [self._chats[chat] for inside in bins for chat in inside]
        ends = itertools.accumulate(map(len, bins))
        rows = [[*range(end - len(inside), end)] for end, inside in zip(ends, bins, strict=True)]
        # All processes run the same passes.
        tokens, target, document, chat = filled_rows(chats, rows or [[]], self._width, self._pad)
        return TokenBatch(
            tokens_BT=torch.from_numpy(tokens),
            target_BT=torch.from_numpy(target),
            document_BT=torch.from_numpy(document),
            keep_BT=torch.from_numpy(chat >= 0),
        )

    def _places(self, first: int, count: int) -> NDArray[np.int64]:
        """Numbers of the sequences at these places of the run."""
        return epoch_order(first, count, len(self._bins), self._seed)
