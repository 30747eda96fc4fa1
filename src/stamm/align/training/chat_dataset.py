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
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from stamm.align.data.encoded import EncodedAnswers
from stamm.align.training.epoch_order import epoch_order
from stamm.align.training.log_probs import AnswerTokens
from stamm.base.errors import DataError
from stamm.pretrain.dataset import TokenBatch


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
        found = bisect.bisect_left(room, (length, -1))
        if found == len(room):
            bins.append([position])
            bisect.insort(room, (capacity - length, len(bins) - 1))
            continue
        left, chosen = room.pop(found)
        bins[chosen].append(position)
        bisect.insort(room, (left - length, chosen))
    return [sorted(each) for each in sorted(bins, key=min)]


def token_counts(answers: Sequence[AnswerTokens]) -> NDArray[np.int64]:
    """Tokens of each conversation, prompt included."""
    if isinstance(answers, EncodedAnswers):
        return answers.num_tokens
    return np.array([len(answer.ids) for answer in answers], dtype=np.int64)


def _bins(lengths: Sequence[int], capacity: int, copies: Sequence[int]) -> list[list[int]]:
    """As `best_fit`, for the first copies, then for the second ones, and so on."""
    bins: list[list[int]] = []
    places_of: dict[int, list[int]] = {}
    for place, number in enumerate(copies):
        places_of.setdefault(number, []).append(place)
    for places in places_of.values():
        inside = best_fit([lengths[place] for place in places], capacity)
        bins += [[places[position] for position in positions] for positions in inside]
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


class ChatWindows:
    """Training sequences of conversations by their place in the run; random access, no state.

    It has the interface of `stamm.pretrain.dataset.SequenceSampler`, so that the objective of pretraining
    trains on it.

    chats     conversations of 2 to context + 1 tokens; they are read again for each batch, so that
              prepared ones are not held in memory
    context   tokens of a sequence
    seed      decides the order in each epoch
    pad       id of the padding token
    copies    of each conversation, as `copy_numbers`: a sequence has none of them twice; None: not known
    """

    def __init__(
        self,
        chats: Sequence[AnswerTokens],
        context: int,
        seed: int,
        pad: int,
        copies: Sequence[int] | None = None,
    ) -> None:
        if not chats:
            raise DataError("no conversation to train on", fix="Check the data and the context")
        self._chats, self._context, self._seed, self._pad = chats, context, seed, pad
        # A conversation of n tokens has n - 1 inputs with a target.
        lengths = (token_counts(chats) - 1).tolist()
        self._bins = _bins(lengths, context, copies or [0] * len(chats))
        self._bin_tokens = np.array([sum(lengths[chat] for chat in each) for each in self._bins])

    @property
    def per_epoch(self) -> int:
        """Sequences in one pass over the conversations."""
        return len(self._bins)

    @property
    def fill(self) -> float:
        """Fraction of the positions that hold a token with a target."""
        return int(self._bin_tokens.sum()) / (self._context * len(self._bins))

    def num_tokens(self, first: int, count: int) -> int:
        """Tokens with a target in these sequences, padding left out."""
        return int(self._bin_tokens[self._places(first, count)].sum())

    def batch(self, first: int, count: int) -> TokenBatch:
        """Sequences first .. first + count - 1 of the run; for none, one of padding alone."""
        rows = [self._row(self._bins[place]) for place in self._places(first, count)]
        rows = rows or [self._row([])]  # all processes run the same passes
        tokens, target, document, keep = (np.stack(part) for part in zip(*rows, strict=True))
        return TokenBatch(
            tokens_BT=torch.from_numpy(tokens),
            target_BT=torch.from_numpy(target),
            document_BT=torch.from_numpy(document),
            keep_BT=torch.from_numpy(keep),
        )

    def _places(self, first: int, count: int) -> NDArray[np.int64]:
        """Numbers of the sequences at these places of the run."""
        return epoch_order(first, count, len(self._bins), self._seed)

    def _row(
        self, chats: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Inputs, targets, documents (from 0; padding is one more) and which targets are learned."""
        tokens = np.full(self._context, self._pad, dtype=np.int64)
        target = np.full(self._context, self._pad, dtype=np.int64)
        document = np.full(self._context, len(chats), dtype=np.int64)
        keep = np.zeros(self._context, dtype=np.bool_)
        start = 0
        for number, place in enumerate(chats):
            chat = self._chats[place]
            stop = start + len(chat.ids) - 1
            tokens[start:stop] = chat.ids[:-1]
            target[start:stop] = chat.ids[1:]
            document[start:stop] = number
            keep[start:stop] = chat.supervised[1:]
            start = stop
        return tokens, target, document, keep
