"""Training sequences: from a token stream to the tensors of a step, with random access."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stamm.corpus.shuffle import TokenStream, WindowOrder
from stamm.losses.config import Goldfish, Rule
from stamm.losses.loss_mask import MaskTokenIds, loss_targets


class TrainingBatch(Protocol):
    """Sequences of one micro-batch, as tensors."""

    @property
    def num_rows(self) -> int:
        """Sequences that are computed at once."""

    @property
    def loss_count(self) -> int:
        """Number of terms in the sums of the loss: tokens with a loss, or examples."""

    def to(self, device: torch.device) -> Self:
        """The same batch on a device."""


BatchT = TypeVar("BatchT", bound=TrainingBatch)
BatchT_co = TypeVar("BatchT_co", bound=TrainingBatch, covariant=True)


class TrainingSequences(Protocol[BatchT_co]):
    """Training data with random access by position in the run; stateless.

    per_epoch   sequences (or examples) in one pass over the data
    """

    @property
    def per_epoch(self) -> int:
        """Sequences in one pass over the data."""

    def batch(self, first: int, count: int) -> BatchT_co:
        """Sequences first .. first + count - 1 of the run."""

    def num_tokens(self, first: int, count: int) -> int:
        """Number of tokens that a model reads in them, padding left out."""


@dataclass(frozen=True)
class TokenBatch:
    """Sequences to train on, with their loss mask. Letters: B sequences, T tokens.

    tokens_BT     inputs
    target_BT     the token after each input
    document_BT   number of the document each input belongs to
    keep_BT       loss mask: True where the target has a loss
    """

    tokens_BT: Tensor
    target_BT: Tensor
    document_BT: Tensor
    keep_BT: Tensor

    @property
    def num_rows(self) -> int:
        """Number of sequences."""
        return len(self.tokens_BT)

    @property
    def loss_count(self) -> int:
        """Number of targets with a loss."""
        return int(self.keep_BT.sum())

    def to(self, device: torch.device) -> TokenBatch:
        """The same batch on a device, as `moved` does."""
        return TokenBatch(*moved([getattr(self, f.name) for f in dataclasses.fields(self)], device))


def moved(tensors: list[Tensor], device: torch.device) -> list[Tensor]:
    """`tensors` on the device; through pinned memory, so that a GPU copies while it computes."""
    if device.type == "cpu":
        return tensors
    return [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]


class SequenceSampler:
    """Sampler of the sequences of a token stream, by their position in the run; stateless.

    context    tokens of a sequence
    goldfish   Goldfish loss mask; None: none
    masks      loss mask between documents: see `losses.loss_mask`
    """

    def __init__(
        self,
        stream: TokenStream,
        context: int,
        seed: int,
        goldfish: Goldfish | None,
        masks: Rule = "stamm",
    ) -> None:
        self._stream = stream
        self._context = context
        self._goldfish = goldfish
        self._masks: Rule = masks
        self._special = MaskTokenIds(end=stream.end_id)
        self._order = WindowOrder(stream.stages, context, seed)
        self._document_starts = stream.document_starts()

    @property
    def per_epoch(self) -> int:
        """Sequences in one pass over the stream."""
        return self._order.count

    def batch(self, first: int, count: int) -> TokenBatch:
        """Sequences first .. first + count - 1 of the run."""
        rows = [self._row(start) for start in self._starts(first, count)]
        tokens, document, keep = (np.stack(part) for part in zip(*rows, strict=True))
        return TokenBatch(
            tokens_BT=torch.from_numpy(tokens[:, :-1].copy()),
            target_BT=torch.from_numpy(tokens[:, 1:].copy()),
            document_BT=torch.from_numpy(document[:, :-1].copy()),
            keep_BT=torch.from_numpy(keep),
        )

    def num_tokens(self, first: int, count: int) -> int:
        """Tokens of `count` sequences, wherever they begin."""
        return count * self._context

    def stream(self, limit: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first `limit` tokens of the stream in corpus order, and their document numbers."""
        stop = min(self._stream.num_tokens, limit)
        return self._stream.read(0, stop), self._documents(0, stop)

    def label_runs(self, limit: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """About `limit` labels and their documents, divided as the Goldfish hash reads them."""
        if self._sees_context:
            tokens, document = self.stream(limit)
            yield tokens[1:], document[1:]
            return
        count = min(self.per_epoch, max(limit // self._context, 1))
        for start in self._order.windows(0, count).tolist():
            stop = start + self._context + 1
            yield self._stream.read(start, stop)[1:], self._documents(start, stop)[1:]

    def _starts(self, first: int, count: int) -> list[int]:
        """The first token of each of the sequences first .. first + count - 1."""
        starts: list[int] = self._order.windows(first, count).tolist()
        return starts

    def _row(self, start: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """T + 1 tokens from `start` on, their documents, and the loss mask of the T targets."""
        stop = start + self._context + 1
        # The hash of a target reads the h - 1 tokens before it, which may precede the sequence.
        reach = 0 if self._goldfish is None else self._goldfish.h - 1
        before = min(reach, start) if self._sees_context else 0
        tokens = self._stream.read(start - before, stop)
        document = self._documents(start - before, stop)
        keep = loss_targets(self._masks, tokens, document, self._special, self._goldfish)
        return tokens[before:], document[before:], keep[before:]

    def _documents(self, start: int, stop: int) -> NDArray[np.int64]:
        """The number of the document of each token start .. stop - 1."""
        ends = (start, max(start, stop - 1))
        first, last = np.searchsorted(self._document_starts, ends, side="right")
        borders = np.concatenate(([start], self._document_starts[first:last], [stop]))
        return np.repeat(np.arange(first, last + 1), np.diff(borders))

    @property
    def _sees_context(self) -> bool:
        # The published code hashes each sequence alone; hash="stamm" reads across its border.
        return self._goldfish is not None and self._goldfish.hash != "apertus"
