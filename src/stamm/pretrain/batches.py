"""From a packed corpus to the tensors of a step. Every token's place follows from the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stamm.corpus.order import WindowOrder
from stamm.corpus.pack import PackedSplit
from stamm.losses.goldfish import Goldfish, keep_mask


@dataclass(frozen=True)
class Batch:
    """Sequences to train on. Letters: B sequences, T tokens.

    tokens_BT     inputs
    target_BT     the token after each input
    document_BT   number of the document each input belongs to
    keep_BT       True where the target is learned
    """

    tokens_BT: Tensor
    target_BT: Tensor
    document_BT: Tensor
    keep_BT: Tensor


class Windows:
    """Sequences of a packed split by their place in the run; random access, no state.

    context    tokens of a sequence
    goldfish   which targets are not learned; None means none
    """

    def __init__(
        self, split: PackedSplit, context: int, seed: int, goldfish: Goldfish | None
    ) -> None:
        self._split = split
        self._context = context
        self._goldfish = goldfish
        self._order = WindowOrder(split.stages, context, seed)
        starts = split.documents().column("start").to_numpy()
        self._document_starts: NDArray[np.int64] = starts.astype(np.int64)

    @property
    def per_epoch(self) -> int:
        """Sequences in one pass over the split."""
        return self._order.count

    def batch(self, first: int, count: int) -> Batch:
        """Sequences first .. first + count - 1 of the run."""
        rows = [self._row(index) for index in range(first, first + count)]
        tokens, document, keep = (np.stack(part) for part in zip(*rows, strict=True))
        return Batch(
            tokens_BT=torch.from_numpy(tokens[:, :-1].copy()),
            target_BT=torch.from_numpy(tokens[:, 1:].copy()),
            document_BT=torch.from_numpy(document[:, :-1].copy()),
            keep_BT=torch.from_numpy(keep),
        )

    def stream(self, limit: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first `limit` tokens of the split as they stand, and their documents' numbers."""
        stop = min(self._split.num_tokens, limit)
        document = np.searchsorted(self._document_starts, np.arange(stop), side="right")
        return self._split.read(0, stop), document

    def label_runs(self, limit: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """About `limit` labels and their documents, cut as the Goldfish hash sees them."""
        if self._sees_context:
            tokens, document = self.stream(limit)
            yield tokens[1:], document[1:]
            return
        for index in range(min(self.per_epoch, max(limit // self._context, 1))):
            start, stop = self._order.window(index)
            document = np.searchsorted(self._document_starts, np.arange(start, stop), side="right")
            yield self._split.read(start, stop)[1:], document[1:]

    def _row(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """T + 1 tokens, their documents, and which of the T targets are learned."""
        start, stop = self._order.window(index)
        # The hash of a target reads the h - 1 tokens before it, which may stand before the window.
        reach = 0 if self._goldfish is None else self._goldfish.h - 1
        before = min(reach, start) if self._sees_context else 0
        tokens = self._split.read(start - before, stop)
        positions = np.arange(start - before, stop)
        document = np.searchsorted(self._document_starts, positions, side="right")
        inside, own = tokens[before:], document[before:]
        keep = own[1:] == own[:-1]  # the first token of a document follows from nothing
        if self._goldfish is not None:
            learned = keep_mask(self._goldfish, tokens[1:], document[1:])
            keep &= learned[before:]
        return inside, own, keep

    @property
    def _sees_context(self) -> bool:
        # The published code hashes each window by itself; ours sees the text as it stands.
        return self._goldfish is not None and self._goldfish.hash != "apertus"
